"""Everything a page shows of a run, as values. Numbers are those of the reading commands: the same functions give them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import polars as pl

from analyzers import readings
from analyzers.agents_reading import AgentsReport, read_agents
from analyzers.datasheet import called, flops_of
from analyzers.energy_reading import EnergyQuestion, EnergyReport, read_energy
from analyzers.findings import FindingsReport, read_findings
from analyzers.hardware import calibration_of, main_dtype
from analyzers.idle_reading import IdleReport, read_idle
from analyzers.report_budget import Budget, read_budget
from analyzers.report_timeline import Timeline, read_timeline, roofline_points
from analyzers.requests import ALL_PASSES, RequestsReport, Selection, read_requests
from analyzers.roofline_reading import read_rooflines
from analyzers.summary import Summary, summarize
from traces.errors import NothingToAnalyze, StepscopeError
from traces.health import withheld
from traces.store import TraceStore

T = TypeVar("T")
REPORT_VERSION = 1
MOST_KERNELS = 500  # names of their own in the table; the rest is one row
_SLOWEST = 10
# Facts of the engine and the model that a page may show; what an environment or a prompt held never gets there.
_ENGINE_FACTS = (
    "block_size", "num_blocks", "enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs", "max_model_len",
    "enable_chunked_prefill", "async_scheduling", "cudagraph_mode", "enforce_eager", "tensor_parallel_size",
    "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel", "kv_cache_dtype", "quantization",
)  # fmt: skip
_MODEL_FACTS = (
    "model_type", "num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size",
    "intermediate_size", "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok", "sliding_window",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofs:
    """Lines of a roofline. `source`: 'calibrated' | 'user' | 'datasheet'. FLOP/s and bytes/s. `used`: bounds come from it."""

    source: str
    device: str | None
    peak_flops: float
    peak_bandwidth: float
    used: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """`by_kernel` and `by_category`: as `roofline --by … --json`. `steps`: points (report_timeline.roofline_points)."""

    by_kernel: dict[str, Any]
    by_category: dict[str, Any]
    steps: list[dict[str, Any]]
    roofs: list[Roofs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run. A section without data is None and has its reason in `missing` (section → what to do)."""

    version: int = REPORT_VERSION
    run_id: str
    summary: Summary
    health: list[dict[str, Any]]
    findings: FindingsReport
    budget: Budget | None
    roofline: Roofline | None
    timeline: Timeline | None
    phases: dict[str, Any]
    idle: IdleReport | None
    energy: EnergyReport | None
    agents: AgentsReport | None
    requests: RequestsReport | None
    request_rows: pl.DataFrame
    kernels: list[dict[str, Any]]
    facts: dict[str, list[tuple[str, str]]]
    sources: list[dict[str, Any]]
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def several_devices(self) -> bool:
        """Whether it matters which device a row is of."""
        return len(self.summary.devices) > 1


def read_report(store: TraceStore) -> Report:
    """All values of a page. Raises NothingToAnalyze where the run has neither devices nor steps nor requests nor sensors."""
    if not _holds_anything(store):
        raise NothingToAnalyze(
            "the run holds no kernels, steps, requests or sensor samples",
            hint="see `stepscope info` and `stepscope health` for what it holds",
        )
    missing: dict[str, str] = {}
    reasons = withheld(store.connection, store.run_id)
    idle = _tried("idle", missing, lambda: read_idle(store))
    requests = _tried("requests", missing, lambda: read_requests(store, Selection(slowest=_SLOWEST)))
    timeline = read_timeline(store, reasons)
    roofline = _tried("roofline", missing, lambda: _roofline(store, timeline))
    report = Report(
        run_id=store.run_id, summary=summarize(store), health=readings.health(store).to_dicts(), findings=read_findings(store),
        budget=read_budget(store, [] if idle is None else idle.groups, reasons), roofline=roofline, timeline=timeline,
        phases=readings.phases(store), idle=idle, energy=_tried("energy", missing, lambda: read_energy(store, EnergyQuestion())),
        agents=_tried("agents", missing, lambda: read_agents(store)), requests=requests,
        request_rows=_request_rows(store, requests), kernels=_kernels(store, roofline), facts=_facts(store),
        sources=store.query(
            "SELECT name, role, format, bytes, rank, events, left(sha256, 12) AS sha256, truncated FROM sources WHERE run_id = ? "
            "ORDER BY src", [store.run_id],
        ).to_dicts(), missing=missing,
    )  # fmt: skip
    _say_missing(report, reasons)
    return report


def _holds_anything(store: TraceStore) -> bool:
    tables = ("kernels", "steps", "requests", "telemetry", "devices")
    return any(store.query(f"SELECT 1 FROM {name} WHERE run_id = ? LIMIT 1", [store.run_id]).height for name in tables)


def _tried(section: str, missing: dict[str, str], read: Callable[[], T]) -> T | None:
    """What a reading gives; where it says that there is nothing, its reason goes to `missing`."""
    try:
        return read()
    except StepscopeError as error:
        missing[section] = error.message + (f": {error.hint}" if error.hint else "")
        return None


