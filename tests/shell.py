"""The command line in this process: what a command prints and its exit code. A traceback is a failure of the test."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from typing import Any

import pytest

import cli


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Standard output as JSON, which has no NaN."""
        return json.loads(self.out, parse_constant=_no_number)


def stepscope(*arguments: object) -> Done:
    """Run a command line in the current folder."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stopped:
        cli.main([str(item) for item in arguments])
    return Done(int(stopped.value.code or 0), out.getvalue(), err.getvalue())


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no JSON")
