"""A simulation for a terminal."""

from __future__ import annotations

from collections.abc import Callable

from analyzers.report.text import DASH, count, duration, percent, share, shown, table
from analyzers.simulation.result import DeviceTime, Simulation
from traces.clock import NS_PER_S

_TERMS = {"queue": "queue", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
_DURATIONS = {1: "any length", 5: "5 s or longer"}
LIMITS = (
    "a simulated second counts as active where steps fill 5 % of it. A sensor shows less: kernels leave part of the "
    "device idle within a step, so that real seconds fall below 5 % earlier, and links are not simulated"
)


def simulate_lines(found: Simulation, limit: int = 20) -> list[str]:
    """All tables, top to bottom; of the servers, the first `limit`."""
    sections: tuple[Callable[[Simulation], list[str]], ...] = (_time, _states, _latency, _load, _sensitivity)
    lines = _head(found)
    for section in sections:
        part = section(found)
        lines += ["", *part] if part else []
    if found.pool > 1:
        lines += ["", *_servers(found, limit)]
    return [*lines, "", *(f"note: {shown(note, 400)}" for note in (*found.notes, LIMITS))]


def _head(found: Simulation) -> list[str]:
    setting, each = found.setting, "" if found.tensor_parallel == 1 else f", {found.tensor_parallel} devices each"
    servers = "1 server" if found.pool == 1 else f"{found.pool} servers"
    length = (
        "no limit of length" if setting["max_model_len"] is None else f"at most {setting['max_model_len']:,} tokens"
    )
    counts = found.counts
    done = f"{counts.finished:,} of {counts.requests:,} requests in {duration(found.window_ns)}"
    return [
        f"Simulated, nothing measured: {shown(found.model, 60)} ({found.dtype}) on {found.device}, {servers}{each}",
        f"  {done}; a server gets one every {duration(found.mean_gap_ns)}, median gap {duration(found.median_gap_ns)}",
        (
            f"  step time: roof time / {setting['efficiency']:g}, and {duration(setting['host_ns'])} of host time per step; "
            f"{counts.steps:,} steps"
        ),
        (
            f"  up to {setting['max_num_batched_tokens']:,} tokens and {setting['max_num_seqs']:,} requests per step, "
            f"{length}"
        ),
        f"  weights {found.weights_bytes / 1e9:.1f} GB of a device, cache {found.kv_capacity_tokens:,} tokens of a server",
    ]


def _time(found: Simulation) -> list[str]:
    whole: DeviceTime = found.time
    parts = (
        ("busy", whole.busy_ns, "a step runs"),
        ("host", whole.host_ns, "idle between the steps of waiting requests"),
        ("tool_wait", whole.tool_wait_ns, "idle, every open session waits for a tool"),
        ("no_work", whole.no_work_ns, "idle, no request"),
    )
    rows = [
        [name, f"{duration(ns)}", percent(share(ns, whole.window_ns)), f"  {meaning}"] for name, ns, meaning in parts
    ]
    return ["time of all servers: window = busy + idle", *_left_last(["", "time", "share", "  "], rows)]


def _left_last(header: list[str], rows: list[list[str]]) -> list[str]:
    """A table whose last column is text."""
    width = max(len(row[-1]) for row in [header, *rows])
    return table(header, [[*row[:-1], row[-1].ljust(width)] for row in rows])


def _states(found: Simulation) -> list[str]:
    rows = [
        [
            _DURATIONS[item.min_duration_s], count(item.idle_seconds), percent(item.time_share),
            percent(item.energy_share), count(item.intervals), _seconds(item.p50_s), _seconds(item.p90_s),
        ]
        for item in found.execution_idle
    ]  # fmt: skip
    header = ["idle intervals of", "seconds", "of time", "of energy", "intervals", "p50", "p90"]
    lines = [f"execution-idle at 1 Hz: busy under 5 % of a second, of {count(found.execution_idle[0].seconds)} seconds"]
    lines += table(header, rows)
    idle_w, active_w = found.setting["idle_w"], found.setting["active_w"]
    if found.mean_power_w is None:
        return [*lines, "  energy withheld: the power of the idle device is not known"]
    return [
        *lines,
        f"  power of a device: {idle_w:g} W idle, {active_w:g} W while busy; {found.mean_power_w:.0f} W of a server on average",
    ]


def _latency(found: Simulation) -> list[str]:
    rows = [
        [
            _TERMS[item.term], duration(item.p50_ns), duration(item.p90_ns), duration(item.p95_ns),
            duration(item.p99_ns), count(item.n),
        ]
        for item in found.latency
    ]  # fmt: skip
    return ["latency in the engine", *table(["", "p50", "p90", "p95", "p99", "n"], rows)]


def _load(found: Simulation) -> list[str]:
    counts, batch = found.counts, found.batch
    lines = [
        "load",
        f"  {found.prompt_tokens_per_s:,.0f} prompt and {found.output_tokens_per_s:,.0f} output tokens/s of the pool",
        f"  prompt tokens: {counts.prefilled_tokens:,} computed, {counts.cached_tokens:,} found in the cache",
        (
            f"  running requests in busy time: mean {_number(batch.mean)}, p50 {count(batch.p50)}, p99 {count(batch.p99)}, "
            f"most {batch.most}"
        ),
        f"  cache in use in busy time: mean {percent(found.mean_kv_share)}, peak {percent(found.peak_kv_share)}",
    ]
    if counts.preemptions:
        lines.append(f"  {counts.preemptions:,} preemptions, {counts.recomputed_tokens:,} tokens computed again")
    return lines


def _sensitivity(found: Simulation) -> list[str]:
    rows = [
        [
            f"{item.efficiency:g}", percent(item.busy_share), percent(item.idle_time_share),
            percent(item.idle_energy_share), percent(item.idle_time_share_5), percent(item.idle_energy_share_5),
            duration(item.ttft_p50_ns), duration(item.e2e_p95_ns),
        ]
        for item in found.sensitivity
    ]  # fmt: skip
    header = ["efficiency", "busy", "idle time", "energy", "5 s: time", "energy", "TTFT p50", "E2E p95"]
    return ["if another share of the roof is reached", *table(header, rows)] if rows else []


def _servers(found: Simulation, limit: int) -> list[str]:
    rows = [
        [
            str(item.server), count(item.requests), duration(item.median_gap_ns),
            percent(share(item.time.busy_ns, item.time.window_ns)), _of(item.idle_seconds, found),
            _of(item.idle_seconds_5, found), count(item.steps), percent(item.peak_kv_share), count(item.preemptions),
        ]
        for item in found.servers[:limit]
    ]  # fmt: skip
    header = ["server", "requests", "median gap", "busy", "idle at 1 Hz", "5 s", "steps", "cache peak", "preempted"]
    lines = ["servers", *table(header, rows)]
    more = len(found.servers) - limit
    return [*lines, f"  and {more:,} more: --limit, --json"] if more > 0 else lines


def _of(seconds: int, found: Simulation) -> str:
    return percent(share(seconds, found.window_ns // NS_PER_S))


def _seconds(value: float | None) -> str:
    return DASH if value is None else f"{value:.0f} s"


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.2f}"