def _say_missing(report: Report, reasons: dict[str, str]) -> None:
    """A reason for every other section that has nothing to show."""
    missing = report.missing
    if report.budget is None:
        missing["budget"] = (
            "no device has a recorded window" if not report.summary.devices
            else "the device tables contradict each other: ingest the recording again"
        )  # fmt: skip
    if report.timeline is None:
        missing["timeline"] = reasons.get("steps") or (
            "no steps were found: the engine wrote no labels, and nothing else in the recording shows where a step begins"
        )
    if not report.phases["totals"] and not report.phases["kinds"]:
        missing["phases"] = "no steps with device time were found in this recording"
    if not report.kernels:
        missing["kernels"] = "no device activity was recorded"
    if report.energy is not None and not report.energy.devices:
        missing["energy"] = report.energy.withheld.get("energy") or (
            "no power was sampled: `stepscope profile` does, or ingest an nvidia-smi, DCGM or Prometheus log with the trace"
        )
    if not report.findings.findings:
        missing["findings"] = (
            "nothing was found whose predicted gain is at least 1 % with an interval that leaves zero out"
            + (", of what could be looked at" if report.findings.not_looked_at else "")
        )


def _roofline(store: TraceStore, timeline: Timeline | None) -> Roofline:
    by_kernel, by_category = read_rooflines(store, ("kernel", "category"))
    return Roofline(
        by_kernel=by_kernel, by_category=by_category,
        steps=[] if timeline is None else roofline_points(timeline.rows), roofs=_roofs(store),
    )  # fmt: skip


def _roofs(store: TraceStore) -> list[Roofs]:
    """The roof that bounds come from, and the other one of measurement and datasheet where both are known."""
    rows = store.query(
        "SELECT name, peak_flops, peak_bandwidth, peak_source FROM devices WHERE run_id = ? AND peak_flops > 0 "
        "AND peak_bandwidth > 0 ORDER BY rank, device LIMIT 1", [store.run_id],
    ).to_dicts()  # fmt: skip
    found: list[Roofs] = []
    for row in rows:
        name, used = row["name"], row["peak_source"] or "user"
        dtype = main_dtype(store.connection, store.run_id)
        found.append(
            Roofs(
                source=used, device=name, peak_flops=row["peak_flops"], peak_bandwidth=row["peak_bandwidth"], used=True
            )
        )
        measured, sheets = calibration_of(store.connection, store.run_id), called(name)
        other: list[tuple[str, float | None, float | None]] = []
        if measured is not None and dtype is not None:
            other.append(("calibrated", measured.peak_flops(dtype), measured.peak_bandwidth))
        if len(sheets) == 1:
            other.append(("datasheet", flops_of(sheets[0], dtype), sheets[0].bandwidth))
        found += [
            Roofs(source=source, device=name, peak_flops=flops, peak_bandwidth=bandwidth, used=False)
            for source, flops, bandwidth in other if source != used and flops and bandwidth
        ]  # fmt: skip
    return found


def _request_rows(store: TraceStore, requests: RequestsReport | None) -> pl.DataFrame:
    if requests is None:
        return pl.DataFrame()
    every = requests.pass_name == ALL_PASSES
    return store.named(
        "report_requests", "analyzers", **{"every": every, "pass": None if every else requests.pass_name}
    )


def _kernels(store: TraceStore, roofline: Roofline | None) -> list[dict[str, Any]]:
    """Rows of `kernels` with the bounds of the same names; names beyond MOST_KERNELS as one row that keeps the sum."""
    rows = readings.kernels(store, "name").to_dicts()
    costs = {} if roofline is None else {(row["name"], row["category"]): row for row in roofline.by_kernel["rows"]}
    kept = []
    for row in rows[:MOST_KERNELS]:
        cost = costs.get((row["name"], row["category"]), {})
        kept.append(
            {**row, **{key: cost.get(key) for key in ("side", "bound", "roof_fraction", "intensity", "flops_per_s")}}
        )
    rest = rows[MOST_KERNELS:]
    if rest:
        sums = {key: sum(row[key] or 0 for row in rest) for key in ("activities", "busy_ns", "share")}
        empty: dict[str, Any] = dict.fromkeys(kept[0])
        kept.append({**empty, "name": f"({len(rest):,} more names: `stepscope kernels --csv`)", **sums})
    return kept


def _facts(store: TraceStore) -> dict[str, list[tuple[str, str]]]:
    """Plain facts of engine and model, by heading."""
    text = store.query("SELECT CAST(config AS VARCHAR) AS config FROM runs WHERE run_id = ?", [store.run_id])["config"][
        0
    ]
    config = json.loads(text) if text else {}
    found = {}
    for title, key, names in (("engine", "engine_facts", _ENGINE_FACTS), ("model", "model_config", _MODEL_FACTS)):
        part = config.get(key) if isinstance(config, dict) else None
        if isinstance(part, dict):
            found[title] = [
                (name, str(part[name])) for name in names if isinstance(part.get(name), str | int | float | bool)
            ]
    return {title: rows for title, rows in found.items() if rows}
