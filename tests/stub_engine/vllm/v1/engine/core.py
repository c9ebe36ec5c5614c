"""Profiler calls."""


class EngineCore:
    def profile(self, is_start: bool = True, profile_prefix: str | None = None):
        if profile_prefix == "refuse":
            raise RuntimeError("no")
        return is_start, profile_prefix
