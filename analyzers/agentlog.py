"""What agents' logs say about re-reading: per session and turn, what was cached, fresh, sent back and lost, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from analyzers.agentlog_cost import PromptCost
from analyzers.agentlog_pieces import INFINITE, PIECES, RECORDED, SIZED, Cache, as_recorded, pieces_of
from analyzers.agentlog_replay import Replayed, UnitReplay, block_of, lengths
from analyzers.agentlog_sums import SESSIONS_KEPT, SUMS, SessionSums, label_of, session_frame, values_of, with_ratios
from traces.agentlogs.base import ROLES, Batch, LogProblem, Reading
from traces.errors import NothingToAnalyze

Ints = npt.NDArray[np.int64]

TURNS_KEPT = 200_000  # of more requests there are sessions and totals, no turns
_EPOCH_FROM = 10**18  # ns: a clock beyond is the epoch's, not the log's own


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLog:
    """What was found. Frames' columns are described in docs/agentlog.md."""

    cache: Cache
    block_tokens: tuple[int, ...]  # of the cache, by log
    formats: dict[str, int]  # requests by format
    token_sources: dict[str, int]  # requests by where their counts come from
    files: int
    totals: dict[str, Any]
    sessions: pl.DataFrame  # in order of what they lost
    turns: pl.DataFrame | None  # None: more than TURNS_KEPT
    skipped: int
    repeated: int
    problems: tuple[LogProblem, ...]
    notes: tuple[str, ...]


class _Account:
    """Everything that is summed up while batches come in."""

    def __init__(self, cache: Cache, cost: PromptCost | None, reading: Reading) -> None:
        self.cache, self.cost, self.reading = cache, cost, reading
        self.units, self.by_units = UnitReplay(cache), SessionSums(0, costed=cost is not None)
        self.by_length = SessionSums(1, costed=cost is not None)
        self.waiting: list[tuple[pl.DataFrame, Ints, int | None, Batch]] = []
        self.formats: dict[str, int] = {}
        self.sources: dict[str, int] = {}
        self.files: set[str] = set()
        self.blocks: set[int] = set()
        self.ratios: list[tuple[int, Ints, npt.NDArray[np.float64]]] = []
        self.turns: list[pl.DataFrame] | None = []
        self.requests = 0

    def take(self, batch: Batch) -> None:
        """A batch as it comes."""
        batch = _with_recorded(batch, self.cache, self.reading)
        if not batch.requests.height:
            return
        n = batch.requests.height
        self.files.add(str(batch.path))
        self.formats[batch.format] = self.formats.get(batch.format, 0) + n
        for source, count in batch.requests["token_source"].value_counts().iter_rows():
            self.sources[source] = self.sources.get(source, 0) + count
        if batch.units is None:
            filled = batch.requests.with_columns(pl.col("session").fill_null("unnamed"))
            kept = replace(batch, requests=filled)
            sessions = self.by_length.numbers(kept, len(self.by_length.names))
            self.waiting.append((filled, sessions, batch.block_tokens, kept))
            return
        sessions = self.by_units.numbers(batch, self.units.n_sessions)
        self._book(self.by_units, batch, self.units.run(batch, sessions), batch.block_tokens)

    def finish(self) -> None:
        """Logs with lengths only: all at once, since a session may lie in several files."""
        if not self.waiting:
            return
        frame = pl.concat([
            item.with_columns(_s=pl.Series(sessions), _b=pl.lit(block or 0), _f=pl.lit(number))
            for number, (item, sessions, block, _) in enumerate(self.waiting)
        ])  # fmt: skip
        starts = frame["start_ns"]
        if starts.null_count() == 0 and starts.to_numpy().min() >= _EPOCH_FROM:
            frame = frame.sort("start_ns", maintain_order=True)
        sessions = frame["_s"].to_numpy()
        found = lengths(frame, sessions, self.cache)
        first = self.waiting[0][3]
        merged = Batch(path=first.path, format=first.format, requests=frame)
        for block in frame["_b"].unique(maintain_order=True).to_list():
            self._book(self.by_length, merged, found, block or None, rows=(frame["_b"] == block).to_numpy())
        self.waiting.clear()

    def _book(
        self, space: SessionSums, batch: Batch, found: Replayed, log_block: int | None,
        rows: npt.NDArray[np.bool_] | None = None,
    ) -> None:  # fmt: skip
        if self.cache.kind == RECORDED:
            told = batch.requests["cached_tokens"].to_numpy()
            found = replace(found, facts=as_recorded(found.facts, told))
        block = block_of(self.cache, log_block)
        self.blocks.add(block)
        if log_block and block % log_block:
            self.reading.note(
                f"the log tells of blocks of {log_block:,} tokens: reuse is known to these, not to {block:,}"
            )
        pieces = pieces_of(found.facts, self.cache, block=block, log_block=log_block or 1)
        if not np.array_equal(pieces.sum(axis=1), found.facts.total) or pieces.min(initial=0) < 0:
            raise AssertionError("the pieces do not tile every prompt")
        spent = None if self.cost is None else np.rint(self.cost.piece_ns(pieces)).astype(np.int64)
        values = values_of(batch.requests, found, pieces, spent)
        keep = np.ones(len(values), dtype=np.bool_) if rows is None else rows
        start = batch.requests["start_ns"].fill_null(-1).to_numpy()
        end = start + batch.requests["api_ns"].fill_null(0).to_numpy()
        space.add(found.sessions[keep], values[keep], start[keep], end[keep])
        self._observe(space, batch.requests, found, keep)
        self.requests += int(keep.sum())
        if self.turns is not None and self.requests > TURNS_KEPT:
            self.turns = None
        if self.turns is not None:
            self.turns.append(_turn_frame(space, batch, found, pieces, spent).filter(pl.Series(keep)))

    def _observe(
        self, space: SessionSums, requests: pl.DataFrame, found: Replayed, keep: npt.NDArray[np.bool_]
    ) -> None:
        """Observation to output: what a tool's result added, against the answer that asked for it."""
        facts = found.facts
        steps = (
            requests["tool_step"].fill_null(value=False).to_numpy()
            & (facts.before_in >= 0)
            & (facts.before_out > 0)
            & keep
        )
        if not steps.any():
            return
        grown = np.clip(facts.total - facts.before_in, 0, None)[steps]
        wrote = facts.before_out[steps]
        self.ratios.append((space.key, found.sessions[steps], np.clip(grown - wrote, 0, None) / wrote))


