"""Runs: configuration, the run itself, its directory on disk, its progress, and the reproduction of published results."""
