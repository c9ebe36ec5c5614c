"""Errors a user can cause: each carries a hint and the exit code of the data contract."""

from __future__ import annotations


class StepscopeError(Exception):
    """Something the user can act on. `message` says what happened, `hint` what to do about it."""

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", exit_code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code


class UsageProblem(StepscopeError):
    """A wrong option, a path that cannot be used, an environment that lacks something."""

    exit_code = 2


class UnreadableInput(StepscopeError):
    """Input from which nothing can be read at all."""

    exit_code = 3


class EngineFailed(StepscopeError):
    """The engine did not start, died, or did not answer in time."""

    exit_code = 4


class NothingToAnalyze(StepscopeError):
    """Readable, but with nothing to analyze, or withheld by health under `--strict`."""

    exit_code = 5
