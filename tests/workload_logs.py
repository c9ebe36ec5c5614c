"""Request logs for tests: the shared ones, small ones made to order, and the command run on them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from engine_harness import COMMAND

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "workloads"
S = 10**9
ROOM = 1 << 40


def shared(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"../shared/data/workloads/{name} is absent")
    return path


def mooncake(path: Path, *requests: tuple[int, int, tuple[int, ...]], output: int = 20) -> str:
    """A log of (ms, tokens, ids), and the spec that replays it."""
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text(
        "".join(json.dumps(dict(zip(keys, (ms, n, output, list(ids)), strict=True))) + "\n" for ms, n, ids in requests)
    )
    return f"replay:path={path}"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=120)
