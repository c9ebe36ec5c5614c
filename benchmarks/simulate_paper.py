"""The simulator in the setting of a published replay, as far as that setting is stated.

    python benchmarks/simulate_paper.py [--logs DIR] [--json FILE]

The Energy Cost of Execution-Idle in GPU Clusters (arXiv 2604.04745) replays production logs on L40S with vLLM and
Llama-13B for 30 minutes, scaled to a median of 4 to 8 s between the requests of a GPU, and finds the GPU execution-idle
for 76 % of the time (Azure code, 65 % of the energy) and 29 % (Azure chat, 17 %). It counts every idle second, without a
shortest duration. The logs here are Azure's of 2023 (an hour of each); the paper used a week of 2024. Nothing is fitted:
what the paper leaves open is varied, one thing at a time, around one base.

A log is thinned (every request goes to one of k servers at random; k such that the median gap of the middle server is
the one wanted, or the mean gap) or stretched (one server, all gaps longer by one factor, the whole log).
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from analyzers.simulate import simulate  # noqa: E402
from analyzers.simulation.result import Simulation  # noqa: E402
from analyzers.simulation.setting import server_of  # noqa: E402
from traces.requestlogs.base import LogOptions  # noqa: E402
from traces.requestlogs.registry import read_request_log  # noqa: E402

LOGS = ROOT.parent / "shared" / "data" / "workloads"
NAMES = {"code": "AzureLLMInferenceTrace_code_2023.csv", "chat": "AzureLLMInferenceTrace_conv_2023.csv"}
PAPER = {"code": (0.76, 0.65), "chat": (0.29, 0.17)}
BASE: dict[str, Any] = {"model": "llama-13b", "gpu": "L40S", "minutes": 30}
GAP_S = 6.0
NS = 1e9
# What the paper does not state, and what it is varied to.
VARIED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("efficiency 0.4", {"efficiency": 0.4}),
    ("efficiency 0.8", {"efficiency": 0.8}),
    ("no host time per step", {"host_overhead_us": 0}),
    ("2 ms of host time per step", {"host_overhead_us": 2_000}),
    ("8,192 tokens per step", {"max_num_batched_tokens": 8_192}),
    ("512 tokens per step", {"max_num_batched_tokens": 512}),
    ("8 requests at a time", {"max_num_seqs": 8}),
    ("longer than 2,048: refused", {"max_model_len": 2_048}),
    ("longer than 2,048: prompt cut", {"cut": 2_048}),
    ("longer than 4,096: prompt cut", {"cut": 4_096}),
    ("two devices a server", {"tensor_parallel": 2}),
    ("sensor sees half of busy time", {"active_percent": 10.0}),
    ("busy at 250 W", {"active_watts": 250}),
    ("another seed", {"seed": 1}),
    ("dealt in turn", {"route": "round-robin"}),
)


def log_of(folder: Path, name: str) -> pl.DataFrame:
    """Planned requests of an Azure log."""
    return read_request_log(folder / NAMES[name], LogOptions()).frame


def gap_of(frame: pl.DataFrame, pool: int, minutes: float, seed: int = 0) -> float:
    """Median over servers of their median gap, seconds; dealt as the simulator does it."""
    times = frame["arrival_ns"].to_numpy()
    times = times[times < minutes * 60 * NS]
    chosen = np.random.default_rng(seed).integers(pool, size=len(times))
    gaps = [np.diff(times[chosen == server]) for server in range(pool)]
    return float(np.median([np.median(each) for each in gaps if len(each)])) / NS


def pool_of(frame: pl.DataFrame, gap_s: float) -> int:
    """The least number of servers that the log has to be divided over for this median gap."""
    low, high = 1, 2
    while gap_of(frame, high, BASE["minutes"]) < gap_s:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if gap_of(frame, middle, BASE["minutes"]) >= gap_s else (middle, high)
    return high


def mean_pool_of(frame: pl.DataFrame, gap_s: float) -> int:
    """The number of servers with this mean gap."""
    times = frame["arrival_ns"].to_numpy()
    span_s = BASE["minutes"] * 60
    return round(gap_s * float((times < span_s * NS).sum()) / span_s)


def thinned(frame: pl.DataFrame, gap_s: float, words: dict[str, Any], *, mean: bool = False) -> Simulation:
    """Over as many servers as give this median (or mean) gap."""
    words = dict(words)
    cut, percent = words.pop("cut", None), words.pop("active_percent", None)
    pool = mean_pool_of(frame, gap_s) if mean else pool_of(frame, gap_s)
    if cut is not None:
        most = (pl.lit(cut) - pl.col("output_tokens")).clip(1)
        frame = frame.with_columns(input_tokens=pl.min_horizontal("input_tokens", most))
    of = server_of({**BASE, "pool": pool, **words})
    if percent is not None:
        of = replace(of, setting=replace(of.setting, active_percent=percent))
    return simulate(of, frame)


def stretched(frame: pl.DataFrame, gap_s: float) -> Simulation:
    """One server, the whole log."""
    median = float(np.median(np.diff(frame["arrival_ns"].to_numpy()))) / NS
    longer = frame.with_columns((pl.col("arrival_ns") * (gap_s / median)).cast(pl.Int64))
    return simulate(server_of({**BASE, "minutes": None}), longer)


def row(log: str, what: str, found: Simulation) -> dict[str, Any]:
    """What is printed of one simulation."""
    every, long = found.execution_idle
    latency = {item.term: item for item in found.latency}
    requests = found.counts.requests
    return {
        "log": log, "what": what, "servers": found.pool, "requests": requests,
        "refused": found.counts.refused,
        "median_gap_s": None if found.median_gap_ns is None else found.median_gap_ns / NS,
        "mean_gap_s": found.pool * found.window_ns / NS / requests,
        "busy": found.time.busy_ns / found.time.window_ns,
        "time": every.time_share, "energy": every.energy_share, "time_5s": long.time_share,
        "energy_5s": long.energy_share, "e2e_p95_s": (latency["e2e"].p95_ns or 0) / NS,
        "paper_time": PAPER[log][0], "paper_energy": PAPER[log][1],
    }  # fmt: skip


def shown(item: dict[str, Any]) -> str:
    """A line of the table."""
    return (
        f"| {item['log']} | {item['what']} | {item['servers']} | {item['requests']:,} | {item['median_gap_s']:.1f} | "
        f"{item['mean_gap_s']:.1f} | {100 * item['busy']:.1f} | {100 * item['time']:.1f} "
        f"({100 * (item['time'] - item['paper_time']):+.1f}) | {100 * item['energy']:.1f} "
        f"({100 * (item['energy'] - item['paper_energy']):+.1f}) | {100 * item['time_5s']:.1f} | {item['e2e_p95_s']:.2f} |"
    )


def main() -> None:
    """Print one table; the base first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=LOGS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    print("| log | what | servers | requests | median gap s | mean gap s | busy % | idle time % (− paper) | "
          "idle energy % (− paper) | 5 s: time % | E2E p95 s |")  # fmt: skip
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    for log in NAMES:
        frame = log_of(given.logs, log)
        found = [(f"thinned, {gap_s:g} s", thinned(frame, gap_s, {})) for gap_s in (4.0, GAP_S, 8.0)]
        found += [(f"stretched, {gap_s:g} s", stretched(frame, gap_s)) for gap_s in (4.0, GAP_S, 8.0)]
        found += [
            (f"thinned, mean gap {gap_s:g} s", thinned(frame, gap_s, {}, mean=True)) for gap_s in (4.0, GAP_S, 8.0)
        ]
        found += [(f"thinned, {GAP_S:g} s, {what}", thinned(frame, GAP_S, words)) for what, words in VARIED]
        for what, simulation in found:
            rows.append(row(log, what, simulation))
            print(shown(rows[-1]), flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
