# SPDX-License-Identifier: Apache-2.0
"""Runs: their settings, training, checkpoints and scores."""
