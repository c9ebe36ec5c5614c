"""Readers of trace and log files, the DuckDB store, and the links from kernels to launches to steps."""
