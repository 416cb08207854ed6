"""Reports of runs and fits: one HTML page that opens without a network."""
