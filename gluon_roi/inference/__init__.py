# SPDX-License-Identifier: Apache-2.0
"""Converts networks and symbols for inference on a CPU: :func:`gluon_roi.optimize`.

convert.py lists the passes in their order, each of which is a file.
"""
