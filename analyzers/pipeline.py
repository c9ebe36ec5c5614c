"""Everything that is derived from a linked run, in order. The one module of analyzers that knows the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import duckdb
import polars as pl

from analyzers import agents, energy, findings, hardware, idle, kernels, phases, requests, roofline
from analyzers.costing.capture import align
from analyzers.costing.doubts import AFFECTED, forget, say
from analyzers.costs.parallel import Parallel, of_one_rank, stages_of
from analyzers.costs.roof import Peaks
from analyzers.costs.shape import ModelShape, model_shape
from analyzers.hardware import NO_OVERRIDE, PeakOverride
from traces.errors import UsageProblem
from traces.rows import first_row
from traces.store import TraceStore, named_sql, writing


def analyze(
    con: duckdb.DuckDBPyConnection,
    run_id: str,
    model_config: Mapping[str, Any] | None = None,
    peaks: PeakOverride = NO_OVERRIDE,
    captures: pl.DataFrame | None = None,
) -> None:
    """Fill the derived columns and tables of run `run_id`; what an earlier analysis wrote is replaced.

    `model_config` is a Hugging Face configuration; where it is not given, the one the run recorded is used. `peaks` are the
    user's. `captures` (traces.capture.read_captures) give graph kernels their operators, for good. Raises UsageProblem where a
    given configuration cannot be understood.
    """
    con.execute("SET VARIABLE run_id = ?", [run_id])
    if captures is not None:
        align(con, run_id, captures)
    if model_config is not None:
        _remember(con, run_id, model_config)
    model = _model(con, run_id, given=model_config is not None)
    named = kernels.apply_categories(con, run_id)
    if model is not None:
        kernels.mark_logits(con, run_id, vocab_size=model.vocab)
    hardware.fill_devices(con, run_id, peaks)
    row = first_row(con.execute("SELECT device_kind FROM runs WHERE run_id = ?", [run_id]))
    on_gpu = row is not None and row[0] in ("cuda", "hip")
    phases.fill(con, run_id, named, phases.SplitBasis(model=model, peaks=_peaks(con, run_id), overlap=on_gpu))
    _say_unsplit(con, run_id, model)
    idle.fill(con, run_id)
    roofline.fill(con, run_id, model)
    requests.fill(con, run_id)
    energy.fill(con, run_id)
    agents.fill(con, run_id)
    findings.fill(con, run_id)  # last: it reads what the others wrote


def analyze_run(
    name: str,
    model_config: Mapping[str, Any] | None = None,
    peaks: PeakOverride = NO_OVERRIDE,
    captures: pl.DataFrame | None = None,
) -> str:
    """Analyze the run that `PATH[#run_id]` names again, atomically; returns `PATH#run_id`."""
    with TraceStore.open(name) as store:
        path, run_id = store.path, store.run_id
    with writing(path) as con:
        analyze(con, run_id, model_config, peaks, captures)
    return f"{path}#{run_id}"


def _say_unsplit(con: duckdb.DuckDBPyConnection, run_id: str, model: ModelShape | None) -> None:
    """Warn where mixed steps are not divided between prefill and decode, with what would do it."""
    forget(con, run_id, "mixed_split")
    row = first_row(con.execute(named_sql("phases_unsplit", "analyzers"), {"run_id": run_id}))
    if row is None or not row[0]:
        return
    unsplit, mixed, share = row
    why = (
        "the model is not known, and this run has too few steps to learn from what a phase costs: name it with "
        "`stepscope analyze RUN --model-config MODEL` (a preset, or a config.json)"
        if model is None
        else "nothing says what each phase asked of them: record a step ledger, or labels with context lengths"
    )
    message = f"{unsplit} of {mixed} mixed steps ({100 * share:.1f} % of device time in steps) are not divided: {why}"
    say(
        con, run_id, "mixed_split", message, ["steps.prefill_ns", "steps.decode_ns", "kernels.prefill_ns", "kernels.decode_ns"],
        value=share, threshold=0.0,
    )  # fmt: skip


def _peaks(con: duckdb.DuckDBPyConnection, run_id: str) -> Peaks | None:
    """Peaks of the run's first device that has them; ranks of one run are alike."""
    row = first_row(con.execute(
        "SELECT peak_flops, peak_bandwidth FROM devices WHERE run_id = ? AND peak_flops > 0 AND peak_bandwidth > 0 "
        "ORDER BY rank, device", [run_id],
    ))  # fmt: skip
    return None if row is None else Peaks(flops_per_s=row[0], bytes_per_s=row[1])


def _remember(con: duckdb.DuckDBPyConnection, run_id: str, config: Mapping[str, Any]) -> None:
    con.execute(
        "UPDATE runs SET config = json_merge_patch(coalesce(config, '{}'), ?::JSON) WHERE run_id = ?",
        [json.dumps({"model_config": config}), run_id],
    )


def _model(con: duckdb.DuckDBPyConnection, run_id: str, *, given: bool) -> ModelShape | None:
    """What one rank has of the model; None where the run does not say or it is not known, which table health then says."""
    forget(con, run_id, "model_shape")
    row = first_row(con.execute(
        "SELECT config -> 'model_config', config -> 'engine_facts' FROM runs WHERE run_id = ?", [run_id],
    ))  # fmt: skip
    if row is None or row[0] is None:
        return None
    config = json.loads(row[0])
    if not isinstance(config, dict):
        return None
    facts = json.loads(row[1]) if row[1] else None
    try:
        shape = model_shape(config, dtype=config.get("dtype") or config.get("torch_dtype"))
        return _of_one_rank(shape, facts if isinstance(facts, dict) else {})
    except _NoShare as reason:
        message = f"{reason}, so the model's configuration is not used for costs: record with shapes, or give --capture"
    except UsageProblem as error:
        if given:
            raise
        message = (
            f"the model's configuration is not used for costs: {error.message}; give one that fits with --model-config"
        )
    say(con, run_id, "model_shape", message, AFFECTED, value=None, threshold=None)
    return None


class _NoShare(Exception):
    """No one share of the model is right for the ranks of this run; says why."""


def _of_one_rank(shape: ModelShape, facts: Mapping[str, Any]) -> ModelShape:
    """The shape's share by the engine's facts; a fact that is missing divides nothing.

    Raises _NoShare where ranks of one run hold different parts (uneven pipeline stages), and where experts compute tokens
    of other replicas, which this run has no record of; UsageProblem where the model cannot be divided so.
    """
    tensor, stages, replicas = (
        _number(facts, key) or 1 for key in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    )
    shared = replicas > 1 or _number(facts, "data_parallel_rank") > 0
    if shape.moe is not None and shared:
        raise _NoShare("experts compute tokens of other data-parallel replicas, of which this run has no record")
    expert = tensor if shape.moe is not None and facts.get("enable_expert_parallel") is True else 1
    parallel = Parallel(tensor=tensor, pipeline=stages, expert=expert)
    parts = stages_of(of_one_rank(shape, parallel), stages)
    if len({(part.windows, part.moe_layers) for part in parts}) > 1:
        held = ", ".join(str(part.layers) for part in parts)
        raise _NoShare(f"the pipeline's {stages} stages are unlike each other ({held} layers)")
    return replace(parts[0], last=True)


def _number(facts: Mapping[str, Any], key: str) -> int:
    """A fact of the engine, 0 where it is missing. Raises UsageProblem for what is no number."""
    value = facts.get(key) or 0
    if not isinstance(value, int):
        raise UsageProblem(f"the engine's {key} is {str(value)[:40]!r}, not a number", hint="see the run's manifest")
    return value
