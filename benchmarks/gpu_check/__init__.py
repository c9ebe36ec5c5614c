"""The GPU check: does stepscope tell the truth on this machine's GPU? docs/gpu-check.md."""
