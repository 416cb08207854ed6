"""Configurations: TOML files, checked, and the catalogue of all names that they can use."""
