"""What the step ledger alone costs: throughput of two engines, one with the hook and one without, in turns.

Both engines are up at the same time and get the same seeded passes alternately (A/B, then B/A, …), so that a slow
machine slows both. After `--starts` pairs of engines the ratio of each pair of passes, their median and a bootstrap
interval are printed. A second figure needs no luck: the time spent inside the hook per step, measured in a loop, as a
share of the step time of the run.

    python benchmarks/ledger_overhead.py --model llama-160m --rounds 6 --starts 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from analyzers.presets import preset  # noqa: E402
from profiler.client import run_plan  # noqa: E402
from profiler.engines.base import Launch  # noqa: E402
from profiler.engines.registry import find_engine  # noqa: E402
from profiler.engines.vllm import HOOK_DIR  # noqa: E402
from profiler.modeldir import write_model_dir  # noqa: E402
from profiler.process import EngineProcess, free_port  # noqa: E402
from profiler.server import Server  # noqa: E402
from profiler.workloads.plan import Plan, build_plan  # noqa: E402

ENGINE = find_engine("vllm")

# Times the hook's part of schedule() and update_from_output() with `n` requests, and the writer thread's part.
DIRECT = """
import json, os, sys, time
from types import SimpleNamespace as N
sys.path.insert(0, sys.argv[1])
os.environ["STEPSCOPE_LEDGER_DIR"] = sys.argv[2]
from stepscope_hook import ledger, steps
n, count = int(sys.argv[3]), 2000
ids = [f"chatcmpl-profiled-0123abcd-r{i:05d}-01234567" for i in range(n)]
cached = N(req_ids=ids, num_computed_tokens=[500] * n, num_output_tokens=[50] * n, resumed_req_ids=set())
scheduler = N(running=ids, waiting=[], kv_cache_manager=N(usage=0.5))
result = {0: N(outputs=[N(request_id=i, new_token_ids=[1], finish_reason=None) for i in ids])}
steps.on_add_request(0, None, (N(request_id=ids[0], num_prompt_tokens=5),), {}, None)
hot = 0
cpu = time.process_time_ns()
for _ in range(count):
    output = N(num_scheduled_tokens=dict.fromkeys(ids, 1), scheduled_new_reqs=[], scheduled_cached_reqs=cached,
               scheduled_spec_decode_tokens={})
    began = time.perf_counter_ns()
    steps.on_schedule(began, scheduler, (), {}, output)
    steps.on_result(began, scheduler, (output,), {}, result)
    hot += time.perf_counter_ns() - began
began = time.process_time_ns()
ledger.flush()
print(json.dumps({"hot_ns": hot / count, "all_cpu_ns": (time.process_time_ns() - cpu) / count}))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """One engine that serves."""

    process: EngineProcess
    base_url: str
    ledger: bool


async def start(model_dir: Path, name: str, folder: Path, *, ledger: bool) -> Running:
    folder.mkdir(parents=True)
    (folder / "ledger").mkdir()
    launch = Launch(
        python=Path(sys.executable), model=str(model_dir), served_name=name, host="127.0.0.1", port=free_port(),
        device_kind="cpu", random_weights=True, local_model=True, trace_dir=None,
        ledger_dir=folder / "ledger" if ledger else None, engine_args=(),
    )  # fmt: skip
    env = ENGINE.environment(launch, dict(os.environ))
    process = EngineProcess(ENGINE.argv(launch), env, run_id=uuid.uuid4().hex[:12], log_path=folder / "engine.log")
    process.start()
    base_url = f"http://127.0.0.1:{launch.port}"
    async with Server(base_url) as server:
        await process.wait_ready(lambda: server.answers("/health"), timeout_s=600, progress=lambda _text: None)
    return Running(process=process, base_url=base_url, ledger=ledger)


