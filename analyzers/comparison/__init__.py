"""Runs against runs: what differs, what that did, and how much of it is noise. `analyzers.compare` puts it together."""
