"""One question about a run per module; values only, no plots."""
