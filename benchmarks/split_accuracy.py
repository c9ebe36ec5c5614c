"""How well the split of mixed steps agrees with reality, on a real vLLM engine.

    python benchmarks/split_accuracy.py [--rounds N] [--quick] [--keep DIR] [--read STEPS.jsonl]

The true marginal cost of a prompt is a mixed step less the decode set alone; that of the decode set is the mixed step
less the prompt alone. Both are measured on matched, interleaved steps (split_engine.py), as medians over rounds of the
operators' time on the compute thread; steps in which the thread was kept off its core are left out. The analyzer sees
the mixed steps only, and is compared for each case; so is token-proportional splitting. With `matched` it also sees the
steps of one phase: the very steps the truth is made of, so that it shows what categories and corrections for size cost,
not how well a match holds elsewhere. Where the truth itself is uncertain by more than a tenth (bootstrap over rounds),
the marginal counts as unmeasurable; both counts are reported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from analyzers.costs.attention import PhaseLoad, load_of_requests  # noqa: E402
from analyzers.costs.shape import ModelShape, model_shape  # noqa: E402
from analyzers.kernels import categorize  # noqa: E402
from analyzers.split import Steps, learn, per_step, split  # noqa: E402
from profiler.modeldir import write_model_dir  # noqa: E402

PRESET = "llama-160m"
CONTEXTS = ((128, 0), (1000, 0), (1000, 1024))  # of each decoding request, of the prompt (a later chunk)
DECODES = (1, 4, 16)
PROMPTS = (32, 128, 512)
QUIET_SHARE = 0.97
MEASURABLE = 0.10  # relative standard error of a truth

HEADER = "    P  D context chunk |  ms mixed | prefill: true, said       | decode: true, said       | prefill between"

Case = tuple[int, int, int, int]  # P, D, decode context, prompt context


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One case: truths with their standard errors, and what was said; all ms."""

    case: Case
    steps: int
    measured: float
    prefill: tuple[float, float]
    decode: tuple[float, float]
    said_prefill: float
    said_decode: float
    low: float
    high: float

    def covered(self, sigmas: float = 0.0) -> tuple[bool, bool]:
        """Whether the interval of prefill holds prefill's true marginal, and its complement that of decode.

        `sigmas` standard errors of the truth are allowed for.
        """
        (prefill, prefill_doubt), (decode, decode_doubt) = self.prefill, self.decode
        low, high = self.low, self.high
        return (
            low - sigmas * prefill_doubt <= prefill <= high + sigmas * prefill_doubt,
            self.measured - high - sigmas * decode_doubt <= decode <= self.measured - low + sigmas * decode_doubt,
        )

    def by_tokens(self) -> tuple[float, float]:
        p, d = self.case[:2]
        return self.measured * p / (p + d), self.measured * d / (p + d)


def main() -> int:
    arguments = _arguments()
    config = tomllib.loads((ROOT / "analyzers" / "models.toml").read_text())[PRESET]["config"]
    path = arguments.read or _run_engine(arguments, config)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    quiet = [row for row in rows if row["cpu_ns"] >= QUIET_SHARE * row["wall_ns"]]
    print(f"{len(rows)} steps, {len(quiet)} of them undisturbed; model {PRESET}")
    shape = model_shape(config)
    category = _categories(quiet)
    mixed = [row for row in quiet if row["kind"] == "mixed"]
    summary = {}
    for name, seen in (("mixed steps only", mixed), ("matched", quiet)):
        outcomes = _outcomes(shape, category, quiet, mixed, seen)
        summary[name] = _report(name, outcomes, cases=arguments.cases)
    if arguments.json:
        print(json.dumps(summary))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="short contexts only, 3 rounds")
    parser.add_argument("--python", default=sys.executable, help="the engine's interpreter")
    parser.add_argument("--keep", type=Path, help="folder for the model and the steps")
    parser.add_argument("--read", type=Path, help="analyze steps recorded before")
    parser.add_argument("--cases", action="store_true", help="print every case")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _run_engine(arguments: argparse.Namespace, config: dict[str, Any]) -> Path:
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="stepscope-split-"))
    folder.mkdir(parents=True, exist_ok=True)
    contexts = CONTEXTS[:1] if arguments.quick else CONTEXTS
    cases = [[p, d, c, pc] for c, pc in contexts for d in DECODES for p in PROMPTS]
    plan = {
        "model_dir": str(write_model_dir(folder / "model", config)),
        "cases": cases,
        "rounds": 3 if arguments.quick else arguments.rounds,
        "decode_steps": 2,
        "blocks": 420,
    }
    (folder / "plan.json").write_text(json.dumps(plan))
    out = folder / "steps.jsonl"
    # glibc would give large activations back to the system after every operator, and fault them in again
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
    engine = [arguments.python, str(ROOT / "benchmarks" / "split_engine.py"), str(folder / "plan.json"), str(out)]
    with (folder / "engine.log").open("w") as log:
        subprocess.run(engine, env={**os.environ, **allocator}, stdout=log, stderr=log, check=True)
    return out


def _categories(rows: list[dict[str, Any]]) -> dict[str, str]:
    names = sorted({name for row in rows for name in row["ops"]})
    return dict(zip(names, categorize(names, "cpu_op")["category"].to_list(), strict=True))


def _busy_ms(row: dict[str, Any]) -> float:
    return sum(row["ops"].values()) / 1e6


