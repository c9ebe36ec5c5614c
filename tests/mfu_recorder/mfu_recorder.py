"""A vLLM plugin for tests: one JSON line for every estimate that `--enable-mfu-metrics` makes of a step.

The estimate itself is vLLM's, unchanged: its parts are noted while it adds them up. Lines go to the file that MFU_RECORD
names: ids and tokens of the step, whether each request counts as prefill, the totals as published, and the parts.
"""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import Any

PARTS = ("get_num_flops_breakdown", "get_read_bytes_breakdown", "get_write_bytes_breakdown")


def register() -> None:
    """Entry point; loaded in every process of the engine, of which only the scheduler's estimates."""
    path = os.environ.get("MFU_RECORD")
    if not path:
        return
    from vllm.v1.metrics.perf import ModelMetrics

    if hasattr(ModelMetrics.get_step_perf_stats_per_gpu, "__wrapped__"):
        return
    noted: dict[str, Any] = {}
    for name in PARTS:
        setattr(ModelMetrics, name, _noting(getattr(ModelMetrics, name), name, noted))
    ModelMetrics.get_step_perf_stats_per_gpu = _written(ModelMetrics.get_step_perf_stats_per_gpu, path, noted)


def _noting(original: Any, name: str, noted: dict[str, Any]) -> Any:
    @functools.wraps(original)
    def breakdown(self: Any, ctx: Any, per_gpu: bool = True) -> Any:
        found = original(self, ctx, per_gpu)
        noted[name] = dict(found)
        noted["requests"] = [(tokens, context, bool(prefill)) for tokens, context, prefill in ctx.requests]
        return found

    return breakdown


def _written(original: Any, path: str, noted: dict[str, Any]) -> Any:
    @functools.wraps(original)
    def estimate(self: Any, scheduler_output: Any) -> Any:
        stats = original(self, scheduler_output)
        totals = (stats.num_flops_per_gpu, stats.num_read_bytes_per_gpu, stats.num_write_bytes_per_gpu)
        flops, read, written = (noted[name] for name in PARTS)
        line = {
            "scheduled": dict(scheduler_output.num_scheduled_tokens), "requests": noted["requests"], "totals": totals,
            "flops": flops, "read": read, "written": written,
        }  # fmt: skip
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return stats

    return estimate
