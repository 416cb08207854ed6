"""A grid of runs over settings and seeds, chosen by validation rows: `covey sweep`."""
