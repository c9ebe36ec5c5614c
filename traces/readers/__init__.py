"""One reader per file format; see `base.py` for what a reader delivers."""
