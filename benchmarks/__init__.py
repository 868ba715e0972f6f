"""Operators side by side with other libraries: ``python -m benchmarks --help``, README.md."""
