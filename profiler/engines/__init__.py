"""Command lines and readiness of the engines; pure functions."""
