"""One profiled run of `llama-160m` on the engine's CPU backend, with vLLM's own estimate switched on; tests share it.

Four prompts of 1423, 169, 89 and 369 tokens at once, in steps of at most 1536 tokens: whichever comes first, there is
one step of a long prefill, one where the rest is computed beside decodes, and then decodes alone. vLLM's estimate is
taken down step by step by tests/mfu_recorder.

A CPU without instructions for bfloat16 takes four times as long for products in it as in float32, and then even a decode
step is limited by computing. There `profile` serves it in float32 (profiler/cpu.py), so that the run is the same kind of case everywhere.
"""

from __future__ import annotations

import importlib.util
import json
import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pytest
from engine_harness import finish, left_behind, start

RECORDER = Path(__file__).resolve().parent / "mfu_recorder"
WORKLOAD = ["--workload", "batch:n=4,prompt=800,output=24,jitter=0.9,form=ids", "--seed", "97", "--window", "all"]
ENGINE = ["--engine-arg", "enable-mfu-metrics", "--engine-arg", "max-num-batched-tokens=1536"]
QUIET_CPUS = 0.3  # that others may use meanwhile
ENGINE_MARKS = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRun:
    """A finished run. `estimates`: lines of the recorder. `others_cpu`: CPUs that others used meanwhile."""

    run_dir: Path
    estimates: list[dict[str, Any]]
    others_cpu: float

    @property
    def manifest(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads((self.run_dir / "manifest.json").read_text())
        return value

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of the run's database."""
        with duckdb.connect(str(self.run_dir / "run.duckdb"), read_only=True) as con:
            found = con.execute(sql)
            names = [column[0] for column in found.description or []]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def published(self, name: str, *, before: str, after: str) -> float:
        """Growth of a counter between two scrapes, such as 'control-before' and 'control-after'."""
        return self._counter(name, after) - self._counter(name, before)

    def _counter(self, name: str, scrape: str) -> float:
        lines = (self.run_dir / "metrics" / f"{scrape}.prom").read_text().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    def holds(self, condition: bool, otherwise: str) -> None:
        """Of times: a claim that fails while others use the machine is withheld, and said to be."""
        if not condition and not (self.manifest["calibration"]["quiet"] and self.others_cpu <= QUIET_CPUS):
            pytest.skip(f"withheld, the machine was not quiet ({self.others_cpu:.1f} CPUs used by others): {otherwise}")
        assert condition, otherwise


def engine_run(folder: Path, model: str, *arguments: str) -> EngineRun:
    """Profile `model`; measurements of this machine that were made before do not count."""
    run_dir, record = folder / "run", folder / "estimates.jsonl"
    env = {"PYTHONPATH": str(RECORDER), "MFU_RECORD": str(record), "XDG_STATE_HOME": str(folder / "state")}
    before = _clocks()
    process = start(["profile", "--model", model, "--out", str(run_dir), *arguments], env)
    ended = finish(process, run_dir, timeout_s=400)
    wall, everyone, own = (late - early for late, early in zip(_clocks(), before, strict=True))
    assert ended.code == 0, ended.err
    assert (ended.manifest["status"], ended.manifest["hook_errors"]) == ("complete", [])
    assert left_behind(run_dir) == []
    estimates = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    return EngineRun(run_dir=run_dir, estimates=estimates, others_cpu=max(0.0, everyone - own) / wall)


def llama_run(folder: Path) -> EngineRun:
    """The run described above."""
    return engine_run(folder, "llama-160m", *WORKLOAD, *ENGINE)


def _clocks() -> tuple[float, float, float]:
    """Seconds of the clock, of all CPUs' work, and of ended children's and our own."""
    fields = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]
    busy = sum(int(value) for i, value in enumerate(fields) if i not in (3, 4)) / os.sysconf("SC_CLK_TCK")
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return time.monotonic(), busy, sum(each.ru_utime + each.ru_stime for each in usage)
