"""The rows of `requests` and `tokens`: what the client saw and what the engine recorded, joined by id."""

from __future__ import annotations

from pathlib import Path

from ledger_run import MS, Run, at

from traces.store import TraceStore


def test_the_engines_records_are_joined_once_and_only_once(tmp_path: Path) -> None:
    """Several prompts in one request, older ids, other clients, and a client whose last turn has no next one."""
    run = Run(tmp_path)
    run.request("a", 0, queued=1, end=21, tokens=(20,), tool_ns=10 * MS)
    run.records.append(run.records[0] | {"client_request_id": "a2", "session_id": "a", "turn": 1, "sent_ns": at(36)})
    for number, engine in enumerate(("cmpl-a-1-0123abcd", "chatcmpl-a2", "foreign-1", "foreign-2")):
        queued = {
            "kind": "request",
            "event": "queued",
            "id": engine,
            "ts": at(2 + number),
            "prompt": 9,
            "arrival": at(1),
        }
        run.ledger.append(queued)
    run.ledger.append({"kind": "aborted", "ids": ["foreign-2"], "ts": at(9), "out": [3]})
    run.step(2, 15, a=(64, 0, 1))
    with TraceStore.open(run.ingest()) as store:
        rows = store.query("SELECT * FROM requests ORDER BY request_id").rows_by_key(
            "request_id", named=True, unique=True
        )
        tokens = store.query("SELECT request_id, i FROM tokens").rows()
    assert sorted(rows) == ["chatcmpl-a-0123abcd", "chatcmpl-a2", "cmpl-a-1-0123abcd", "foreign-1", "foreign-2"]
    assert sorted(tokens) == [("chatcmpl-a-0123abcd", 0), ("chatcmpl-a2", 0)]
    first, last = rows["chatcmpl-a-0123abcd"], rows["chatcmpl-a2"]
    assert (first["tool_ns"], first["client_ns"], first["queue_ns"]) == (10 * MS, 5 * MS, 1 * MS)
    assert (last["tool_ns"], last["client_ns"], last["client_request_id"], last["queued_ns"]) == (
        None,
        None,
        "a2",
        at(3),
    )
    assert [rows[f"foreign-{n}"]["status"] for n in (1, 2)] == ["running", "aborted"]
    assert {rows[f"foreign-{n}"][key] for n in (1, 2) for key in ("pass", "client_request_id")} == {None}
    assert (rows["foreign-2"]["arrival_ns"], rows["foreign-2"]["output_tokens"]) == (at(1), 3)
