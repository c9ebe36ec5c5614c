"""The profiler's wrapper."""


class TorchProfilerWrapper:
    def __init__(self):
        self.dump_cpu_time_total = self.dump_device_time_total = True
