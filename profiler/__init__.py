"""Makes run directories: starts an engine, drives a workload, captures traces."""
