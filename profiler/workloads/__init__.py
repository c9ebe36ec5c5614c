"""Seeded workloads: pure functions from a specification to a plan."""