def _steps(rows: list[dict[str, Any]], category: dict[str, str]) -> Steps:
    measured: dict[str, np.ndarray] = {}
    for name in sorted(set(category.values())):
        times = [sum(ns for op, ns in row["ops"].items() if category[op] == name) for row in rows]
        measured[name] = np.array(times, dtype=np.int64)
    return Steps(prefill=_load(rows, prompts=True), decode=_load(rows, prompts=False), measured=measured)


def _load(rows: list[dict[str, Any]], *, prompts: bool) -> PhaseLoad:
    names = ("reqs", "tokens", "kv_tokens", "qq", "qk", "sampled_rows")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for row in rows:
        requests = np.array([r for r in row["rows"] if (r[0] > 1) == prompts], dtype=np.int64).reshape(-1, 2)
        load = load_of_requests(requests[:, 0], requests[:, 1])
        for name in names:
            columns[name].append(float(getattr(load, name)))
    return PhaseLoad(**{name: np.array(values) for name, values in columns.items()})


def _outcomes(
    shape: ModelShape,
    category: dict[str, str],
    quiet: list[dict[str, Any]],
    mixed: list[dict[str, Any]],
    seen: list[dict[str, Any]],
) -> list[Outcome]:
    learned = learn(shape, _steps(seen, category))
    said = per_step(split(learned, _steps(mixed, category), match=seen is not mixed))
    said = said.with_columns(case=pl.Series([tuple(mixed[i]["case"]) for i in said["step"].to_list()], dtype=pl.Object))
    groups: dict[Case, list[dict[str, Any]]] = defaultdict(list)
    for row in said.iter_rows(named=True):
        groups[row["case"]].append(row)
    times: dict[Case, list[float]] = defaultdict(list)
    for row in quiet:
        times[tuple(row["case"])].append(_busy_ms(row))
    found = []
    for case, rows in sorted(groups.items()):
        p, d, context, chunk = case
        decode_alone, prompt_alone = times[0, d, context, 0], times[p, 0, 0, chunk]
        if not decode_alone or not prompt_alone:
            continue
        median = {key: float(np.median([row[key] for row in rows])) / 1e6 for key in rows[0] if key.endswith("_ns")}
        found.append(
            Outcome(
                case=case,
                steps=len(rows),
                measured=median["measured_ns"],
                prefill=_difference(times[case], decode_alone),
                decode=_difference(times[case], prompt_alone),
                said_prefill=median["interference_ns"],
                said_decode=median["measured_ns"] - median["alone_prefill_ns"],
                low=median["split_low_ns"],
                high=median["split_high_ns"],
            )
        )
    return found


def _difference(more: list[float], less: list[float]) -> tuple[float, float]:
    """Difference of medians and its bootstrap standard error."""
    random = np.random.default_rng(0)
    draws = [np.median(random.choice(more, len(more))) - np.median(random.choice(less, len(less))) for _ in range(300)]
    return float(np.median(more) - np.median(less)), float(np.std(draws))


def _report(name: str, outcomes: list[Outcome], *, cases: bool) -> dict[str, Any]:
    print(f"\n{name}: {len(outcomes)} cases")
    if cases:
        print(HEADER)
    result: dict[str, Any] = {"cases": len(outcomes)}
    errors: dict[str, list[float]] = defaultdict(list)
    sure: list[bool] = []
    for one in outcomes:
        for side, (truth, doubt), value, tokens in (
            ("prefill", one.prefill, one.said_prefill, one.by_tokens()[0]),
            ("decode", one.decode, one.said_decode, one.by_tokens()[1]),
        ):
            measurable = doubt <= MEASURABLE * abs(truth)
            for group in ("all", "measurable") if measurable else ("all",):
                errors[f"{side}_{group}"].append(abs(value / truth - 1))
                errors[f"{side}_{group}_by_tokens"].append(abs(tokens / truth - 1))
            if measurable:
                sure.append(one.covered()[0 if side == "prefill" else 1])
        if cases:
            print(_line(one))
    covered = [inside for one in outcomes for inside in one.covered()]
    allowed = [inside for one in outcomes for inside in one.covered(2.0)]
    for key, values in sorted(errors.items()):
        result[key] = {"median_error": float(np.median(values)), "n": len(values)}
        print(f"  {key:32s} median error {np.median(values):6.1%}   (n = {len(values)})")
    result["covered"] = {
        "all": float(np.mean(covered)),
        "allowing_for_the_truths_error": float(np.mean(allowed)),
        "measurable": float(np.mean(sure)) if sure else None,
    }
    print(
        f"  the interval holds the truth in {np.mean(covered):.0%} of all, {np.mean(allowed):.0%} allowing for"
        f" two standard errors of the truth, {np.mean(sure):.0%} of the measurable ones"
    )
    return result


def _line(one: Outcome) -> str:
    p, d, context, chunk = one.case
    inside = "".join("✓" if ok else "✗" for ok in one.covered())
    sides = " | ".join(
        f"{truth:6.1f} ± {doubt:4.1f} {said:6.1f} {said / truth - 1:+5.0%}"
        for (truth, doubt), said in ((one.prefill, one.said_prefill), (one.decode, one.said_decode))
    )
    between = f"{one.low:6.1f} – {one.high:6.1f} {inside}"
    return f"  {p:4d} {d:2d} {context:5d} {chunk:5d}  | {one.measured:7.1f}  | {sides} | {between}"


if __name__ == "__main__":
    raise SystemExit(main())
