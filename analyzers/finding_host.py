"""Findings of a host that cannot keep its device busy: graphs off, steps outside graphs, launches, work between steps."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from analyzers.finding import Finding
from analyzers.finding_basis import Basis, counted, finding, gain_between, waits_enough
from analyzers.finding_limits import GRAPH_GAP_NS, MOST_GRAPH_GAP_NS
from analyzers.finding_recording import with_cost_of_recording

_READ = ("gaps", "gaps.cause", "devices.idle_ns", "steps.idle_ns", "steps.kind")
_GAPS = (
    "SELECT s.step_id, s.kind, s.graph_mode, s.n_kernels, s.busy_ns, g.cause, count(*) AS gaps, sum(g.dur_ns)::BIGINT AS explained_ns "
    "FROM gaps AS g JOIN steps AS s ON s.run_id = g.run_id AND s.step_id = g.step_after WHERE g.run_id = $run_id "
    "AND s.trusted IS NOT false AND s.busy_ns > 0 AND {where} GROUP BY ALL ORDER BY explained_ns DESC"
)
_LAUNCH = "g.cause IN ('host_launch', 'launch_latency')"


def of_host(run: Basis) -> Iterator[Finding]:
    """Nothing on a CPU engine, where host and device are one, or where idle time is withheld."""
    if not run.on_gpu or not run.trusts(*_READ) or run.work_ns <= 0:
        return
    steps = run.rows("finding_host")
    if not steps.height:
        return
    for made in (_decode_launches, _prompt_launches, _between):
        yield from (with_cost_of_recording(run, each) for each in made(run, steps))


def _decode_launches(run: Basis, steps: pl.DataFrame) -> Iterator[Finding]:
    """Decode steps whose kernels are launched one by one: a graph takes the waits between them away, but for a rest."""
    decode = steps.filter(pl.col("kind") == "decode")
    outside = decode.filter(pl.col("graph_mode") == "none")
    waits, kernels, count = (int(outside[name].sum()) for name in ("launch_ns", "kernels", "steps"))
    if not waits_enough(waits, run.work_ns):
        return
    gain = gain_between(
        (waits - kernels * MOST_GRAPH_GAP_NS) / run.work_ns, (waits - kernels * GRAPH_GAP_NS) / run.work_ns,
        (waits + int(outside["prepare_ns"].sum())) / run.work_ns,
    )  # fmt: skip
    if gain is None:
        return
    covered = int(decode.filter(pl.col("graph_mode").is_in(["full", "piecewise"]))["steps"].sum())
    cause = (
        f"in {counted(count, 'decode step')} without a graph {kernels:,} kernels are launched one by one, and the device waits for the "
        "launches"
    )
    evidence = _GAPS.format(where=f"s.graph_mode = 'none' AND s.kind = 'decode' AND {_LAUNCH}")
    if covered:
        yield finding(
            run, "host.outside-graphs", "decode steps run outside graphs", f"{cause}; {covered} others run in graphs",
            "capture their batch sizes too (vLLM: --max-cudagraph-capture-size, --cudagraph-capture-sizes; SGLang: "
            "--cuda-graph-max-bs), or keep batches below the largest captured one (--max-num-seqs; --max-running-requests)",
            evidence, gain=gain, whole_ns=run.work_ns, device_ns=waits,
        )  # fmt: skip
        return
    yield finding(
        run, "host.graphs-off", "decode waits for launches: graphs are off", cause,
        "let the engine capture graphs (vLLM: no --enforce-eager, --compilation-config with cudagraph_mode; SGLang: no "
        "--disable-cuda-graph)",
        evidence, gain=gain, whole_ns=run.work_ns, device_ns=waits,
        proof=run.proof(without=("enforce-eager", "disable-cuda-graph")),
    )  # fmt: skip


def _prompt_launches(run: Basis, steps: pl.DataFrame) -> Iterator[Finding]:
    """Prefill and mixed steps. A piecewise graph leaves attention outside: between half and all of the waits go away."""
    rows = steps.filter(pl.col("kind").is_in(["prefill", "mixed"]) & (pl.col("graph_mode") == "none"))
    waits, kernels, count = (int(rows[name].sum()) for name in ("launch_ns", "kernels", "steps"))
    if not waits_enough(waits, run.work_ns):
        return
    share = waits / run.work_ns
    yield finding(
        run, "host.launches", "steps with prompts wait for launches",
        f"in {counted(count, 'step')} with prompts {kernels:,} kernels are launched one by one, and the device waits for the launches",
        "piecewise graphs for more tokens (vLLM: no --enforce-eager, --max-cudagraph-capture-size; SGLang: "
        "--enable-piecewise-cuda-graph), fewer kernels (vLLM: -O3; SGLang: --enable-torch-compile), more prompt tokens per step "
        "(--max-num-batched-tokens; --chunked-prefill-size)",
        _GAPS.format(where=f"s.graph_mode = 'none' AND s.kind IN ('prefill', 'mixed') AND {_LAUNCH}"),
        gain=gain_between(share / 2, 0.75 * share, share), whole_ns=run.work_ns, device_ns=waits,
        proof=run.proof(without=("enforce-eager",)),
    )  # fmt: skip


def _between(run: Basis, steps: pl.DataFrame) -> Iterator[Finding]:
    """Scheduling and output between steps, and launches around a graph, which can run beside the device: of each step no
    more than it is busy. At least half of the launches; at most preparing the next step as well."""
    if run.facts.get("async_scheduling") is True or run.window_ns <= 0:
        return
    least, most, waits = (int(steps[name].sum()) for name in ("overlap_ns", "overlap_most_ns", "around_ns"))
    if not waits_enough(least, run.work_ns):
        return
    low, high = least / run.window_ns, most / run.window_ns
    yield finding(
        run, "host.between-steps", "the device waits for the host between steps",
        f"scheduling, launching, sampling and output of {counted(int(steps['steps'].sum()), 'step')} run while the device is idle, for "
        f"{waits / run.window_ns:.0%} of the window; {low:.0%} to {high:.0%} could run while it is busy",
        "schedule the next step while this one runs (vLLM: --async-scheduling; SGLang: no --disable-overlap-schedule); where that is "
        "on already the host is too slow: larger batches, faster cores of its own, fewer logprobs, stop strings and grammars",
        _GAPS.format(where="(g.cause IN ('scheduler', 'sampling_output', 'sync', 'host_prepare') "
                     "OR g.cause IN ('host_launch', 'launch_latency') AND s.graph_mode IN ('full', 'piecewise'))"),
        gain=gain_between(low, (low + high) / 2, high, "window"), whole_ns=run.window_ns, device_ns=waits,
    )  # fmt: skip
