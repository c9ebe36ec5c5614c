"""What the findings' makers read of a run: how it was made, what of it is withheld, and the time its parts are shares of."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import numpy as np
import polars as pl

from analyzers.finding import Finding, Gain, Interval, Proof, Severity, device_window_ns, severity_of
from analyzers.finding_law import base_range
from analyzers.finding_limits import LEAST_WAIT
from analyzers.step_law import WORK, Floats, StepLaw, learn
from traces.health import withheld
from traces.rows import first_row
from traces.store import frame, named_sql

QUANTILES = (0.025, 0.975)
_GPU = ("cuda", "hip")


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """`facts`: of the engine. `engine_args` None: the run does not say, so it cannot be repeated. `spoiled`: what is
    withheld, and why. `busy_ns`, `work_ns` and `window_ns` are sums over devices: of activity; of activity and of waits
    while there was work; of everything. 0 where not known or withheld. On an engine that schedules between its steps the
    time for that is no part of a step, nor of `work_ns`; where idle time is withheld, `work_ns` is `busy_ns`."""

    con: duckdb.DuckDBPyConnection = field(repr=False)
    run_id: str
    engine: str | None
    device_kind: str | None
    config: Mapping[str, Any] = field(repr=False)
    facts: Mapping[str, Any] = field(repr=False)
    engine_args: tuple[str, ...] | None
    workload: str | None
    spoiled: Mapping[str, str] = field(repr=False)
    busy_ns: int
    work_ns: int
    window_ns: int

    @property
    def on_gpu(self) -> bool:
        """Whether kernels are launched onto a device of their own."""
        return self.device_kind in _GPU

    @property
    def work_is(self) -> str:
        """What a share of `work_ns` is a share of, as Gain.of."""
        return "step_time" if self.window_ns else "busy"

    @property
    def is_quantized(self) -> bool:
        """Whether the engine or the model's configuration says that weights have fewer bits already."""
        model = self.config.get("model_config")
        said = model.get("quantization_config") if isinstance(model, dict) else None
        return bool(self.facts.get("quantization") or said or self.given("quantization"))

    def number(self, key: str) -> int | None:
        """A positive fact of the engine, None where it is missing or is none."""
        value = self.facts.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def given(self, *flags: str) -> tuple[str, ...]:
        """Those of `flags` that the run's engine was started with."""
        keys = {argument_key(argument) for argument in self.engine_args or ()}
        return tuple(flag for flag in flags if flag in keys)

    def trusts(self, *names: str) -> bool:
        """Whether none of `names` (a table, or `table.column`) is withheld, nor the table of one."""
        return not any(name in self.spoiled or name.partition(".")[0] in self.spoiled for name in names)

    def rows(self, name: str, **parameters: Any) -> pl.DataFrame:
        """The rows of sql/`name`.sql."""
        return frame(self.con.sql(named_sql(name, "analyzers"), params={"run_id": self.run_id, **parameters}))

    def proof(self, *engine_args: str, without: Sequence[str] = (), workload: str | None = None) -> Proof | None:
        """A repetition with `engine_args`, which take the place of the run's own; None where the run cannot be repeated."""
        if self.engine_args is None or self.workload is None:
            return None
        replaced = self.given(*(argument_key(argument) for argument in engine_args))
        gone = tuple(dict.fromkeys((*replaced, *self.given(*without))))
        if not engine_args and not gone and workload in (None, self.workload):
            return None  # nothing would be changed
        return Proof(workload=workload, engine_args=engine_args, without=gone)

    def with_option(self, kind: str, key: str, value: str) -> str | None:
        """The run's workload with another value of an option; None where it is of another kind, or has no such option."""
        name, _, text = (self.workload or "").partition(":")
        parts = text.split(",")
        at = [number for number, part in enumerate(parts) if part.partition("=")[0].strip() == key]
        if name != kind or len(at) != 1:
            return None
        parts[at[0]] = f"{key}={value}"
        return f"{name}:{','.join(parts)}"

    def option(self, kind: str, key: str) -> float | None:
        """A number among the options of the run's workload."""
        name, _, text = (self.workload or "").partition(":")
        values = [part.partition("=")[2] for part in text.split(",") if part.partition("=")[0].strip() == key]
        try:
            number = float(values[0]) if name == kind and len(values) == 1 else math.nan
        except ValueError:
            return None
        return number if math.isfinite(number) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Steps of the pass that is predicted from (sql/finding_steps.sql, with running, waiting, kv_usage and total_tokens),
    and the law of their times. `bases`: the lowest and highest base of a step that explain them, ns. `whole`: all they did,
    as StepLaw.share takes it. `need_tokens`: what a cache must hold to lose nothing."""

    name: str | None
    steps: pl.DataFrame
    law: StepLaw
    bases: tuple[float, float]
    whole: Floats
    need_tokens: int

    @property
    def total_ns(self) -> int:
        """The engine's step time of the pass."""
        return int(self.steps["step_ns"].sum())

    def fewer_overlap(self, share: float) -> float:
        """Decode steps that come on top where `share` of the step time goes away: requests that are served sooner overlap
        less, so that steps which had been shared become more."""
        decoding = self.steps.filter(pl.col("decode_tokens") > 0)
        tokens, busy = float(decoding["decode_tokens"].sum()), float(decoding.height)
        if tokens <= busy or busy <= 0:
            return 0.0
        return max(0.0, tokens / (1 + (tokens / busy - 1) * (1 - min(max(share, 0.0), 1.0))) - busy)

    def gain(self, least: Floats, value: Floats, most: Floats) -> Gain | None:
        """The share of the step time that goes away with `value` (steps, then units of WORK). None where nothing would.

        The interval goes from the lower end of `least` to the upper end of `most`, over the fits on redrawn steps and over
        the bases that explain the steps as well (analyzers/finding_law.py).
        """
        middle = float(np.mean([value[0] * base for base in self.bases])) / self.total_ns + self._work(value)[0]
        return gain_between(float(self._ends(least).min()), middle, float(self._ends(most).max()))

    def _work(self, amount: Floats) -> tuple[float, Floats]:
        """Of the step time what `amount` does without its steps; and by every draw."""
        return self.law.share(np.array([0.0, *amount[1:]]), self.whole)

    def _ends(self, amount: Floats) -> Floats:
        """Of the step time what `amount` may come to: by the redrawn fits, and with every base."""
        _, drawn = self.law.share(amount, self.whole)
        work = np.quantile(self._work(amount)[1], QUANTILES)
        steps = [amount[0] * base / self.total_ns for base in (float(self.law.prices[0]), *self.bases)]
        return np.array([*np.quantile(drawn, QUANTILES), *(each + end for each in steps for end in work)])


