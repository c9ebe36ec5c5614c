"""`make gpu-check`, or `python -m benchmarks.gpu_check`: see docs/gpu-check.md. Exit 1 where a check fails, 2 on misuse."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.deadline import Budget
from benchmarks.gpu_check.expected import EXPECTED, TITLES
from benchmarks.gpu_check.figures import figures_of
from benchmarks.gpu_check.measure import Facts, Request, ingest, measure
from benchmarks.gpu_check.verdict import FAIL, Row, judged, overridden, summary, table, write_results
from traces.printable import printable

BUDGET_S = 285.0  # of five minutes: ending what hangs, and judging, take some seconds more
LEAST_S = 5.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status."""
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    try:
        expected = overridden(EXPECTED, options.expect)
        folder, facts = _judge_again(options) if options.judge else _check(options)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    try:
        figures = figures_of(folder, facts)
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        if not options.judge:
            raise
        print(f"error: {folder} holds other data than a check writes: {printable(repr(error))}", file=sys.stderr)
        return 2
    return _conclude(folder, facts, judged(figures, expected), time.monotonic() - began)


def _check(options: argparse.Namespace) -> tuple[Path, Facts]:
    """Make the raw data. Raises ValueError and OSError for what cannot be done."""
    folder = (options.out or Path("build/gpu-check") / time.strftime("%Y%m%d-%H%M%S")).absolute()
    folder.mkdir(parents=True, exist_ok=False)
    request = Request(
        python=options.python.expanduser().absolute(), folder=folder, device=options.device, engine=options.engine,
        model=options.model, budget=Budget(options.budget_s), say=lambda text: print(f"… {text}", file=sys.stderr, flush=True),
    )  # fmt: skip
    return folder, measure(request)


def _judge_again(options: argparse.Namespace) -> tuple[Path, Facts]:
    """Raw data of an earlier check, ingested anew by this version."""
    folder = options.judge.absolute()
    facts = Facts.read(folder)
    if (folder / "run" / "manifest.json").exists():
        facts.problems.pop("ingest", None)
        ingest(folder, facts, Budget(options.budget_s))
    return folder, facts


def _conclude(folder: Path, facts: Facts, rows: Sequence[Row], seconds: float) -> int:
    device = ", ".join(map(str, facts.found.get("gpus") or [])) if facts.on_gpu else "CPU"
    lines = [f"GPU check: {device}, torch {facts.found.get('torch_version')}", ""]
    lines += table(rows, TITLES)
    notes = [*facts.warnings, *(f"{part}: {problem}" for part, problem in facts.problems.items())]
    lines += ["", *(f"note: {note}" for note in notes)] if notes else []
    lines += ["", f"{summary(rows)}; {seconds:.0f} s", f"raw data and result.json: {folder}"]
    text = printable("\n".join(lines), keep="\n")
    print(text)
    try:
        write_results(rows, {"device": device, "seconds": round(seconds, 1), "found": facts.found}, folder, text)
    except OSError as error:  # a folder that may only be read
        print(f"note: result.json was not written: {error.strerror}", file=sys.stderr)
    return 1 if any(row.status == FAIL for row in rows) else 0


def _seconds(text: str) -> float:
    value = float(text)
    if not LEAST_S <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"{text} is not between {LEAST_S:g} and 86400")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_check", description=__doc__)
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="interpreter that has torch (and vLLM)"
    )
    parser.add_argument("--device", choices=("auto", "cpu"), default="auto", help="cpu: leave a GPU alone")
    parser.add_argument("--model", help="of the vLLM part: preset, folder or hub id")
    parser.add_argument("--no-engine", dest="engine", action="store_false", help="leave the vLLM part out")
    parser.add_argument("--budget-s", type=_seconds, default=BUDGET_S, metavar="S", help="seconds for all of it")
    parser.add_argument("--out", type=Path, help="folder to make; default: build/gpu-check/<time>")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="measure nothing: judge raw data made before")
    parser.add_argument(
        "--expect", action="append", default=[], metavar="CHECK=LOW:HIGH", help="another range of a check"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
