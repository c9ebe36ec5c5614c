"""What of a prompt may be kept: keys that tell where two prompts are equal, and nothing of their text.

A key is a 64-bit hash under a secret of the run that is thrown away with the process, so equal text has equal keys within
a run and nothing can be looked up in them. Two kinds, one of each per token:

prefix key  of the context (prompt, then output) from its start to the token: equal keys mean equal text up to there
tail key    of a segment from the token to the segment's end: equal keys mean equal text from there on, wherever it lies
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import polars as pl

from traces.errors import UsageProblem

Tokens: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]
Keys: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]

MOST_TOKENS = 16_000_000  # of one run, kept as 4 bytes each until its end and as 16 in the file
_U64 = np.uint64
_TOKEN, _PLACE = _U64(0x9E3779B97F4A7C15), _U64(0xC2B2AE3D27D4EB4F)


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Consecutive parts of a prompt: part i reaches from `starts[i]` to the next start; the first starts at 0."""

    roles: tuple[str, ...]  # as prompt_segments.role
    starts: tuple[int, ...]  # tokens


@dataclass(slots=True, kw_only=True)
class Prompt:
    """The context of one request that has ended: ids of its prompt, then of its output."""

    client_request_id: str
    index: int  # in the plan
    pass_name: str
    prompt_tokens: int
    ids: Tokens
    segments: Segments | None = None


class PromptKeys:
    """Keys under one secret."""

    def __init__(self) -> None:
        self._secret = np.frombuffer(secrets.token_bytes(24), dtype=np.uint64)

    def prefix(self, ids: Tokens) -> Keys:
        """Key of `ids[: i + 1]` at every i."""
        return _mixed(
            np.cumsum(self._terms(ids, np.arange(len(ids), dtype=np.uint64), 0), dtype=np.uint64) + self._secret[1]
        )

    def tails(self, ids: Tokens, starts: Sequence[int]) -> Keys:
        """Key at every i of `ids` from i to the end of the segment that i lies in; segments begin at `starts`."""
        if not len(ids):
            return np.zeros(0, dtype=np.uint64)
        bounds = np.asarray([*starts, len(ids)], dtype=np.int64)
        ends = np.repeat(bounds[1:], np.diff(bounds))
        left = ends - 1 - np.arange(len(ids))
        terms = self._terms(ids, left.astype(np.uint64), 2)
        total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms, dtype=np.uint64)])
        return _mixed(total[ends] - total[:-1] + self._secret[1])

    def _terms(self, ids: Tokens, place: Keys, part: int) -> Keys:
        terms: Keys = _mixed(ids.astype(np.uint64) * _TOKEN + place * _PLACE + self._secret[part])
        return terms


def _mixed(values: Keys) -> Keys:
    """A bijection of 64 bits in which every bit depends on every other (the finalizer of splitmix64)."""
    values = values ^ (values >> _U64(30))
    values = values * _U64(0xBF58476D1CE4E5B9)
    values = values ^ (values >> _U64(27))
    values = values * _U64(0x94D049BB133111EB)
    mixed: Keys = values ^ (values >> _U64(31))
    return mixed


@dataclass(slots=True, kw_only=True)
class PromptStore:
    """Contexts of a run until they are written; past MOST_TOKENS further ones are only counted."""

    prompts: list[Prompt] = field(default_factory=list)
    tokens: int = 0
    left_out: int = 0  # requests

    def take(
        self, client_request_id: str, *, index: int, pass_name: str, prompt: Sequence[int] | None, output: Sequence[int]
    ) -> None:
        """Keep a context, where the server told the ids of the prompt and of its output."""
        if prompt is None or not prompt:
            return
        try:
            ids = np.fromiter((*prompt, *output), dtype=np.int32, count=len(prompt) + len(output))
        except OverflowError:  # no ids of a tokenizer
            self.left_out += 1
            return
        if self.tokens + len(ids) > MOST_TOKENS:
            self.left_out += 1
            return
        self.tokens += len(ids)
        self.prompts.append(
            Prompt(
                client_request_id=client_request_id,
                index=index,
                pass_name=pass_name,
                prompt_tokens=len(prompt),
                ids=ids,
            )
        )

    def write(self, path: Path) -> None:
        """One row per request into a parquet file. Raises UsageProblem where it cannot be written."""
        keys = PromptKeys()
        rows = pl.DataFrame([_row(prompt, keys) for prompt in self.prompts], schema=_SCHEMA)
        scratch = path.with_name(path.name + ".part")
        try:
            packed = io.BytesIO()  # what polars raises on a full disk is no OSError
            rows.write_parquet(packed, compression="uncompressed")  # keys do not compress
            scratch.write_bytes(packed.getbuffer())
            scratch.replace(path)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise UsageProblem(
                f"cannot write {path}: {error.strerror}", hint="free space, or give another --out"
            ) from error


_SCHEMA: dict[str, pl.DataType] = {
    "client_request_id": pl.String(), "pass": pl.String(), "prompt_tokens": pl.Int64(), "prefix_keys": pl.List(pl.UInt64()),
    "tail_keys": pl.List(pl.UInt64()), "segment_roles": pl.List(pl.String()), "segment_starts": pl.List(pl.Int64()),
}  # fmt: skip


def _row(prompt: Prompt, keys: PromptKeys) -> dict[str, object]:
    known = prompt.segments
    own = prompt.ids[: prompt.prompt_tokens]
    return {
        "client_request_id": prompt.client_request_id, "pass": prompt.pass_name, "prompt_tokens": prompt.prompt_tokens,
        "prefix_keys": pl.Series(keys.prefix(prompt.ids)),
        "tail_keys": None if known is None else pl.Series(keys.tails(own, known.starts)),
        "segment_roles": None if known is None else list(known.roles),
        "segment_starts": None if known is None else list(known.starts),
    }  # fmt: skip
