"""FLOPs and bytes of the operations of a transformer."""
