"""Benchmarks of the operators and other libraries: ``python -m benchmarks --help``, README.md."""
