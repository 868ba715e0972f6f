"""Runs: their settings, training, checkpoints and scores."""
