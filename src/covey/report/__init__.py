"""Figures, and one self-contained page a run: people look before they read."""
