"""Kinds of causes that could not be looked for in a run, why, and the command that mends it: no finding is no all-clear.

What each kind needs is what its makers ask for: costs and peaks, a model, idle time, steps and phases, a step ledger,
requests, sensors. Nothing here changes a finding; it only tells what their absence does not mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from analyzers.finding_basis import Basis, basis, counted
from analyzers.finding_limits import LEAST_CLASS
from analyzers.finding_model import priced
from analyzers.step_law import LEAST_STEPS
from traces.rows import first_row
from traces.store import TraceStore

_DECODE = "larger decode batches, fewer bits, speculation"
_FEWER = "fewer bits and speculation in decode"
_DECODE_STILL = ("decode.fp8-weights", "decode.fp8-cache", "decode.speculation")
_MODEL = "stepscope analyze RUN --model-config MODEL"
_WHICH = "MODEL is a preset, such as llama-3.1-8b, or the model's config.json"
_PROFILE = "stepscope profile"
_NEEDS_IDLE = ("gaps", "gaps.cause", "devices.idle_ns", "steps.idle_ns", "steps.kind")
_NEEDS_PHASES = ("steps.busy_ns", "steps.kind", "steps.prefill_ns", "steps.decode_ns", "devices.busy_ns")
# What costs are asked for; with a step ledger its own law answers some of it (decode.small-batch, prefill.prompts).
_BY_COST = ("kernels.*", "decode.*", "prefill.fp8", "prefill.prompts", "prefill.interference")
_BY_COST_STILL = ("kernels.*", *_DECODE_STILL, "prefill.fp8", "prefill.interference")
_DECODE_STEPS = "SELECT 1 FROM steps WHERE run_id = ? AND kind = 'decode' AND busy_ns > 0 LIMIT 1"
_BY_LEDGER = ("queue.seats", "kv.full", "kv.preemption", "prefill.small-chunks", "agents.*", "frontend.output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """`findings`: ids that could not be made, `x.*` for a group. `mend`: what to run (RUN: the run's database) or to do."""

    findings: tuple[str, ...]
    causes: str
    why: str
    mend: str


def unseen(store: TraceStore) -> list[Unseen]:
    """What could not be looked for in the store's run, the largest gap first; empty where all could be."""
    run = basis(store.connection, store.run_id)
    if run is None or not _has(run, "SELECT 1 FROM devices WHERE run_id = ? LIMIT 1"):
        return [] if run is None else [_no_devices(run), *_without_ledger(run)]
    return [*_costs(run), *_model(run), *_phases(run), *_idle(run), *_without_ledger(run), *_sensors(run)]


def costed_share(run: Basis) -> float | None:
    """Share of the busy time of which the cost is known; None where there is no busy time."""
    row = first_row(run.con.execute(
        "SELECT sum(busy_ns) FILTER (WHERE flops IS NOT NULL), sum(busy_ns) FROM kernels WHERE run_id = ? AND valid AND busy_ns > 0",
        [run.run_id],
    ))  # fmt: skip
    return None if row is None or not row[1] else float((row[0] or 0) / row[1])


def _costs(run: Basis) -> Iterator[Unseen]:
    """Everything that is held against a roof."""
    ids, causes = _by_cost(run), f"kernels far below their roof, {_asked_of_steps(run)}"
    reason = _first_reason(run, ("kernels", "kernels.flops", "kernels.bytes", "kernels.category", "devices.busy_ns"))
    if reason is not None:
        yield Unseen(findings=ids, causes=causes, why=reason, mend="see `stepscope health RUN`")
        return
    if not _has_peaks(run):
        yield Unseen(
            findings=ids, causes=causes, why="the device's peaks are not known, so there is no roof and no bound",
            mend="stepscope analyze RUN --gpu NAME" if run.on_gpu else
            "measure this machine with `stepscope calibrate` and analyze the run again, or give `analyze` --peak-flops and --bandwidth",
        )  # fmt: skip
    known = costed_share(run)
    if known is None or 1 - known < LEAST_CLASS:
        return
    causes = f"in {1 - known:.0%} of the busy time: {causes}"
    if _has_model(run):
        why, mend = (
            "neither operands nor a place in a layer of the model give it a cost",
            "stepscope analyze RUN --capture DIR",
        )
    else:
        why, mend = f"the model is not known, so it has no cost and no bound. {_WHICH}", _MODEL
    yield Unseen(findings=ids, causes=causes, why=why, mend=mend)


def _model(run: Basis) -> Iterator[Unseen]:
    """What the cost model is asked, although the kernels' costs are known: decode."""
    known = costed_share(run)
    if priced(run) is not None or known is None or not _has_peaks(run) or not _has(run, _DECODE_STEPS):
        return  # without peaks _costs has said so
    ids, causes = (_DECODE_STILL, _FEWER) if _has_ledger(run) else (("decode.*",), _DECODE)
    if not _has_model(run):
        if 1 - known < LEAST_CLASS:
            yield Unseen(findings=ids, causes=causes, why=f"the model is not known. {_WHICH}", mend=_MODEL)
        return
    yield Unseen(
        findings=ids, causes=causes,
        why="the model cannot be priced: its shape, its division over ranks or the device's peaks are not known, or experts were read "
        "otherwise than it expects", mend="stepscope roofline RUN",
    )  # fmt: skip


def _phases(run: Basis) -> Iterator[Unseen]:
    """What is asked of whole steps."""
    causes, ids = _asked_of_steps(run), _by_cost(run)[1:]
    reason = _first_reason(run, _NEEDS_PHASES)
    if reason is not None:
        yield Unseen(findings=ids, causes=causes, why=reason, mend="see `stepscope health RUN`")
    elif not _has(run, "SELECT 1 FROM steps WHERE run_id = ? AND trusted IS NOT false AND kind <> 'other' LIMIT 1"):
        yield Unseen(
            findings=(*ids, "host.*"), causes=f"launches and work between steps, {causes}",
            why="no step is known to be prefill or decode: the engine wrote no labels that say so",
            mend=f"record with `{_PROFILE}`, or with the engine's own labels",
        )  # fmt: skip


def _idle(run: Basis) -> Iterator[Unseen]:
    """What keeps a device waiting."""
    reason = _first_reason(run, _NEEDS_IDLE)
    if reason is not None and run.on_gpu:
        yield Unseen(
            findings=("host.*", "frontend.input"), causes="a host or a frontend that keeps the device waiting", why=reason,
            mend="record or ingest again as the reason says",
        )  # fmt: skip


def _no_devices(run: Basis) -> Unseen:
    return Unseen(
        findings=("host.*", *_by_cost(run), "comm.exposed", "frontend.input"), causes="everything that a device does or waits for",
        why="no device activity was recorded", mend=f"record with `{_PROFILE}`, without --no-trace, or ingest a trace",
    )  # fmt: skip


def _without_ledger(run: Basis) -> Iterator[Unseen]:
    """What only the scheduler's own counts tell."""
    steps = _ledger_steps(run)
    if steps >= LEAST_STEPS:
        return
    why = _first_reason(run, ("ledger_steps",)) or (
        f"the step ledger has {counted(steps, 'step')} of one pass: too few to learn what a step costs"
        if _has(run, "SELECT 1 FROM ledger_steps WHERE run_id = ? LIMIT 1") else "a trace alone has no step ledger"
    )  # fmt: skip
    causes = "queues and seats, a full KV cache, preemption, chunks, agents' prompts, a slow way to the client"
    yield Unseen(findings=_BY_LEDGER, causes=causes, why=why, mend=f"record with `{_PROFILE}`")


def _sensors(run: Basis) -> Iterator[Unseen]:
    reason = _first_reason(run, ("telemetry", "execution_idle"))
    sampled = _has(run, "SELECT 1 FROM telemetry WHERE run_id = ? LIMIT 1")
    if reason is None and _has(
        run, "SELECT 1 FROM telemetry WHERE run_id = ? AND (power_w IS NOT NULL OR energy_j IS NOT NULL) LIMIT 1"
    ):
        return
    yield Unseen(
        findings=("energy.execution-idle",), causes="energy of devices that idle with a program loaded",
        why=reason or ("no sensor told the power" if sampled else "no sensor was sampled"),
        mend="`stepscope doctor` says what keeps the power from being read" if sampled else
        f"record with `{_PROFILE}`, or ingest a sensor log with the trace",
    )  # fmt: skip


def _has_ledger(run: Basis) -> bool:
    """Whether its steps are enough to learn what one costs (as served() asks, without the fits)."""
    return _ledger_steps(run) >= LEAST_STEPS


def _ledger_steps(run: Basis) -> int:
    """Steps of the pass that gains would be predicted from."""
    if not run.trusts("ledger_steps"):
        return 0
    passes = run.rows("finding_agents_passes")["pass"].to_list()
    return run.rows("finding_steps", **{"pass": passes[0]}).height if passes else 0


def _by_cost(run: Basis) -> tuple[str, ...]:
    return _BY_COST_STILL if _has_ledger(run) else _BY_COST


def _asked_of_steps(run: Basis) -> str:
    decode = _FEWER if _has_ledger(run) else f"{_DECODE}, prompts that are most of the work"
    return f"{decode}, 16-bit prefill, and prefills that delay decoding"


def _has_peaks(run: Basis) -> bool:
    return _has(run, "SELECT 1 FROM devices WHERE run_id = ? AND peak_source IS NOT NULL AND peak_flops > 0 LIMIT 1")


def _has_model(run: Basis) -> bool:
    return isinstance(run.config.get("model_config"), dict)


def _has(run: Basis, sql: str, *more: Any) -> bool:
    return first_row(run.con.execute(sql, [run.run_id, *more])) is not None


def _first_reason(run: Basis, names: Iterable[str]) -> str | None:
    """Why the first of `names`, or its table, is withheld."""
    found = (run.spoiled.get(name) or run.spoiled.get(name.partition(".")[0]) for name in names)
    return next((reason for reason in found if reason), None)
