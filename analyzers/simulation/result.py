"""What a simulation says. Times in ns, shares of 1; unknown is None."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import polars as pl

SIMULATION_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTime:
    """window = busy + host + tool_wait + no_work, exactly; of several servers, the sums."""

    window_ns: int
    busy_ns: int
    host_ns: int  # between the steps of waiting requests
    tool_wait_ns: int  # every open session of the server waits for a tool
    no_work_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionIdle:
    """Seconds with the device busy under 5 %, in runs of at least `min_duration_s`."""

    min_duration_s: int  # 1: every such second
    seconds: int  # all whole seconds
    idle_seconds: int
    time_share: float | None
    energy_share: float | None  # None: power is not known
    intervals: int
    p50_s: float | None
    p90_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Of finished requests; percentiles by linear interpolation."""

    term: str  # 'queue' | 'ttft' | 'tpot' | 'e2e'
    n: int
    p50_ns: float | None
    p90_ns: float | None
    p95_ns: float | None
    p99_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSummary:
    """One server of the pool."""

    server: int
    requests: int
    median_gap_ns: float | None  # between arrivals
    time: DeviceTime
    idle_seconds: int  # of any length
    idle_seconds_5: int  # in runs of 5 s
    steps: int
    preemptions: int
    peak_kv_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Running requests per step, weighted by busy time."""

    mean: float | None
    p50: int | None
    p99: int | None
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The same with another share of the roof reached."""

    efficiency: float
    busy_share: float
    idle_time_share: float | None  # execution-idle, every second
    idle_energy_share: float | None
    idle_time_share_5: float | None  # runs of 5 s
    idle_energy_share_5: float | None
    ttft_p50_ns: float | None
    e2e_p95_ns: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Requests and tokens. requests = finished + refused + not_started."""

    requests: int
    finished: int
    refused: int  # prompts that no server takes
    not_started: int  # turns that would begin after the window
    left_out: int  # arrive after the window; not among the requests
    prompt_tokens: int  # of finished requests; prompt = prefilled + cached
    prefilled_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    decoded_tokens: int  # all output but each request's first token, which comes with its prompt
    output_tokens: int
    preemptions: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A pool under a log."""

    version: int = SIMULATION_VERSION
    model: str
    device: str
    tensor_parallel: int
    dtype: str
    pool: int
    setting: dict[str, Any]
    kv_capacity_tokens: int
    weights_bytes: float
    window_ns: int
    counts: Counts
    time: DeviceTime
    execution_idle: tuple[ExecutionIdle, ...]
    mean_power_w: float | None  # of one server
    latency: tuple[Latency, ...]
    prompt_tokens_per_s: float  # of the pool, finished requests
    output_tokens_per_s: float
    batch: Batch
    mean_kv_share: float | None  # of busy time
    peak_kv_share: float
    median_gap_ns: float | None  # between arrivals; the middle server's
    mean_gap_ns: float
    servers: tuple[ServerSummary, ...]
    sensitivity: tuple[Sensitivity, ...]
    notes: tuple[str, ...]
    requests: pl.DataFrame = field(repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; without the single requests."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "requests"}
        return {name: _plain(value) for name, value in plain.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return asdict(value) if hasattr(value, "__dataclass_fields__") else value
