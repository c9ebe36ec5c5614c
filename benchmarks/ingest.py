"""Time and peak memory from a torch-profiler trace to rows in DuckDB, against other ways of loading the same file.

    python benchmarks/ingest.py --seed TRACE.json.gz --mb 420 --peer-python VENV/bin/python --repeats 3
    python benchmarks/ingest.py --seed TRACE.json.gz --mb 420 --no-frames --peer-python VENV/bin/python
    python benchmarks/ingest.py --seed TRACE.json.gz --mb 5000 --only stepscope --repeats 1

The trace is a real one repeated with shifted times, correlations and ids. Every measurement is a process of its own,
interpreter start included; contenders take turns, and the ratios are given with their spread over the rounds.

    stepscope   traces.readers.kineto into the staging tables of a DuckDB file
    linked      `stepscope ingest FILE --out DB --no-analyze`: linked tables, steps and health checks too
    end-to-end  `stepscope ingest FILE --out DB`: phases, costs and bounds too
    hta         TraceAnalysis(...) of HolisticTraceAnalysis, with the interpreter given by --peer-python
    orjson      orjson.loads of the decompressed bytes, nothing else

HolisticTraceAnalysis needs an environment of its own:
    python -m venv V && V/bin/pip install HolisticTraceAnalysis orjson
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTENDERS = ("stepscope", "linked", "end-to-end", "hta", "orjson")
# Fields that a repetition shifts: times by the length of the seed, ids by more than the largest one.
_NUMBERS = re.compile(r'("(?:ts|correlation|External id|Ev Idx|id|Python id|Python parent id)": )(-?\d+(?:\.\d+)?)')


def main() -> None:
    """Make the trace, run the contenders in turn, print a table."""
    options = _arguments()
    if options.child:
        CHILDREN[options.child](*options.child_arguments)
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        trace = Path(scratch) / f"bench_rank0.pt.trace.json{'' if options.plain else '.gz'}"
        _run_child("make", sys.executable, options.seed, str(trace), str(options.mb), str(int(not options.no_frames)))
        names = [options.only] if options.only else [name for name in CONTENDERS if _available(name, options)]
        rounds = [{name: _measure(name, trace, options) for name in names} for _ in range(options.repeats)]
        _print_table(names, rounds)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", help="a real torch-profiler trace, plain or gzip")
    parser.add_argument("--mb", type=int, default=420, help="size of the decompressed JSON in 10^6 bytes")
    parser.add_argument("--no-frames", action="store_true", help="leave the python frames of the seed out")
    parser.add_argument("--plain", action="store_true", help="no gzip")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=CONTENDERS)
    parser.add_argument("--end-to-end", action="store_true", help="time `stepscope ingest` too")
    parser.add_argument("--peer-python", help="interpreter of an environment with HolisticTraceAnalysis")
    parser.add_argument("--scratch", help="directory for the trace and the databases (default: the temporary one)")
    parser.add_argument("--child", choices=sorted(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("child_arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.child and not options.seed:
        parser.error("--seed is required")
    return options


def _available(name: str, options: argparse.Namespace) -> bool:
    whole = options.end_to_end
    return {"hta": bool(options.peer_python), "linked": whole, "end-to-end": whole}.get(name, True)


# ---- measuring --------------------------------------------------------------------------------------------------


def _measure(name: str, trace: Path, options: argparse.Namespace) -> tuple[float, float]:
    """(wall seconds, peak MB) of one contender."""
    database = trace.with_suffix(".duckdb")
    python = options.peer_python if name == "hta" else sys.executable
    try:
        if name in ("linked", "end-to-end"):
            command = [
                str(Path(sys.executable).with_name("stepscope")),
                "ingest",
                str(trace),
                "--out",
                str(database),
                "--quiet",
            ]
            return _timed(command + ["--no-analyze"] * (name == "linked"))
        return _run_child(name, python, str(trace), str(database))
    finally:
        for leftover in (database, Path(f"{database}.wal")):
            leftover.unlink(missing_ok=True)


def _run_child(name: str, python: str, *arguments: str) -> tuple[float, float]:
    return _timed([python, __file__, "--child", name, *arguments])


def _timed(command: list[str]) -> tuple[float, float]:
    """Wall seconds and peak MB of a process. This process stays small, since a child inherits its peak."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return wall, usage.ru_maxrss * 1024 / 1e6


