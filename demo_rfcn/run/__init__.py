# SPDX-License-Identifier: Apache-2.0
"""Runs: training, checkpoints and scores."""
