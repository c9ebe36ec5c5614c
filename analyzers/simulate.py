"""Idle time to expect of a pool of servers under a log of requests, with no device: arrivals against the cost model.

Each server is simulated step by step (simulation.machine). A step lasts its roof time divided by the efficiency, with a
fixed host time before it in which the device is idle. What this leaves out is in docs/simulate.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

import numpy as np
import polars as pl

from analyzers.simulation.arrays import Costs
from analyzers.simulation.idle import MIN_DURATIONS_S, Seconds, energy_share, idle_by_cause, sampled
from analyzers.simulation.pool import Plan, plan
from analyzers.simulation.result import (
    Batch,
    Counts,
    DeviceTime,
    ExecutionIdle,
    Latency,
    Sensitivity,
    ServerSummary,
    Simulation,
)
from analyzers.simulation.server import ServerRun, costs_of, serve
from analyzers.simulation.setting import Server, Setting
from traces.clock import NS_PER_S
from traces.errors import NothingToAnalyze, UsageProblem

MOST_SECONDS = 250_000_000  # a gigabyte
_TERMS = ("queue", "ttft", "tpot", "e2e")


def simulate(
    server: Server, frame: pl.DataFrame, *, block_tokens: int | None = None, efficiencies: Iterable[float] = (),
    notes: Iterable[str] = (),
) -> Simulation:  # fmt: skip
    """Replay `frame` (traces.requestlogs.base.PLANNED_COLUMNS) on a pool of `server`.

    `block_tokens`: of a hash id. `efficiencies`: run again with each of these, for the sensitivity.
    `notes`: what is to be said of the requests.
    Raises UsageProblem and NothingToAnalyze for requests that cannot be simulated.
    """
    work = plan(frame, server.setting, block_tokens)
    found = _simulated(server, work)
    rows = [_sensitivity(found, server.setting.efficiency)]
    for efficiency in efficiencies:
        if efficiency != server.setting.efficiency:
            other = replace(server, setting=replace(server.setting, efficiency=efficiency))
            rows.append(_sensitivity(_simulated(other, work), efficiency))
    rows.sort(key=lambda row: row.efficiency)
    return replace(found, sensitivity=tuple(rows) if len(rows) > 1 else (), notes=(*found.notes, *notes))


def _simulated(server: Server, work: Plan) -> Simulation:
    setting = server.setting
    runs = _served(work, costs_of(server.step_time, setting.efficiency), setting)
    window = max(run.end_ns for run in runs) if setting.window_ns is None else setting.window_ns
    power = None
    if setting.idle_w is not None and setting.active_w is not None:
        power = (setting.idle_w * server.tensor_parallel, setting.active_w * server.tensor_parallel)
    times = [_device_time(run, window) for run in runs]
    seconds = [sampled(run, window, power, setting.active_percent) for run in runs]
    requests = _requests(work, runs)
    counts = _counts(work, runs, requests)
    capacity = setting.kv_tokens // work.page_tokens
    total = _summed(times)
    gaps = [_median_gap(run) for run in runs]
    known = [gap for gap in gaps if gap is not None]
    span_s = window / NS_PER_S
    return Simulation(
        model=server.model, device=server.device, tensor_parallel=server.tensor_parallel, dtype=server.dtype,
        pool=setting.pool, setting=asdict(setting), kv_capacity_tokens=capacity * work.page_tokens,
        weights_bytes=server.weights_bytes, window_ns=window, counts=counts, time=total,
        execution_idle=tuple(_execution_idle(seconds, least) for least in MIN_DURATIONS_S),
        mean_power_w=None if power is None else power[0] + (power[1] - power[0]) * total.busy_ns / total.window_ns,
        latency=tuple(_latency(requests, term) for term in _TERMS),
        prompt_tokens_per_s=counts.prompt_tokens / span_s, output_tokens_per_s=counts.output_tokens / span_s,
        batch=_batch(runs), peak_kv_share=max(run.peak_pages for run in runs) / max(capacity, 1),
        mean_kv_share=None if not total.busy_ns else sum(run.pages_ns for run in runs) / total.busy_ns / max(capacity, 1),
        median_gap_ns=float(np.median(known)) if known else None,
        mean_gap_ns=total.window_ns / (counts.requests - counts.not_started),
        servers=tuple(
            _server(run, time, each, gap, capacity)
            for run, time, each, gap in zip(runs, times, seconds, gaps, strict=True)
        ),
        sensitivity=(), notes=(*server.notes, *_notes(server, work, counts)), requests=requests,
    )  # fmt: skip


def _served(work: Plan, costs: Costs, setting: Setting) -> list[ServerRun]:
    """All servers, one after another; they do not know of each other."""
    runs, seconds = [], 0
    for share in work.shares:
        runs.append(serve(share, costs, setting, page_tokens=work.page_tokens, block_tokens=work.block_tokens))
        seconds += len(runs[-1].busy_ns)
        if seconds > MOST_SECONDS:
            raise UsageProblem(
                f"more than {MOST_SECONDS:,} seconds of all servers would be kept",
                hint="give a smaller --pool, or --minutes",
            )
    if not any((run.finish_ns >= 0).any() for run in runs):
        raise NothingToAnalyze(
            "every request is longer than what a server takes",
            hint="give a larger --kv-tokens or --max-model-len, or a device with more memory",
        )
    return runs


def _device_time(run: ServerRun, window_ns: int) -> DeviceTime:
    causes = idle_by_cause(run, window_ns)
    return DeviceTime(
        window_ns=window_ns, busy_ns=run.device_ns, host_ns=causes["host"], tool_wait_ns=causes["tool_wait"],
        no_work_ns=causes["no_work"],
    )  # fmt: skip


def _summed(times: list[DeviceTime]) -> DeviceTime:
    return DeviceTime(**{name: sum(getattr(time, name) for time in times) for name in DeviceTime.__slots__})


def _requests(work: Plan, runs: list[ServerRun]) -> pl.DataFrame:
    """A row per request: server, arrival_ns, scheduled_ns, first_ns, finish_ns (null: never), tokens, preemptions."""
    parts = []
    for run in runs:
        columns = {
            "row": run.share.rows, "arrival_ns": run.arrival_ns, "scheduled_ns": run.scheduled_ns,
            "first_ns": run.first_ns, "finish_ns": run.finish_ns, "input_tokens": run.share.load.prompt,
            "output_tokens": run.share.load.output, "cached_tokens": run.cached, "preemptions": run.preempted,
        }  # fmt: skip
        parts.append(
            pl.DataFrame(columns).with_columns(server=pl.lit(run.share.server), refused=run.share.load.refused)
        )
    times = [pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name) for name in
             ("arrival_ns", "scheduled_ns", "first_ns", "finish_ns")]  # fmt: skip
    since = pl.col("arrival_ns")
    more = pl.col("output_tokens") - 1
    return pl.concat(parts).sort("row").with_columns(times).with_columns(
        queue_ns=pl.col("scheduled_ns") - since, ttft_ns=pl.col("first_ns") - since,
        tpot_ns=pl.when(more > 0).then((pl.col("finish_ns") - pl.col("first_ns")) / more),
        e2e_ns=pl.col("finish_ns") - since, index=work.frame["index"],
    )  # fmt: skip


def _counts(work: Plan, runs: list[ServerRun], requests: pl.DataFrame) -> Counts:
    done = requests.filter(pl.col("finish_ns").is_not_null())
    refused = int(requests.select((pl.col("refused") & pl.col("arrival_ns").is_not_null()).sum()).item())
    return Counts(
        requests=requests.height, finished=done.height, refused=refused,
        not_started=int(requests["arrival_ns"].null_count()), left_out=work.left_out,
        prompt_tokens=int(done["input_tokens"].sum()), prefilled_tokens=sum(run.prefilled for run in runs),
        cached_tokens=sum(int(run.cached.sum()) for run in runs), recomputed_tokens=sum(run.recomputed for run in runs),
        decoded_tokens=sum(run.decoded for run in runs), output_tokens=int(done["output_tokens"].sum()),
        preemptions=sum(int(run.preempted.sum()) for run in runs),
        steps=sum(run.steps for run in runs),
    )  # fmt: skip


def _execution_idle(seconds: list[Seconds], least: int) -> ExecutionIdle:
    runs = np.concatenate([each.runs[least] for each in seconds])
    count, idle = sum(each.count for each in seconds), sum(each.idle[least] for each in seconds)
    return ExecutionIdle(
        min_duration_s=least, seconds=count, idle_seconds=idle, time_share=idle / count if count else None,
        energy_share=energy_share(seconds, least), intervals=len(runs),
        p50_s=float(np.percentile(runs, 50)) if len(runs) else None,
        p90_s=float(np.percentile(runs, 90)) if len(runs) else None,
    )  # fmt: skip


def _latency(requests: pl.DataFrame, term: str) -> Latency:
    values = requests[f"{term}_ns"].drop_nulls().to_numpy()
    found = np.percentile(values, [50, 90, 95, 99]).tolist() if len(values) else [None] * 4
    return Latency(term=term, n=len(values), p50_ns=found[0], p90_ns=found[1], p95_ns=found[2], p99_ns=found[3])


def _batch(runs: list[ServerRun]) -> Batch:
    weights = np.zeros(max(len(run.batch_ns) for run in runs), dtype=np.int64)
    for run in runs:
        weights[: len(run.batch_ns)] += run.batch_ns
    total = int(weights.sum())
    if not total:
        return Batch(mean=None, p50=None, p99=None, most=0)
    below = np.cumsum(weights)
    p50, p99 = (int(np.searchsorted(below, share * total)) for share in (0.5, 0.99))
    mean = float((weights * np.arange(len(weights))).sum() / total)
    return Batch(mean=mean, p50=p50, p99=p99, most=int(np.flatnonzero(weights)[-1]))


def _median_gap(run: ServerRun) -> float | None:
    arrivals = np.sort(run.arrival_ns[run.arrival_ns >= 0])
    return float(np.median(np.diff(arrivals))) if len(arrivals) > 1 else None


def _server(run: ServerRun, time: DeviceTime, seconds: Seconds, gap: float | None, capacity: int) -> ServerSummary:
    return ServerSummary(
        server=run.share.server, requests=len(run.share.rows), median_gap_ns=gap, time=time,
        idle_seconds=seconds.idle[1], idle_seconds_5=seconds.idle[5], steps=run.steps,
        preemptions=int(run.preempted.sum()), peak_kv_share=run.peak_pages / max(capacity, 1),
    )  # fmt: skip


def _sensitivity(found: Simulation, efficiency: float) -> Sensitivity:
    every, long = found.execution_idle
    latency = {row.term: row for row in found.latency}
    return Sensitivity(
        efficiency=efficiency, busy_share=found.time.busy_ns / found.time.window_ns, idle_time_share=every.time_share,
        idle_energy_share=every.energy_share, idle_time_share_5=long.time_share,
        idle_energy_share_5=long.energy_share, ttft_p50_ns=latency["ttft"].p50_ns, e2e_p95_ns=latency["e2e"].p95_ns,
    )  # fmt: skip


def _notes(server: Server, work: Plan, counts: Counts) -> list[str]:
    """What the requests made necessary to assume or to leave out."""
    setting, notes = server.setting, []
    if counts.refused:
        limit = "max_model_len or " if setting.max_model_len else ""
        notes.append(f"{counts.refused:,} requests are refused: longer than {limit}the cache")
    if setting.max_model_len is None and server.longest is not None:
        over = int(work.frame.select((pl.col("input_tokens") + pl.col("output_tokens") > server.longest).sum()).item())
        if over:
            notes.append(
                f"{over:,} of {counts.requests:,} requests are longer than the {server.longest:,} tokens {server.model} was "
                f"made for, and are served all the same; an engine refuses them: --max-model-len {server.longest}"
            )
    if work.cut:
        notes.append(f"{work.cut:,} outputs end at max_model_len")
    if work.left_out or counts.not_started:
        notes.append(f"{work.left_out + counts.not_started:,} requests would start after the window, and are left out")
    if work.single:
        notes.append(f"{work.single:,} outputs of 0 tokens are taken as 1")
    if work.unknown_waits:
        notes.append(f"{work.unknown_waits:,} turns follow at once: the log knows neither tool nor think time")
    if not work.block_tokens and setting.prefix_caching:
        notes.append("prefix caching has nothing to go by: the log does not say what prompts have in common")
    return notes
