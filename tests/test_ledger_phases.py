"""Phases of ledger rows by SQL against the token-by-token oracle: made-up schedules, no engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import duckdb
import pytest
from ledger_oracle import PHASES, Record, in_order, phase_rows, step_counts, stored_counts, stored_rows
from ledger_run import MS, at

from traces.ingest import IngestOptions, ingest

BLOCK = 4
# (new, computed, spec, accepted) of one request with a prompt of 10, step by step
Steps = list[tuple[int, int, int, int]]


def ledger_of(steps: Steps, *, prompt: int = 10) -> list[Record]:
    """The records of one request that is alone in every step."""
    records: list[Record] = [{"kind": "header", "pid": 7, "ts": at(-1)}]
    out = 0
    for seq, (new, computed, spec, accepted) in enumerate(steps):
        row = {"ids": "r", "new": new, "computed": computed, "prompts": prompt, "out": out, "spec": spec}
        records += _lines(seq, [row | {"first": seq == 0, "resumed": False}], {"r": accepted})
        out += accepted
    return records


def _lines(seq: int, rows: list[Record], accepted: dict[str, int] | None) -> Iterator[Record]:
    listed = {name: [row[name] for row in rows] for name in rows[0]}
    start = at(10 * seq)
    yield listed | {
        "kind": "step", "seq": seq, "t0": start, "t1": start + MS, "m0": 0, "total": sum(listed["new"]),
        "running": len(rows), "waiting": 0, "kv": 0.5,
    }  # fmt: skip
    if accepted is not None:
        times = {"r0": start + 8 * MS, "r1": start + 9 * MS}
        rest: Record = {"ids": list(accepted), "acc": list(accepted.values()), "done": [], "reason": [], "done_out": []}
        yield {"kind": "result", "seq": seq, **times, **rest}


class Request:
    """A request of a made-up engine with chunks, drafts, preemptions and prefix hits."""

    def __init__(self, random: Random, name: str) -> None:
        self.random, self.name = random, name
        self.prompt = random.randint(1, 30)
        self.output, self.drafts, self.first, self.resumed = 0, 0, True, False
        self.computed = self._hit()

    def _hit(self) -> int:
        blocks = (self.prompt + self.output - 1) // BLOCK
        return BLOCK * self.random.randint(0, blocks) if self.random.random() < 0.4 else 0

    def preempt(self) -> None:
        self.computed, self.drafts, self.resumed = self._hit(), 0, True

    def scheduled(self) -> tuple[Record, int]:
        """The row of a step, and the tokens that come of it."""
        known = self.prompt + self.output
        left = known + self.drafts - self.computed
        new = left if self.random.random() < 0.7 else self.random.randint(1, left)
        spec = max(0, self.computed + new - known)
        row = {
            "ids": self.name, "new": new, "computed": self.computed, "prompts": self.prompt, "out": self.output,
            "spec": spec, "first": self.first, "resumed": self.resumed,
        }  # fmt: skip
        self.first = self.resumed = False
        self.computed += new
        if self.computed < known:
            return row, 0
        accepted = 1 + self.random.randint(0, spec)
        self.computed -= spec - (accepted - 1)
        self.output += accepted
        self.drafts = self.random.choice((0, 0, 1, 3))
        return row, accepted


def random_ledger(seed: int, n_steps: int) -> list[Record]:
    random = Random(seed)
    live: list[Request] = []
    records: list[Record] = [{"kind": "header", "pid": 7, "ts": at(-1)}]
    for seq in range(n_steps):
        live = [request for request in live if random.random() > 0.04]
        for request in live:
            if random.random() < 0.08 and not request.first:
                request.preempt()
        live += [Request(random, f"r{seq}-{number}") for number in range(random.choice((0, 0, 1, 2)) if live else 1)]
        taken = [request for request in live if random.random() < 0.8] or live[:1]
        rows = [(request.name, *request.scheduled()) for request in taken]
        # A row without output is missing from the result, and the process dies before the last one.
        accepted = {name: count for name, _, count in rows if count}
        records += _lines(seq, [row for _, row, _ in rows], accepted if seq < n_steps - 1 else None)
    return records


def ingested(records: list[Record], folder: Path) -> duckdb.DuckDBPyConnection:
    ledger = folder / "7.jsonl"
    ledger.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))
    ingest([str(ledger)], folder / "run.duckdb", IngestOptions())
    return duckdb.connect(str(folder / "run.duckdb"), read_only=True)


def test_random_schedules(tmp_path: Path) -> None:
    records = random_ledger(seed=4, n_steps=600)
    expected = phase_rows(records)
    rows = {phase: {(row.seq, row.request_id) for row in expected if row.phase == phase} for phase in PHASES}
    assert min(map(len, rows.values())) > 50
    assert len(rows["recompute"] & rows["prefill"]) > 4, "chunks from below the high-water mark into the prompt"
    with ingested(records, tmp_path) as con:
        assert in_order(stored_rows(con)) == in_order(expected)
        assert stored_counts(con) == step_counts(records)


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        ([(9, 0, 0, 0), (1, 9, 0, 1), (1, 10, 0, 1)], ["prefill 9", "prefill 1", "decode 1"]),  # a last chunk of one
        ([(6, 4, 0, 1)], ["prefill 6"]),  # the rest was cached
        # preempted with 12 computed and 3 put out, the 3rd not computed yet
        (
            [(10, 0, 0, 1), (1, 10, 0, 1), (1, 11, 0, 1), (8, 0, 0, 0), (5, 8, 0, 1)],
            ["prefill 10", "decode 1", "decode 1", "recompute 8", "recompute 4", "decode 1"],
        ),
        # preempted in the middle of its prompt
        ([(6, 0, 0, 0), (10, 0, 0, 1)], ["prefill 6", "recompute 6", "prefill 4"]),
        # three drafts, one accepted: the next row begins behind it, and the rejected two are no recompute
        ([(10, 0, 0, 1), (4, 10, 3, 2), (1, 12, 0, 1)], ["prefill 10", "verify 4", "decode 1"]),
        # none accepted; preempted: what counts as computed is the token itself
        (
            [(10, 0, 0, 1), (4, 10, 3, 1), (12, 0, 0, 1)],
            ["prefill 10", "verify 4", "recompute 11", "decode 1"],
        ),
        # after a preemption the prefix cache gives back more than had been computed
        ([(3, 0, 0, 0), (2, 8, 0, 1)], ["prefill 3", "prefill 2"]),
    ],
)
def test_rows_of_one_request(steps: Steps, phases: list[str], tmp_path: Path) -> None:
    records = ledger_of(steps)
    with ingested(records, tmp_path) as con:
        rows = in_order(stored_rows(con))
        assert [f"{row.phase} {row.new_tokens}" for row in rows] == phases
        assert rows == in_order(phase_rows(records))
        assert stored_counts(con) == step_counts(records)


def test_a_request_with_two_prefill_phases_has_one_context(tmp_path: Path) -> None:
    """Recompute and prefill in one chunk read one cache: q = 10, k = 10, not 6 at 6 and 4 at 10."""
    with ingested(ledger_of([(6, 0, 0, 0), (10, 0, 0, 1)]), tmp_path) as con:
        sums = con.execute(
            "SELECT prefill_reqs, prefill_tokens, prefill_kv_tokens, prefill_qq, prefill_qk FROM steps WHERE ledger_seq = 1"
        ).fetchone()
    assert sums == (1, 10, 10, 100, 100)
