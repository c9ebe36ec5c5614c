"""Code that runs inside an engine: standard library only."""