async def throughput(engine: Running, plan: Plan, name: str, folder: Path) -> float:
    """Output tokens per second of one pass with a cache salt of its own."""
    result = await run_plan(
        plan, base_url=engine.base_url, model=name, pass_name="control", cache_salt=uuid.uuid4().hex,
        out_path=folder / f"{'with' if engine.ledger else 'without'}.jsonl", stop=asyncio.Event(),
    )  # fmt: skip
    if result.failed:
        raise SystemExit(f"{result.failed} requests failed: {result.first_error}")
    return result.output_tokens / ((result.end_ns - result.start_ns) / 1e9)


async def one_pair(args: argparse.Namespace, plan: Plan, folder: Path, *, first: bool) -> list[tuple[float, float]]:
    """(with, without) tokens/s of each round."""
    model_dir = write_model_dir(folder / "model", preset(args.model) or {})
    engines: list[Running] = []
    try:
        for ledger in (first, not first):
            side = folder / ("with" if ledger else "without")
            engines.append(await start(model_dir, args.model, side, ledger=ledger))
        with_hook, without = sorted(engines, key=lambda engine: not engine.ledger)
        for engine in engines:
            await throughput(engine, plan, args.model, folder)  # warm-up
        pairs = []
        for number in range(args.rounds):
            order = (with_hook, without) if number % 2 == 0 else (without, with_hook)
            speed = {}
            for engine in order:
                other = order[1] if engine is order[0] else order[0]
                with alone(other):
                    speed[engine.ledger] = await throughput(engine, plan, args.model, folder)
            pairs.append((speed[True], speed[False]))
            print(
                f"  with {speed[True]:8.1f}  without {speed[False]:8.1f} tokens/s  ratio {speed[True] / speed[False]:.4f}"
            )
        return pairs
    finally:
        for engine in engines:
            engine.process.stop()


@contextmanager
def alone(other: Running) -> Iterator[None]:
    """Stop the engine that is not measured: its waiting threads spin and would take a core."""
    os.killpg(other.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.killpg(other.process.pid, signal.SIGCONT)


def bootstrap(ratios: list[float], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(4000))
    return medians[100], medians[3899]


def direct(requests: int) -> dict[str, float]:
    """ns per step inside the hook: in the scheduler's way, and in all."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", DIRECT, str(HOOK_DIR), folder, str(requests)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Throughput with the step ledger against without.")
    parser.add_argument("--model", default="llama-160m")
    parser.add_argument("--workload", default="batch:n=16,prompt=64,output=48")
    parser.add_argument("--rounds", type=int, default=6, help="pairs of passes per pair of engines")
    parser.add_argument("--starts", type=int, default=2, help="pairs of engines")
    parser.add_argument("--direct-only", action="store_true")
    args = parser.parse_args()
    for requests in (1, 16, 256):
        cost = direct(requests)
        print(f"{requests:4} requests: {cost['hot_ns'] / 1e3:6.1f} µs per step in the scheduler's way, "
              f"{cost['all_cpu_ns'] / 1e3:6.1f} µs CPU with the writer thread")  # fmt: skip
    if args.direct_only:
        return
    plan = build_plan(args.workload, 0, max_context_tokens=4096)
    pairs: list[tuple[float, float]] = []
    for number in range(args.starts):
        with tempfile.TemporaryDirectory() as folder:
            print(f"engines {number + 1} of {args.starts}, {args.model}, {plan.spec}")
            pairs += asyncio.run(one_pair(args, plan, Path(folder), first=number % 2 == 0))
    ratios = [with_hook / without for with_hook, without in pairs]
    low, high = bootstrap(ratios)
    print(
        f"throughput with ledger / without: median {statistics.median(ratios):.4f} "
        f"[{low:.4f}, {high:.4f}], n = {len(ratios)}, "
        f"spread {min(ratios):.4f} to {max(ratios):.4f}, standard deviation {statistics.stdev(ratios):.4f}"
    )


if __name__ == "__main__":
    main()
