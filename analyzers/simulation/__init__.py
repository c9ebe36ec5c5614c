"""Arrivals against the cost model: what a pool of servers would do, step by step, with no device at hand."""