def _print_table(names: list[str], rounds: list[dict[str, tuple[float, float]]]) -> None:
    print(f"{'':12} {'seconds':>9} {'spread':>15} {'peak MB':>8}")
    for name in names:
        walls = [row[name][0] for row in rounds]
        peak = max(row[name][1] for row in rounds)
        print(f"{name:12} {statistics.median(walls):9.2f} {min(walls):7.2f}-{max(walls):.2f} {peak:8.0f}")
    for ours in ("stepscope", "linked", "end-to-end"):
        for other in ("hta", "orjson"):
            if ours in names and other in names:
                ratios = [row[other][0] / row[ours][0] for row in rounds]
                memory = [row[ours][1] / row[other][1] for row in rounds]
                spread = f"{min(ratios):.1f}-{max(ratios):.1f}"
                print(
                    f"{ours} is {statistics.median(ratios):.1f} times as fast as {other} ({spread}), "
                    f"with {statistics.median(memory):.2f} of its memory"
                )


# ---- what the children do ---------------------------------------------------------------------------------------


def _make(seed: str, target: str, megabytes: str, frames: str) -> None:
    """Write about `megabytes` of JSON: the seed's events again and again, each time later and with new ids."""
    raw = Path(seed).read_bytes()
    document = json.loads(gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw)
    events = document.pop("traceEvents")
    if frames == "0":
        events = [event for event in events if event.get("cat") != "python_function"]
    head = json.dumps(document)[:-1] + ', "traceEvents": ['
    with _writer(Path(target)) as out:
        written = out.write(head.encode())
        for part in _repetitions(events):
            written += out.write(part)
            if written >= int(megabytes) * 1e6:
                break
        out.write(b"]}")


def _repetitions(events: list[dict[str, Any]]) -> Iterator[bytes]:
    texts = [json.dumps(event) for event in events]
    times = [float(event["ts"]) for event in events if "ts" in event]
    stride = int(max(times) - min(times)) + 1000
    pieces = _NUMBERS.split(", ".join(texts))  # text, key, number, text, key, number, …, text
    is_time = [key.startswith('"ts') for key in pieces[1::3]]
    largest = max((int(float(n)) for n, t in zip(pieces[2::3], is_time, strict=True) if not t), default=0)
    repetition = 0
    while True:
        shift_us, shift_id = repetition * stride, repetition * (largest + 1)
        pieces_now = pieces.copy()
        pieces_now[2::3] = [
            _later(number, shift_us) if t else str(int(number) + shift_id) if number != "0" else number
            for number, t in zip(pieces[2::3], is_time, strict=True)
        ]
        yield ((", " if repetition else "") + "".join(pieces_now)).encode()
        repetition += 1


def _later(number: str, shift_us: int) -> str:
    whole, point, fraction = number.partition(".")
    return f"{int(whole) + shift_us}{point}{fraction}"


def _writer(path: Path) -> Any:
    return gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb")


class _DuckSink:
    """Staging tables in a DuckDB file, every batch its own transaction."""

    def __init__(self, path: str) -> None:
        import duckdb

        from traces.readers.base import EVENT_COLUMNS, STRING_COLUMNS

        self._lock = threading.Lock()
        self.connection = duckdb.connect(path, config={"memory_limit": "160MB", "threads": 1})
        self.connection.execute("SET preserve_insertion_order = true")
        self.connection.execute("CREATE SCHEMA stage")
        for name, schema in (("events", EVENT_COLUMNS), ("strings", STRING_COLUMNS)):
            empty = schema.empty_table()
            self.connection.register("empty", empty)
            self.connection.execute(f"CREATE TABLE stage.{name} AS SELECT * FROM empty")
            self.connection.unregister("empty")

    def append(self, table: str, data: Any) -> None:
        with self._lock:
            self.connection.register("batch", data)
            self.connection.execute(f"INSERT INTO stage.{table} SELECT * FROM batch")
            self.connection.unregister("batch")


def _stepscope(trace: str, database: str) -> None:
    sys.path.insert(0, str(ROOT))
    from traces.readers.base import ReadOptions
    from traces.readers.kineto import KinetoReader

    sink = _DuckSink(database)
    report = KinetoReader().read(Path(trace), 0, sink, ReadOptions())
    sink.connection.close()
    print(report.events, report.kept, report.dropped, file=sys.stderr)


def _hta(trace: str, _database: str) -> None:
    from hta.trace_analysis import TraceAnalysis

    TraceAnalysis(trace_files={0: trace}, trace_dir=str(Path(trace).parent))


def _orjson(trace: str, _database: str) -> None:
    import orjson

    raw = Path(trace).read_bytes()
    orjson.loads(gzip.decompress(raw) if trace.endswith(".gz") else raw)


CHILDREN: dict[str, Callable[..., None]] = {"make": _make, "stepscope": _stepscope, "hta": _hta, "orjson": _orjson}

if __name__ == "__main__":
    main()