def basis(con: duckdb.DuckDBPyConnection, run_id: str) -> Basis | None:
    """Of run `run_id`; None where there is no such run."""
    row = first_row(con.execute("SELECT engine, device_kind, config FROM runs WHERE run_id = ?", [run_id]))
    if row is None:
        return None
    config = json.loads(row[2]) if row[2] else {}
    config = config if isinstance(config, dict) else {}
    facts, args, workload = (config.get(key) for key in ("engine_facts", "engine_args", "workload"))
    facts = facts if isinstance(facts, dict) else {}
    spec = workload.get("spec") if isinstance(workload, dict) else None
    plain = isinstance(args, list) and all(isinstance(item, str) for item in args)
    time = frame(con.sql(named_sql("finding_time", "analyzers"), params={"run_id": run_id})).row(0, named=True)
    spoiled = withheld(con, run_id)
    busy_ns = 0 if spoiled.keys() & {"devices", "devices.busy_ns"} else time["busy_ns"]
    waited_ns = time["waited_ns"] - (time["scheduler_ns"] if facts.get("async_scheduling") is False else 0)
    idle_known = not spoiled.keys() & {"devices", "devices.idle_ns", "gaps"}
    return Basis(
        con=con, run_id=run_id, engine=row[0], device_kind=row[1], config=config, facts=facts,
        engine_args=tuple(args) if plain and args is not None else None, workload=spec if isinstance(spec, str) else None,
        spoiled=spoiled, busy_ns=busy_ns, work_ns=busy_ns + waited_ns if idle_known and busy_ns else busy_ns,
        window_ns=(device_window_ns(con, run_id) or 0) if idle_known else 0,
    )  # fmt: skip


def served(run: Basis) -> Served | None:
    """What the step ledger tells; None without one, or where its steps are too few."""
    if not run.trusts("ledger_steps"):
        return None
    passes = run.rows("finding_agents_passes").to_dicts()
    if not passes:
        return None
    name = passes[0]["pass"]
    steps = run.rows("finding_steps", **{"pass": name}).join(run.rows("finding_queue"), on=["pid", "seq"], how="left")
    law = learn(steps)
    if law is None or steps["step_ns"].sum() <= 0:
        return None
    whole = np.array([float(steps.height), *(float(steps[column].sum()) for column in WORK)])
    return Served(
        name=name, steps=steps, law=law, bases=base_range(steps), whole=whole, need_tokens=int(passes[0]["cache_need_tokens"])
    )  # fmt: skip


def argument_key(argument: str) -> str:
    """The flag that `K=V` or `K` sets, as vLLM and SGLang spell it."""
    return argument.partition("=")[0].lstrip("-").replace("_", "-")


def gain_between(low: float, value: float, high: float, of: str = "step_time") -> Gain | None:
    """A gain whose interval holds its value; None where there is nothing to gain, or what is asked is no number."""
    if not all(np.isfinite(each) for each in (low, value, high)) or value <= 0:
        return None
    value = min(value, 1.0)
    return Gain(value=value, interval=Interval(low=min(low, value), high=min(1.0, max(high, value))), of=of)


def counted(number: int, what: str) -> str:
    """`number` of `what`, in words."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def waits_enough(ns: float, whole_ns: int) -> bool:
    """Whether a wait takes so much of what it is a part of that it is worth looking at."""
    return whole_ns > 0 and ns >= LEAST_WAIT * whole_ns


def finding(
    run: Basis, finding_id: str, title: str, cause: str, fix: str, evidence: str, *, gain: Gain | None, whole_ns: int,
    device_ns: float | None = None, energy_j: float | None = None, proof: Proof | None = None,
    severity: Severity | None = None,
) -> Finding:  # fmt: skip
    """A finding ranked by the time that would go away: the gain of `whole_ns`, what it is a share of. `device_ns`: the
    time the cause takes, where it was recorded. Without a gain it is shown only as information (`severity` INFO)."""
    known = None if device_ns is None else round(device_ns)
    severity = severity or (Severity.WARNING if gain is None else severity_of(gain))
    return Finding(
        finding_id=finding_id, severity=severity, title=title, cause=cause, device_ns=known, energy_j=energy_j,
        share=known / run.window_ns if known is not None and run.window_ns > 0 else None,
        time_ns=round(gain.value * whole_ns) if gain is not None else known or 0, gain=gain, evidence=evidence, fix=fix, proof=proof,
    )  # fmt: skip
