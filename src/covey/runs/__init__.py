"""Runs: the run itself, its directory on disk, its checkpoints and its progress."""
