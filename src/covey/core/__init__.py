"""The seam between methods and engines. Imports nothing else of the package."""
