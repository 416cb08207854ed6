"""What to make of a fit: starting points, draws, intervals, calibration."""