def account(batches: Iterable[Batch], cache: Cache, reading: Reading, *, cost: PromptCost | None = None) -> AgentLog:
    """Replay all requests against `cache`. Raises NothingToAnalyze where no request could be read."""
    book = _Account(cache, cost, reading)
    for batch in batches:
        book.take(batch)
    book.finish()
    if not book.requests:
        raise NothingToAnalyze(
            "the logs hold no request with token counts",
            hint=_first_problem(reading) or "give logs of a model's answers",
        )
    sessions = _sessions(book)
    return AgentLog(
        cache=cache, block_tokens=tuple(sorted(book.blocks)), formats=book.formats, token_sources=book.sources,
        files=len(book.files), totals=_totals(sessions, book), sessions=sessions, turns=_all_turns(book),
        skipped=reading.skipped, repeated=reading.repeated, problems=tuple(reading.problems), notes=_notes(book),
    )  # fmt: skip


def _first_problem(reading: Reading) -> str:
    if not reading.problems:
        return ""
    item = reading.problems[0]
    return f"first of {reading.skipped:,} records left out: {item.path.name}:{item.line}: {item.message}"


def _with_recorded(batch: Batch, cache: Cache, reading: Reading) -> Batch:
    """With the cache as recorded, only requests that tell of it."""
    told = batch.requests["cached_tokens"].is_not_null()
    if cache.kind != RECORDED or told.all():
        return batch
    reading.note(f"{batch.path.name}: {batch.requests.height - told.sum():,} requests do not tell what was reused")
    units = None if batch.units is None else batch.units.of_requests(told.to_numpy())
    return replace(batch, requests=batch.requests.filter(told), units=units)


def _turn_frame(space: SessionSums, batch: Batch, found: Replayed, pieces: Ints, spent: Ints | None) -> pl.DataFrame:
    requests = batch.requests
    role = None if found.break_role is None else [None if r < 0 else ROLES[r] for r in found.break_role.tolist()]
    return requests.select(
        "line", "start_ns", "token_source", prompt_tokens="input_tokens", output_tokens="output_tokens",
        recorded_cached_tokens="cached_tokens", tool_step="tool_step", tool_wait_ns="tool_wait_ns", api_ns="api_ns",
    ).with_columns(
        pl.Series("_space", [space.key] * requests.height, dtype=pl.Int64), pl.Series("_session", found.sessions),
        pl.Series("turn", found.turns),
        *(pl.Series(f"{name}_tokens", pieces[:, i]) for i, name in enumerate(PIECES)),
        pl.Series("break_token", found.break_token).replace(-1, None),
        pl.Series("break_role", role, dtype=pl.String) if role is not None else pl.lit(None, dtype=pl.String).alias("break_role"),
        *(() if spent is None else (pl.Series(f"{name}_ns", spent[:, i]) for i, name in enumerate(PIECES) if i)),
    )  # fmt: skip


