"""Parts of the torch-profiler JSON reader: bytes of the file, outline of the document, events, strings, columns."""
