"""One reader per workload or agent log format, all to planned requests."""
