# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of the operators and other libraries: ``python -m benchmarks --help``, README.md."""