def _sessions(book: _Account) -> pl.DataFrame:
    frame = pl.concat([
        session_frame(space, kind)
        for space, kind in ((book.by_units, "prompt parts"), (book.by_length, "lengths")) if space.sums[:, 0].any()
    ])  # fmt: skip
    frame = frame.join(_medians(book), on=["_space", "_session"], how="left", maintain_order="left")
    return with_ratios(frame).sort("lost_tokens", "prompt_tokens", descending=True, maintain_order=True)


def _medians(book: _Account) -> pl.DataFrame:
    parts = [
        pl.DataFrame({"_space": np.full(len(values), space), "_session": sessions, "ratio": values})
        for space, sessions, values in book.ratios
    ]
    if not parts:
        parts = [pl.DataFrame(schema={"_space": pl.Int64, "_session": pl.Int64, "ratio": pl.Float64})]
    return pl.concat(parts).group_by("_space", "_session").agg(observation_to_output=pl.col("ratio").median())


def _totals(sessions: pl.DataFrame, book: _Account) -> dict[str, Any]:
    names = [*SUMS, *(f"{name}_tokens" for name in PIECES)]
    names += [name for name in (f"{piece}_ns" for piece in PIECES) if name in sessions.columns]
    row = with_ratios(sessions.select(pl.col(name).sum() for name in names)).to_dicts()[0]
    ratios = np.concatenate([values for _, _, values in book.ratios]) if book.ratios else np.zeros(0)
    row["sessions"] = book.units.n_sessions + len(book.by_length.names)
    row["observation_to_output"] = float(np.median(ratios)) if len(ratios) else None
    row["observation_steps"] = len(ratios)
    positive = ratios[ratios > 0]
    row["observation_to_output_of_positive"] = float(np.median(positive)) if len(positive) else None
    return {key: value for key, value in row.items() if not key.startswith("told_")}


def _all_turns(book: _Account) -> pl.DataFrame | None:
    if book.turns is None:
        return None
    frame = pl.concat(book.turns)
    spaces = {space.key: space for space in (book.by_units, book.by_length)}
    keys = zip(frame["_space"].to_list(), frame["_session"].to_list(), strict=True)
    labels = [label_of(spaces[space], number) for space, number in keys]
    return frame.with_columns(
        pl.Series("session", [item[0] for item in labels], dtype=pl.String),
        pl.Series("file", [item[3] for item in labels], dtype=pl.String),
        order=pl.int_range(pl.len()),
    )


def _notes(book: _Account) -> tuple[str, ...]:
    notes, cache = list(book.reading.notes), book.cache
    if max(book.units.n_sessions, len(book.by_length.names)) > SESSIONS_KEPT:
        notes.append(f"sessions after the first {SESSIONS_KEPT:,} share one row")
    if book.by_length.sums[:, 0].any():
        notes.append(
            "lengths only: a prompt is taken to begin with the session's earlier prompt, and nothing to be shared "
            "between sessions"
        )
    if cache.kind in (INFINITE, SIZED) and any(
        name not in ("coding-agent-csv", "tracelab-csv") for name in book.formats
    ):  # fmt: skip
        notes.append("answers are taken not to stay in the cache; where an engine keeps them, resent_output is cached")
    beyond = int(book.by_length.sums[:, SUMS.index("beyond_tokens")].sum())
    if beyond and cache.kind == INFINITE:
        notes.append(
            f"the provider reused {beyond:,} tokens beyond what the session's own prompts explain: prefixes shared with "
            "other sessions, or answers kept"
        )
    estimated = sum(count for source, count in book.sources.items() if source != "recorded")
    if estimated:
        how = "the given tokenizer" if "tokenizer" in book.sources else "characters / 4, an estimate"
        notes.append(f"tokens of {estimated:,} requests are not recorded: counted by {how}")
    return tuple(notes)
