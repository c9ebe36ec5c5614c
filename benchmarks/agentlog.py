"""Seconds and peak memory of `stepscope agentlog` on a block-hash log that is made here.

    python benchmarks/agentlog.py --requests 5000000
    python benchmarks/agentlog.py --requests 500000 --cache tokens=20M --ttl 300

The log is like an agent service's: sessions that grow by some blocks of 512 tokens per turn, many at a time, now and
then with a changed prefix; half of them begin with one of a few system prompts. It is removed afterwards. The command
runs as a process of its own, interpreter start included.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCK = 512
LIVE_SESSIONS = 2_000
SYSTEM_PROMPTS, SYSTEM_BLOCKS = 20, 4


def main() -> None:
    """Make the log, run the command, print what it took."""
    options = _arguments()
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        log = Path(scratch) / "blocks.jsonl"
        began = time.perf_counter()
        blocks = _write(log, options.requests, options.sessions_named)
        made_s = time.perf_counter() - began
        print(
            f"{options.requests:,} requests, {blocks:,} distinct blocks, {log.stat().st_size / 1e6:,.0f} MB, made in {made_s:.0f} s"
        )
        for _ in range(options.repeats):
            wall_s, peak_mb, found = _run(log, options)
            print(
                f"agentlog: {wall_s:.1f} s, {options.requests / wall_s / 1e3:,.0f}k requests/s, peak {peak_mb:.0f} MB; "
                f"hit ratio {found['hit_ratio']}, sessions {found['sessions']}"
            )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5_000_000)
    parser.add_argument("--cache", default="infinite")
    parser.add_argument("--ttl", type=float)
    parser.add_argument("--model", help="with --gpu: predicted prefill time too")
    parser.add_argument("--gpu")
    parser.add_argument("--sessions-named", action="store_true", help="a session_id in every request")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--scratch", help="directory for the log (default: the temporary one)")
    return parser.parse_args()


def _write(log: Path, requests: int, named: bool) -> int:
    """JSON lines; returns how many block ids there are."""
    chance = random.Random(7)
    next_id = SYSTEM_PROMPTS * SYSTEM_BLOCKS
    live: list[tuple[int, list[int]]] = []
    sessions = 0
    with log.open("w", buffering=1 << 20) as out:
        for number in range(requests):
            at = chance.randrange(LIVE_SESSIONS)
            if at >= len(live):
                at = len(live)
                live.append((-1, []))
            session, ids = live[at]
            if not ids or chance.random() < 0.1:
                head = chance.randrange(2 * SYSTEM_PROMPTS)
                start = head * SYSTEM_BLOCKS
                ids = list(range(start, start + SYSTEM_BLOCKS)) if head < SYSTEM_PROMPTS else []
                session, sessions = sessions, sessions + 1
            elif chance.random() < 0.02:
                ids = ids[: len(ids) // 2]
            more = chance.randrange(1, 4)
            ids += range(next_id, next_id + more)
            next_id += more
            live[at] = (session, ids)
            who = f', "session_id": "s{session}"' if named else ""
            tail = f'"hash_ids": {ids}{who}}}\n'
            out.write(
                f'{{"timestamp": {number * 2}, "input_length": {len(ids) * BLOCK}, "output_length": {chance.randrange(1, 900)}, {tail}'
            )
    return next_id


def _run(log: Path, options: argparse.Namespace) -> tuple[float, float, dict[str, str]]:
    """(wall seconds, peak MB, some totals). This process stays small, since a child inherits its peak."""
    command = [
        str(Path(sys.executable).with_name("stepscope")),
        "agentlog",
        str(log),
        "--json",
        "--cache",
        options.cache,
    ]
    command += ["--ttl", str(options.ttl)] if options.ttl is not None else []
    command += ["--model", options.model, "--gpu", options.gpu] if options.model else []
    told = log.with_suffix(".json")
    began = time.perf_counter()
    with told.open("w") as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    with told.open() as answer:
        start = answer.read(1 << 14)  # the totals come first
    found = dict(re.findall(r'"(hit_ratio|sessions)": ([0-9.]+)', start))
    return wall_s, usage.ru_maxrss * 1024 / 1e6, found


if __name__ == "__main__":
    main()
