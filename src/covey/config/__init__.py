"""Configurations: what a TOML file says, checked, and the catalogue of everything that it can
name.
"""
