"""Measures what this machine reaches: matrix products, memory, the smallest piece of work. Prints one JSON object.

Run by path with the engine's interpreter (`python calibrate_probe.py REQUEST`), where torch is: it imports nothing of
ours, and stepscope never imports it. REQUEST: {"device": "auto" | "cpu" | "cuda", "threads": int,
"dtypes": {"cpu": [str], "cuda": [str]}, "short": bool, "until": seconds since the epoch when it should be done}.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
MIN_REPEATS = 2
MAX_REPEATS = 200  # per round
ROUNDS = 4
OVERRUN = 2.0  # a disturbed machine must not take for ever: fewer repeats then
LEAST_S = 1.5  # of measuring, however long the import took
SHARES = {"matrix": 0.55, "memory": 0.4, "launch": 0.05}
SIZES = {
    "cpu": [(256, 768, 3072), (1024, 1024, 1024), (512, 1024, 4096), (2048, 2048, 2048), (1024, 4096, 4096)],
    "cuda": [(1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192), (4096, 8192, 28672)],
}
WORKING_SETS = {
    "cpu": [256 * KIB, 4 * MIB, 16 * MIB, 64 * MIB],
    "cuda": [4 * MIB, 32 * MIB, 256 * MIB],
}
LARGEST = {"cpu": 256 * MIB, "cuda": 4 * GIB}
KEPT_SHORT = 2  # the smallest sizes are kept in a short run, and the largest working set
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "int8": "int8", "fp8": "float8_e4m3fn"}


class Machine:
    """Torch on one device: making data and timing work on it."""

    def __init__(self, kind: str, threads: int | None) -> None:
        self.torch: Any = importlib.import_module("torch")
        self.kind = kind
        if kind == "auto":
            self.kind = "cuda" if self.torch.cuda.is_available() else "cpu"
        if self.kind == "cpu" and threads:
            self.torch.set_num_threads(threads)

    def times(self, work: Callable[[], object], calls: int, seconds: float) -> list[float]:
        """Seconds per call of `work`, which makes `calls` of them, repeated for about `seconds`."""
        found: list[float] = []
        start = time.perf_counter()
        while len(found) < MAX_REPEATS:
            spent = time.perf_counter() - start
            if found and ((spent > seconds and len(found) >= MIN_REPEATS) or spent > OVERRUN * seconds):
                break
            found.append(self.timed(work) / calls)
        return found

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds that `work` takes, the device's part of it included."""
        if self.kind == "cpu":
            start = time.perf_counter()
            work()
            return time.perf_counter() - start
        begin, done = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        done.record()
        done.synchronize()
        return float(begin.elapsed_time(done)) / 1e3

    def matrices(self, dtype: str, m: int, k: int, n: int) -> Callable[[], object] | None:
        """The product of [m,k] and [k,n] in `dtype`, weights stored as engines store them; None where impossible."""
        torch = self.torch
        if not hasattr(torch, DTYPES[dtype]):
            return None
        kind = getattr(torch, DTYPES[dtype])
        a = torch.randn(m, k, device=self.kind)
        b = torch.randn(n, k, device=self.kind)
        if dtype == "int8":
            left, right = (a * 40).clamp(-127, 127).to(kind), (b * 40).clamp(-127, 127).to(kind).t().contiguous()
            return lambda: torch._int_mm(left, right)
        left, right = a.to(kind), b.to(kind)
        if dtype == "fp8":
            one = torch.ones((), device=self.kind)
            return lambda: torch._scaled_mm(left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        return lambda: torch.nn.functional.linear(left, right)


class Task:
    """Something to be timed again and again: `amount` FLOP or bytes per call, and what it is."""

    def __init__(self, row: dict[str, Any], work: Callable[[], object], calls: int, amount: int) -> None:
        self.row, self.work, self.calls, self.amount = row, work, calls, amount
        self.times: list[float] = []

    def result(self) -> dict[str, Any]:
        return {**self.row, **summary([self.amount / seconds for seconds in self.times])}


def summary(rates: list[float]) -> dict[str, Any]:
    """Best, median and spread of rates."""
    ordered = sorted(rates)
    median = ordered[len(ordered) // 2]
    spread = (ordered[-1] - ordered[0]) / median
    return {"best": ordered[-1], "median": median, "spread": spread, "repeats": len(ordered)}


def products(machine: Machine, dtypes: list[str], sizes: list[tuple[int, int, int]]) -> list[Task]:
    """Products per type and size. A type that this build or device cannot multiply is left out."""
    found = []
    for dtype in dtypes:
        for m, k, n in sizes:
            try:
                work = machine.matrices(dtype, m, k, n)
                if work is None:
                    break
                machine.timed(work)  # the first one also allocates and plans
            except (RuntimeError, NotImplementedError, AttributeError, TypeError):
                break
            found.append(Task({"dtype": dtype, "m": m, "k": k, "n": n}, work, 1, 2 * m * k * n))
    return found


def streams(machine: Machine, working_sets: list[int]) -> list[Task]:
    """Reading one stream (a sum) or two (a dot product), and copying. Small sets are gone through several times per
    measurement, so that dispatch does not count."""
    torch, found = machine.torch, []
    for size in working_sets:
        source = torch.ones(size // 4, device=machine.kind)
        first, second = source[: size // 8], source[size // 8 : size // 8 * 2]
        calls = max(1, (8 * MIB if machine.kind == "cpu" else 256 * MIB) // size)
        operations: dict[str, Callable[[], object]] = {
            "read": partial(torch.sum, source),
            "dot": partial(torch.dot, first, second),
            "copy": partial(first.copy_, second),
        }
        for operation, work in operations.items():
            machine.timed(work)
            # a copy reads one half of the set and writes the other
            row = {"operation": operation, "working_set_bytes": size}
            found.append(Task(row, partial(repeat, work, calls), calls, size))
    return found


def in_turns(machine: Machine, shares: list[tuple[list[Task], float]]) -> None:
    """Time every task of each list, so many seconds per list. All are gone through several times over: a disturbance of
    a second then spoils a part of each task's repeats, and not all of one."""
    for _ in range(ROUNDS):
        for tasks, seconds in shares:
            for task in tasks:
                share = seconds / len(tasks)
                if sum(task.times) * task.calls < share:  # a slow one has had its share in fewer rounds
                    task.times += machine.times(task.work, task.calls, share / ROUNDS)


def repeat(work: Callable[[], object], calls: int) -> None:
    """`calls` times `work`."""
    for _ in range(calls):
        work()


def launch_ns(machine: Machine, seconds: float) -> float:
    """ns per smallest piece of work, back to back."""
    one = machine.torch.ones(1, device=machine.kind)
    machine.timed(partial(one.add_, 0))
    times = machine.times(lambda: [one.add_(0) for _ in range(500)], 500, seconds)
    return sorted(times)[len(times) // 2] * 1e9


def largest_working_set(kind: str) -> int:
    """Well beyond the last cache, but no more than an eighth of the free memory."""
    if kind != "cpu":
        return LARGEST[kind]
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text(encoding="ascii").strip()
        cache = int(text.rstrip("KM")) * (MIB if text.endswith("M") else KIB)
    except (OSError, ValueError):
        cache = 32 * MIB
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(64 * MIB, min(max(LARGEST[kind], 4 * cache), free // 8)) // MIB * MIB


def others() -> tuple[float, float, float]:
    """Wall clock, CPU seconds of everyone on this machine, and of this process."""
    ticks = os.sysconf("SC_CLK_TCK")
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0].split()[1:9]
        busy = sum(int(value) for i, value in enumerate(fields) if i not in (3, 4)) / ticks  # without idle and iowait
    except (OSError, ValueError):
        busy = float("nan")
    own = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter(), busy, own.ru_utime + own.ru_stime


def device_name(machine: Machine) -> str | None:
    """As the engine's runs name it."""
    if machine.kind != "cpu":
        return str(machine.torch.cuda.get_device_name(0))
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """All of it, in the time that is left."""
    machine = Machine(request["device"], request.get("threads"))
    kind, short = machine.kind, bool(request["short"])
    seconds = max(LEAST_S, request["until"] - time.time())
    sizes = SIZES[kind][:KEPT_SHORT] if short else SIZES[kind]
    sets = sorted({*(WORKING_SETS[kind][:KEPT_SHORT] if short else WORKING_SETS[kind]), largest_working_set(kind)})
    before = others()
    with machine.torch.inference_mode():
        matrix, memory = products(machine, request["dtypes"][kind], sizes), streams(machine, sets)
        in_turns(machine, [(matrix, seconds * SHARES["matrix"]), (memory, seconds * SHARES["memory"])])
        launch = launch_ns(machine, seconds * SHARES["launch"])
    after = others()
    elapsed, busy, own = (late - early for late, early in zip(after, before, strict=True))
    others_cpu = max(0.0, (busy - own) / elapsed)
    hip = getattr(machine.torch.version, "hip", None)
    return {
        "device_kind": "hip" if kind == "cuda" and hip else kind, "device_name": device_name(machine),
        "threads": machine.torch.get_num_threads() if kind == "cpu" else None,
        "torch_version": machine.torch.__version__,
        "matrix": [task.result() for task in matrix], "memory": [task.result() for task in memory], "launch_ns": launch,
        "others_cpu": others_cpu if others_cpu == others_cpu else None,  # noqa: PLR0124 - not a number where /proc has none
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(measure(json.loads(sys.argv[1]))) + "\n")
