"""Formats of request logs beyond Azure and Mooncake: equal to a naive reading, exact about what is wrong with a row."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.errors import UnreadableInput
from traces.requestlogs.base import PLANNED_COLUMNS, LogOptions, RequestLogFrame, RowProblem
from traces.requestlogs.registry import FORMATS, read_request_log

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "workloads"
S = 10**9


def shared(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"../shared/data/workloads/{name} is absent")
    return path


def read(tmp_path: Path, *lines: str, log_format: str | None = None, **options: Any) -> RequestLogFrame:
    path = tmp_path / "log"
    path.write_text("\n".join(lines) + "\n")
    return read_request_log(path, LogOptions(**options), name=log_format)


def rows(log: RequestLogFrame, *columns: str) -> list[tuple[Any, ...]]:
    return log.frame.select(columns).rows()


def problem(tmp_path: Path, good: str, bad: str, *head: str) -> str:
    """What is said of `bad` between two lines that are good; stopping says the same."""
    log = read(tmp_path, *head, good, "", bad)
    assert log.skipped == 1 and log.frame.height == 1
    (found,) = log.problems
    assert found.line == len(head) + 3
    with pytest.raises(UnreadableInput) as caught:
        read(tmp_path, *head, good, "", bad, bad_rows="stop")
    assert caught.value.message == f"{tmp_path / 'log'}:{found.line}: {found.message}"
    return found.message


# BurstGPT

SIX = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
EIGHT = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type"


def test_burstgpt_of_six_columns(tmp_path: Path) -> None:
    log = read(tmp_path, SIX, "5,ChatGPT,472,18,490,Conversation log", "45.5,GPT-4,1087,0,1087,API log", "46,x,0,0,0,y")
    assert log.format == "burstgpt" and log.skipped == 0 and not log.closed
    assert rows(log, "arrival_ns", "input_tokens", "output_tokens", "session_id") == [
        (0, 472, 18, None), (40_500_000_000, 1087, 0, None),
    ]  # fmt: skip
    assert log.notes == ("1 rows without prompt tokens, requests that failed, are left out",)


def test_burstgpt_of_eight_columns_by_name(tmp_path: Path) -> None:
    log = read(tmp_path, EIGHT, "1,7,2.5,m,10,4,14,c", "2,8,1,m,11,5,16,c", "9,7,1,m,30,6,36,c", "9.5,,1,m,1,1,2,a")
    assert rows(log, "session_id", "turn", "arrival_ns", "think_ns") == [
        ("session-7", 0, 0, 5_500_000_000), ("session-8", 0, S, None), ("session-7", 1, 8 * S, None),
        (None, None, 8_500_000_000, None),
    ]  # fmt: skip
    shuffled = read(tmp_path, "Response tokens,Timestamp,Request tokens", "4,1,10")
    assert rows(shuffled, "input_tokens", "output_tokens") == [(10, 4)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("5,m,1,1,2", "5 fields where the header names 6"),
        ("five,m,1,1,2,c", "Timestamp is not a number of seconds from 0"),
        ("-5,m,1,1,2,c", "Timestamp is not a number of seconds from 0"),
        ("nan,m,1,1,2,c", "Timestamp is not a number of seconds from 0"),
        ("1e300,m,1,1,2,c", "Timestamp is not a number of seconds from 0"),
        ("5,m,-1,1,2,c", "Request tokens is not a whole number from 0"),
        ("5,m,1,1.5,2,c", "Response tokens is not a whole number from 0"),
    ],
)
def test_burstgpt_bad_rows(bad: str, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, "5,m,1,1,2,c", bad, SIX) == message


@settings(max_examples=60, deadline=None)
@given(ns=st.integers(0, 9 * 10**18), digits=st.integers(0, 9))
def test_seconds_are_read_to_the_nanosecond(ns: int, digits: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    kept = ns // 10 ** (9 - digits) * 10 ** (9 - digits)
    text = f"{kept // S}.{kept % S:09d}"[: len(str(kept // S)) + 1 + digits].rstrip(".")
    log = read(tmp_path_factory.mktemp("log"), SIX, "0,m,1,1,2,c", f"{text},m,1,1,2,c")
    assert log.frame["arrival_ns"].to_list() == [0, kept]


# Qwen-Bailian


def chat(number: int, parent: int = -1, seconds: float = 0, tokens: int = 40, ids: tuple[int, ...] = (1, 2, 3)) -> str:
    return json.dumps({
        "chat_id": number, "parent_chat_id": parent, "timestamp": seconds, "input_length": tokens, "output_length": 3,
        "type": "text", "turn": 1, "hash_ids": list(ids),
    })  # fmt: skip


def test_bailian_conversations_hang_together_through_their_parents(tmp_path: Path) -> None:
    log = read(
        tmp_path, chat(10, seconds=0.5), chat(11, 10, 2), chat(12, 11, 3.25), chat(13, 10, 4), chat(20, seconds=1),
        chat(31, 30, 5), chat(32, 30, 6),
    )  # fmt: skip
    assert log.format == "bailian" and log.block_tokens == 16
    assert rows(log, "arrival_ns", "session_id", "turn") == [
        (0, "chat-10", 0), (S // 2, "chat-20", 0), (3 * S // 2, "chat-10", 1), (11 * S // 4, "chat-10", 2),
        (7 * S // 2, "chat-10", 3), (9 * S // 2, "chat-30", 0), (11 * S // 2, "chat-30", 1),
    ]  # fmt: skip
    assert log.frame["hash_ids"][0].to_list() == [1, 2, 3]


def test_bailian_chains_of_any_length(tmp_path: Path) -> None:
    log = read(tmp_path, *(chat(number, number - 1, number) for number in range(500)))
    assert log.frame["session_id"].unique().to_list() == ["chat-0"]
    assert log.frame["turn"].to_list() == list(range(500))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (chat(1), "chat_id is given twice"),
        (chat(2).replace('"chat_id": 2', '"chat_id": null'), "chat_id is not a whole number"),
        (chat(2, ids=(1, 2, 3, 4)), "4 hash ids for 40 tokens in blocks of 16"),
        (chat(2, seconds=-1), "timestamp is not a number of seconds from 0"),
        (chat(2)[:-4], "not JSON, or cut off"),
    ],
)
def test_bailian_bad_rows(bad: str, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, chat(1), bad) == message


def test_bailian_parents_in_a_circle(tmp_path: Path) -> None:
    log = read(tmp_path, chat(1), chat(2, 3), chat(3, 4), chat(4, 2), chat(5, 5), chat(6, 5))
    assert log.problems == tuple(
        RowProblem(line=line, message="parent_chat_id leads back to the same chat") for line in (2, 3, 4)
    )
    assert log.frame["session_id"].to_list() == ["chat-1", "chat-5", "chat-5"]


# vLLM timed_trace


def test_timed_trace_in_seconds_and_blocks_of_16_unless_told(tmp_path: Path) -> None:
    lines = [
        json.dumps({"timestamp": 1.5, "input_length": 40, "output_length": 2, "hash_ids": [5, 6]}),
        json.dumps({"timestamp": 2, "input_length": 7, "output_length": 2}),
    ]
    log = read(tmp_path, *lines)
    assert log.format == "timed_trace" and log.block_tokens == 16
    assert rows(log, "arrival_ns", "hash_ids") == [(0, [5, 6]), (S // 2, None)]
    told = read(tmp_path, *lines, block_tokens=32, ns_per_unit=1_000_000)
    assert told.block_tokens == 32 and told.frame["arrival_ns"].to_list() == [0, 500_000]


def test_blocks_of_512_are_mooncake_and_others_are_not(tmp_path: Path) -> None:
    def first(n_ids: int) -> str:
        return json.dumps({"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": list(range(n_ids))})

    assert read(tmp_path, first(2)).format == "mooncake"
    assert read(tmp_path, first(38)).format == "timed_trace"


# TraceLab

TRACELAB = "session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms"


@pytest.mark.parametrize("name", ["multi_session_example", "multi_session_large", "session_workload_example"])
def test_tracelab_equals_a_naive_reading(name: str) -> None:
    path = shared(f"tracelab/replay_examples_{name}.csv")
    log = read_request_log(path, LogOptions())
    with path.open(newline="") as source:
        by_session: dict[str, list[dict[str, str]]] = defaultdict(list)
        for row in csv.DictReader(source):
            by_session[row["session_id"]].append(row)
    expected = {}
    origin = min(int(found[0].get("arrival_time", 0)) for found in by_session.values())
    for session, found in by_session.items():
        context = 0
        for turn, row in enumerate(sorted(found, key=lambda row: int(row["round_idx"]))):
            prompt = int(row["prefix_len"]) + int(row["input_len"])
            expected[f"session-{session}", turn] = (
                (int(row.get("arrival_time", 0)) - origin) * 10**6 if turn == 0 else None,
                prompt, int(row["output_len"]), min(int(row["prefix_len"]), context), int(row["tool_wait_after_ms"]) * 10**6,
            )  # fmt: skip
            context = prompt + int(row["output_len"])
    columns = ("arrival_ns", "input_tokens", "output_tokens", "prefix_tokens", "tool_wait_ns")
    got = {(row[0], row[1]): row[2:] for row in rows(log, "session_id", "turn", *columns)}
    assert got == expected and log.closed and log.skipped == 0
    assert dict(log.frame.schema) == PLANNED_COLUMNS


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("0,0,1,1,1,1", "6 fields where the header names 7"),
        (",0,1,1,1,1,1", "session_id is empty"),
        ("0,x,1,1,1,1,1", "arrival_time is not a number of ms from 0"),
        ("0,0,-1,1,1,1,1", "round_idx is not a whole number from 0"),
        ("0,0,0,1,1,1,1", "the session has this round already"),
        ("0,0,1,0,0,1,1", "prefix_len and input_len are both 0"),
        ("0,0,1,1,1,x,1", "output_len is not a whole number from 0"),
        ("0,0,1,1,1,1,-3", "tool_wait_after_ms is not a number of ms from 0"),
    ],
)
def test_tracelab_bad_rows(bad: str, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, "0,0,0,0,5,1,1", bad, TRACELAB) == message


# Coding agents


def test_coding_agent_sessions_equal_a_naive_reading() -> None:
    path = shared("coding_agent_sessions.csv")
    log = read_request_log(path, LogOptions())
    with path.open(newline="") as source:
        given = list(csv.DictReader(source))
    by_line = {row[0]: row[1:] for row in rows(log, "line", "arrival_ns", "input_tokens", "output_tokens")}
    assert by_line == {
        line: (round(float(row["t_s"]) * S), int(row["in_tokens"]), int(row["out_tokens"]))
        for line, row in enumerate(given, 2)
    }
    assert log.closed and log.skipped == 0 and log.block_tokens == 64


def test_coding_agent_blocks_share_what_the_log_says() -> None:
    path = shared("coding_agent_sessions.csv")
    log = read_request_log(path, LogOptions())
    with path.open(newline="") as source:
        given = dict(enumerate(csv.DictReader(source), 2))
    seen: set[int] = set()
    before: dict[str, list[int]] = {}
    for line, session, ids in rows(log, "line", "session_id", "hash_ids"):
        row = given[line]
        assert len(ids) == -(-int(row["in_tokens"]) // 64)
        assert next((n for n, one in enumerate(ids) if one not in seen), len(ids)) * 64 == int(
            row["cached_tokens_infcache"]
        )
        last = before.get(session, [])
        common = next((n for n, (a, b) in enumerate(zip(last, ids, strict=False)) if a != b), min(len(last), len(ids)))
        assert common * 64 == int(row["lcp_prev_tokens"])
        seen.update(ids)
        before[session] = ids


def test_coding_agent_waits_are_what_the_next_call_waited(tmp_path: Path) -> None:
    head = "trace_id,agent,idx,t_s,in_tokens,out_tokens,lcp_prev_tokens,cached_tokens_infcache,input_types,api_time_s,think_time_s"
    log = read(
        tmp_path, head, "a,main,0,0.0,100,5,0,0,text,4.0,0.0", "a,main,1,10.0,130,5,64,64,tool_result,1.0,6.0",
        "a,main,2,12.0,190,5,128,128,text,,9.0", "a,main,3,20.0,190,5,128,128,text,2.0,", "a,main/x,0,0.0,64,5,0,0,text,1,0",
    )  # fmt: skip
    assert sorted(rows(log, "session_id", "turn", "tool_wait_ns", "think_ns")) == [
        ("a", 0, 6 * S, 0), ("a", 1, 0, 2 * S), ("a", 2, None, None), ("a", 3, None, None), ("a/main/x", 0, None, None),
    ]  # fmt: skip


# Conversations


def test_sharegpt_makes_a_request_of_every_answer(tmp_path: Path) -> None:
    talk = [
        {"from": "system", "value": "s" * 8}, {"from": "human", "value": "é" * 6}, {"from": "gpt", "value": "a" * 9},
        {"from": "human", "value": "b" * 4}, {"from": "gpt", "value": "c"},
    ]  # fmt: skip
    entries = [
        {"id": "x", "conversations": talk},
        {"conversations": [{"from": "human", "value": "?"}]},
        {"conversations": 3},
    ]
    for text in (json.dumps(entries), json.dumps(entries, indent=1), "\n".join(map(json.dumps, entries))):
        path = tmp_path / "log"
        path.write_text(text)
        log = read_request_log(path, LogOptions())
        assert log.format == "sharegpt" and log.closed
        assert rows(log, "session_id", "turn", "arrival_ns", "input_tokens", "output_tokens", "prefix_tokens") == [
            ("chat-0", 0, 0, 5, 3, 0), ("chat-0", 1, None, 9, 1, 8),
        ]  # fmt: skip
        assert [item.message for item in log.problems] == [
            "no answer of the model behind a message with text",
            "conversations is not a list of objects with from and value",
        ]
        assert any("estimated" in note for note in log.notes)


def test_a_torn_array_keeps_what_was_whole(tmp_path: Path) -> None:
    whole = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    text = f"[\n{json.dumps(whole)},\n{json.dumps(whole)},\n{json.dumps(whole)[:-9]}"
    log = read(tmp_path, text)
    assert log.frame.height == 2 and log.frame["line"].to_list() == [2, 3]
    assert log.problems == (RowProblem(line=4, message="not JSON, or cut off; nothing behind it can be read"),)


def test_an_array_larger_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.requestlogs.json_entries._CHUNK_CHARACTERS", 7)
    entries = [
        {"conversations": [{"from": "human", "value": "a" * n}, {"from": "gpt", "value": "]},{["}]}
        for n in range(1, 30)
    ]
    log = read(tmp_path, json.dumps(entries, indent=2))
    assert log.frame["input_tokens"].to_list() == [-(-n // 4) for n in range(1, 30)] and log.skipped == 0


def test_openai_chat_lines(tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "u" * 40}, {"role": "assistant", "content": "a" * 12}
    more = {"role": "user", "content": [{"type": "text", "text": "x"}]}
    log = read(
        tmp_path,
        json.dumps({"messages": [user, answer], "created": 1_700_000_000, "session_id": "s"}),
        json.dumps({"body": {"messages": [user], "max_tokens": 7}, "timestamp": "2023-11-14T22:13:21.5Z"}),
        json.dumps({
            "request": {"messages": [user, answer, more]}, "timestamp": 1_700_000_004_000, "session_id": "s",
            "response": {"body": {"usage": {"prompt_tokens": 99, "completion_tokens": 5}}},
        }),
    )  # fmt: skip
    assert log.format == "openai_chat" and log.origin_ns == 1_700_000_000 * S
    assert rows(log, "arrival_ns", "session_id", "turn", "input_tokens", "output_tokens", "prefix_tokens") == [
        (0, "s", 0, 10, 3, 0), (3 * S // 2, "chat-1", 0, 10, 7, 0), (4 * S, "s", 1, 99, 5, 13),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"messages": "hi"}', "messages is not a list of objects with a role"),
        ('{"messages": [{"content": "hi"}]}', "messages is not a list of objects with a role"),
        ('{"messages": [], "max_tokens": 3}', "the messages have no text"),
        (
            '{"messages": [{"role": "user", "content": "hi"}]}',
            "no answer, usage or max_tokens tells the length of the output",
        ),
        ("[1]", "not a JSON object"),
        ("{" * 5000, "not JSON, or cut off"),
    ],
)
def test_openai_bad_rows(bad: str, message: str, tmp_path: Path) -> None:
    assert problem(tmp_path, '{"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}', bad) == message


# All of them


@settings(max_examples=150, deadline=None)
@given(
    data=st.binary(max_size=300),
    start=st.sampled_from(["", SIX + "\n", TRACELAB + "\n", chat(1) + "\n", "[{", '{"messages":[']),
)
def test_no_bytes_do_more_than_raise_a_typed_error(
    data: bytes, start: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(start.encode() + data)
    for name in (None, *(item.name for item in FORMATS)):
        try:
            log = read_request_log(path, LogOptions(), name=name)
        except UnreadableInput:
            continue
        assert dict(log.frame.schema) == PLANNED_COLUMNS and log.frame.height > 0
        assert log.frame["input_tokens"].min() >= 1  # type: ignore[operator]
