"""What `idle` says about a run: totals, causes, sizes, the worst pieces, and what would hide them. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from traces.errors import NothingToAnalyze
from traces.health import withheld
from traces.store import TraceStore

IDLE_VERSION = 1
GROUPS = ("cause", "step-kind", "size")
# What has to go for the device not to wait, per cause: for a host cause that is work of the launching thread or of the
# engine core, as much of it as there is idle time, removed or overlapped with the device's work.
HIDING: dict[str, tuple[str, str]] = {
    "no_work": ("load", "nothing was asked: send more work here, or run fewer devices"),
    "tool_wait": ("load", "sessions wait for their tools: serve more sessions at once, or make the tools faster"),
    "frontend": ("host", "requests come in through HTTP, tokenizer and IPC: more API server processes, or token ids as input"),
    "scheduler": ("host", "the engine core schedules while the device waits: asynchronous scheduling, fewer and larger steps"),
    "host_prepare": ("host", "inputs are prepared between forward passes: asynchronous scheduling, fewer requests per step"),
    "host_launch": ("host", "the thread cannot launch fast enough: CUDA graphs, compilation (fewer and larger kernels), a faster CPU core"),
    "sampling_output": ("host", "sampling and taking in results: asynchronous output processing, cheaper sampling parameters"),
    "sync": ("host", "the thread waits for the device before it launches on: remove the synchronization, or launch ahead of it"),
    "memcpy": ("host", "the thread waits for a copy: pinned memory and asynchronous copies"),
    "host_other": ("host", "the thread does something no recorded range names: record with stacks to see what"),
    "launch_latency": ("device", "a launched activity takes this long to begin: fewer kernels (fusion), or graphs"),
    "dependency": ("device", "launched work waits for other streams, events or copies: look at what it waits for"),
    "comm_wait": ("device", "a collective waits for other ranks: balance the ranks"),
    "unknown": ("unknown", "the launching thread is not recorded here: record with host activities"),
    "not analyzed": ("unknown", "the run was linked only: run `stepscope analyze`"),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleReport:
    """Idle time of a run; times in ns, shares 0..1, unknown and withheld is None.

    `devices`: window = busy + idle + unrecorded. `groups`: sql/idle_by.sql with `share` of the devices' windows.
    `sizes`: sql/idle_sizes.sql. `worst`: sql/idle_worst.sql. `hiding`: a row per cause: who has to do less ('host', 'device',
    'load'), `per_step_ns`, the evidence that makes up most of it, and the remedy. `withheld`: number → why.
    """

    version: int = IDLE_VERSION
    by: str
    min_ns: int
    devices: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    sizes: list[dict[str, Any]]
    worst: list[dict[str, Any]]
    hiding: list[dict[str, Any]]
    withheld: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def read_idle(store: TraceStore, *, by: str = "cause", min_ns: int = 0, limit: int = 10) -> IdleReport:
    """Idle time of the store's run; pieces shorter than `min_ns` count in `devices` only.

    Raises NothingToAnalyze where the run has no device.
    """
    reasons = {key: why for key, why in withheld(store.connection, store.run_id).items() if key in _OURS}
    devices = store.query(
        "SELECT rank, device, name, window_end_ns - window_start_ns AS window_ns, busy_ns, idle_ns, unrecorded_ns FROM devices "
        "WHERE run_id = ? ORDER BY rank, device", [store.run_id],
    ).to_dicts()  # fmt: skip
    if not devices:
        raise NothingToAnalyze("no device in this run", hint="see `stepscope health` for what the recording holds")
    window_ns = sum(row["window_ns"] for row in devices)
    gone = {name for name in ("busy_ns", "idle_ns") if f"devices.{name}" in reasons or "devices" in reasons}
    trusted = not gone and "gaps" not in reasons
    sizes = store.named("idle_sizes", "analyzers", min_ns=min_ns).to_dicts()
    groups = sizes if by == "size" else _groups(store, by, min_ns)
    return IdleReport(
        by=by,
        min_ns=min_ns,
        devices=[{key: None if key in gone else value for key, value in row.items()} for row in devices],
        groups=[row | {"share": _share(row["ns"], window_ns if trusted else None)} for row in groups],
        sizes=sizes,
        worst=store.named("idle_worst", "analyzers", min_ns=min_ns, limit=limit).to_dicts(),
        hiding=_hiding(store, min_ns),
        withheld=reasons,
    )


_OURS = ("devices", "devices.idle_ns", "devices.busy_ns", "gaps")


def _share(ns: int, window_ns: int | None) -> float | None:
    return ns / window_ns if window_ns else None


def _groups(store: TraceStore, by: str, min_ns: int) -> list[dict[str, Any]]:
    """Rows of sql/idle_by.sql, the largest first."""
    rows = store.named("idle_by", "analyzers", by=by, min_ns=min_ns)
    return rows.sort(["ns", "name"], descending=[True, False]).to_dicts()


def _hiding(store: TraceStore, min_ns: int) -> list[dict[str, Any]]:
    work = store.named("idle_work", "analyzers", min_ns=min_ns).to_dicts()
    rows = []
    for total in _groups(store, "cause", min_ns):
        cause = total["name"]
        evidence = [row for row in work if row["cause"] == cause]
        steps = evidence[0]["steps"] if evidence else 0
        who, remedy = HIDING.get(cause, HIDING["unknown"])
        rows.append({
            "cause": cause, "who": who, "ns": total["ns"], "per_step_ns": round(total["ns"] / steps) if steps else None, "remedy": remedy,
            "evidence": [{"what": row["evidence"], "pieces": row["pieces"], "ns": row["ns"]} for row in evidence],
        })  # fmt: skip
    return rows
