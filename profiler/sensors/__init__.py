"""Sensors of the machine an engine runs on: NVML, /proc/stat and RAPL, sampled in a process of their own."""
