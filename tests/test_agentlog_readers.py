"""Readers of agents' logs: what each counts, on published logs and on broken ones."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.agentlogs.base import Batch, Reading
from traces.agentlogs.measure import Measure, chunk_chars
from traces.agentlogs.registry import FORMATS, read_agent_logs
from traces.agentlogs.values import moment_ns, usage_of, whole
from traces.errors import StepscopeError, UnreadableInput, UsageProblem

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def read(*paths: Path | str, **options: Any) -> tuple[list[Batch], Reading]:
    name = options.pop("name", None)
    reading = Reading(measure=options.pop("measure", None) or Measure(), **options)
    return list(read_agent_logs([str(path) for path in paths], reading, name=name)), reading


def rows(*paths: Path | str, **options: Any) -> list[dict[str, Any]]:
    batches, _ = read(*paths, **options)
    return pl.concat([batch.requests for batch in batches]).to_dicts()


def sample(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"sample logs are not here: {path}")
    return path


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join((item if isinstance(item, str) else json.dumps(item)) + "\n" for item in records))
    return path


# ---- usage ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        # OpenAI's prompt_tokens and input_tokens include what was cached, Anthropic's input_tokens do not.
        ({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}, (100, 7, 64)),
        ({"prompt_tokens": 100, "completion_tokens": 7}, (100, 7, None)),
        ({"input_tokens": 100, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 64}}, (100, 7, 64)),
        ({"input_tokens": 100, "output_tokens": 7, "cached_input_tokens": 64}, (100, 7, 64)),
        ({"input_tokens": 2, "output_tokens": 7, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 38},
         (100, 7, 60)),
        ({"input_tokens": 2, "output_tokens": 7}, (2, 7, None)),
        # A gateway that fills both spellings.
        ({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 60},
          "cache_read_input_tokens": 60, "cache_creation_input_tokens": 38}, (100, 7, 60)),
        ({"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 101}}, (100, 7, None)),
        ({"prompt_tokens": -1, "completion_tokens": 7}, None),
        ({"prompt_tokens": True, "completion_tokens": 7}, None),
        ({"prompt_tokens": 10**30, "completion_tokens": 7}, None),
        ({"input_tokens": 2, "output_tokens": 7, "cache_read_input_tokens": "60"}, None),
        ({"completion_tokens": 7}, None),
        ([1], None),
        (None, None),
    ],
)  # fmt: skip
def test_usage(usage: Any, wanted: tuple[int, int, int | None] | None) -> None:
    found = usage_of(usage)
    assert (None if found is None else (found.input_tokens, found.output_tokens, found.cached_tokens)) == wanted


def test_values() -> None:
    assert whole(3.0) == 3 and whole(3.5) is None and whole(float("nan")) is None and whole("3") is None
    assert moment_ns("1970-01-01T00:00:01.5Z") == moment_ns("1970-01-01T00:00:01.5") == moment_ns(1.5) == 1_500_000_000
    assert moment_ns(1_700_000_000_000) == moment_ns(1_700_000_000) == 1_700_000_000 * 10**9
    assert moment_ns("1970-01-01T01:00:01+01:00") == 10**9
    assert moment_ns(10**400) is None and moment_ns("9999-12-31T00:00:00Z") is None and moment_ns("soon") is None


@given(st.text(max_size=300))
def test_chunks_are_of_the_whole_text(text: str) -> None:
    measure = Measure()
    assert chunk_chars(text).sum() == len(text)
    assert len(chunk_chars(text)) == len(measure.chunks("user", text))
    assert measure.chunks("user", text).tolist() != measure.chunks("tool", text).tolist()


# ---- published logs ---------------------------------------------------------------------------------------------


def test_claude_code_counts_messages_not_records() -> None:
    batches, reading = read(sample("agent-logs/claude_code/tracelab_claude_session.jsonl"))
    frame = batches[0].requests
    assert frame.height == 10 and reading.repeated == 15  # of 25 records
    assert frame["message_id"].n_unique() == 10
    # The same session, normalised by others.
    path = sample("workloads/tracelab/sanitized_round_trace.jsonl")
    rounds = [item for item in map(json.loads, path.read_text().splitlines()) if item["provider"] == "claude"]
    for column, key in (
        ("input_tokens", "input_tokens_total"),
        ("output_tokens", "output_tokens"),
        ("cached_tokens", "prefix_tokens"),
    ):
        assert frame[column].to_list() == [item[key] for item in rounds]
    assert frame["tool_step"].to_list() == [item["current_tool_result_count"] > 0 for item in rounds]


def test_codex_counts_requests() -> None:
    path = sample("agent-logs/codex/tracelab_codex_rollout.jsonl")
    frame = read(path)[0][0].requests
    told = [json.loads(line)["payload"] for line in path.read_text().splitlines()]
    told = [item for item in told if item.get("type") == "token_count"]
    assert frame["input_tokens"].to_list() == [item["info"]["last_token_usage"]["input_tokens"] for item in told]
    assert frame["input_tokens"].sum() == told[-1]["info"]["total_token_usage"]["input_tokens"]
    assert frame["cached_tokens"].sum() == told[-1]["info"]["total_token_usage"]["cached_input_tokens"]
    assert frame["output_tokens"].sum() == told[-1]["info"]["total_token_usage"]["output_tokens"]
    assert frame["tool_step"].to_list() == [False, True, True, True, True, False, True, False, True]
    assert frame["model"].unique().to_list() == ["gpt-5.4"]


def test_transcripts_grow_by_what_stands_in_them() -> None:
    path = sample("agent-logs/miniswe/github_issue.traj.json")
    messages = json.loads(path.read_text())
    wanted, before = [], 0
    for message in messages:
        tokens = -(-len(message["content"]) // 4)
        if message["role"] == "assistant":
            wanted.append((before, tokens))
        before += tokens
    found = rows(path)
    assert [(row["input_tokens"], row["output_tokens"]) for row in found] == wanted
    assert {row["token_source"] for row in found} == {"estimate"}


@pytest.mark.parametrize(
    ("name", "log_format", "requests"),
    [
        ("agent-logs/sweagent/ctf_crypto_katy.traj", "swe-agent", 18),
        ("agent-logs/sweagent/ctf_web_i_got_id_demo.traj", "swe-agent", 21),
        ("agent-logs/sweagent/function_calling_simple.traj", "swe-agent", 5),
        ("agent-logs/sweagent/marshmallow-1867_function_calling_replace.traj", "swe-agent", 11),
        ("agent-logs/sweagent/marshmallow-1867_function_calling_replace_from_source.traj", "swe-agent", 13),
        ("agent-logs/sweagent/pydicom-1458_gpt4.traj", "swe-agent", 12),
        ("agent-logs/miniswe/local.traj.json", "mini-swe-agent", 2),
        ("agent-logs/openhands/basic.json", "openhands", 2),
        ("agent-logs/openhands/resolver_mock_output.jsonl", "openhands", 26),
        ("agent-logs/taubench/gpt-4o-airline_first52.json", "tau-bench", 664),
        ("agent-logs/claude_code/ccl_edge_cases.jsonl", "claude-code", 4),
        ("agent-logs/claude_code/ccl_todowrite_examples.jsonl", "claude-code", 6),
        ("workloads/coding_agent_raw/trace_0074.json", "block-session", 20),
        ("workloads/coding_agent_sessions.csv", "coding-agent-csv", 3464),
        ("workloads/mooncake_fast25_synthetic_trace.jsonl", "block-hash", 3993),
        ("workloads/tracelab/sanitized_round_trace.jsonl", "tracelab", 19),
        ("workloads/tracelab/replay_examples_multi_session_example.csv", "tracelab-csv", 8),
        ("workloads/tracelab/replay_examples_session_workload_example.csv", "tracelab-csv", 11),
    ],
)
def test_formats_are_recognised(name: str, log_format: str, requests: int) -> None:
    batches, _ = read(sample(name))
    assert {batch.format for batch in batches} == {log_format}
    assert sum(batch.requests.height for batch in batches) == requests


def test_malformed_records_are_named(tmp_path: Path) -> None:
    _, reading = read(sample("agent-logs/claude_code/ccl_edge_cases.jsonl"))
    assert [(item.line, item.message) for item in reading.problems] == [
        (13, "not a JSON object"), (14, "a record without a type"), (15, "not a JSON object"), (16, "not a JSON object"),
    ]  # fmt: skip
    with pytest.raises(UnreadableInput, match=r"ccl_edge_cases\.jsonl:13: not a JSON object"):
        read(sample("agent-logs/claude_code/ccl_edge_cases.jsonl"), bad_rows="stop")


# ---- made logs --------------------------------------------------------------------------------------------------


def claude(kind: str, at: int, **more: Any) -> dict[str, Any]:
    return {
        "type": kind, "sessionId": "s", "uuid": f"u{at}", "isSidechain": False, "timestamp": f"2026-01-01T00:00:{at:02d}Z",
        **more,
    }  # fmt: skip


def answer(at: int, key: str, tokens: int, output: int, **more: Any) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": output, "cache_read_input_tokens": 0}
    return claude("assistant", at, message={"id": key, "role": "assistant", "content": [], "usage": usage}, **more)


def test_a_resumed_session_is_counted_once(tmp_path: Path) -> None:
    first = lines(
        tmp_path / "a.jsonl",
        claude("user", 1, message={"content": "x"}),
        answer(2, "m1", 10, 1),
        answer(3, "m1", 10, 5),
    )
    second = lines(tmp_path / "b.jsonl", answer(2, "m1", 10, 5), answer(6, "m2", 20, 3))
    batches, reading = read(first, second)
    assert [batch.requests["message_id"].to_list() for batch in batches] == [["m1"], ["m2"]]
    assert batches[0].requests["output_tokens"].to_list() == [5]  # the last record of a stream has it all
    assert reading.repeated == 2


def test_sidechains_are_sessions_of_their_own(tmp_path: Path) -> None:
    log = lines(
        tmp_path / "a.jsonl", answer(1, "m1", 10, 1), answer(2, "m2", 5, 1, isSidechain=True, agentId="x"),
        answer(3, "m3", 6, 1, isSidechain=True, agentId="y"), claude("system", 4, subtype="compact_boundary"),
        answer(5, "m4", 7, 1),
    )  # fmt: skip
    found = rows(log)
    assert [(row["session"], row["parent_session"]) for row in found] == [
        ("s", None),
        ("s/x", "s"),
        ("s/y", "s"),
        ("s", None),
    ]
    assert [row["compaction"] for row in found] == [False, False, False, True]


def test_openai_chat_log(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "s" * 400}, {"role": "user", "content": "u" * 100}]
    said = {"role": "assistant", "content": "a" * 200}
    usage = {"prompt_tokens": 130, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 0}}
    first = {"timestamp": 100, "session_id": "x", "request": {"model": "m", "messages": messages},
             "response": {"id": "1", "choices": [{"message": said}], "usage": usage}}  # fmt: skip
    later = [*messages, said, {"role": "tool", "content": "t" * 300}]
    second = {"timestamp": 101, "session_id": "x", "request": {"model": "m", "messages": later},
              "response": {"id": "2", "choices": [{"message": said}], "usage": {**usage, "prompt_tokens": 260}}}  # fmt: skip
    batches, reading = read(lines(tmp_path / "a.jsonl", first, second, second))
    frame, units = batches[0].requests, batches[0].units
    assert frame["input_tokens"].to_list() == [130, 260] and reading.repeated == 1
    assert frame["tool_step"].to_list() == [False, True]
    assert units is not None
    assert [int(units.tokens[a:b].sum()) for a, b in zip(units.offsets, units.offsets[1:], strict=False)] == [130, 260]
    assert units.chain[: units.offsets[1]].tolist() == units.chain[units.offsets[1] :][: units.offsets[1]].tolist()


def test_anthropic_chat_log(tmp_path: Path) -> None:
    usage = {"input_tokens": 4, "output_tokens": 5, "cache_read_input_tokens": 90, "cache_creation_input_tokens": 6}
    record = {
        "body": {"model": "claude", "system": "be brief", "metadata": {"user_id": "u1"}, "tools": [{"name": "t"}],
                 "messages": [{"role": "user", "content": [{"type": "tool_result", "content": "out"}]}]},
        "response": {"body": {"id": "m", "content": [{"type": "text", "text": "hi"}], "usage": usage}},
    }  # fmt: skip
    found = rows(lines(tmp_path / "a.jsonl", record))
    assert (found[0]["input_tokens"], found[0]["cached_tokens"], found[0]["tool_step"]) == (100, 90, True)


def test_a_conversation_without_responses(tmp_path: Path) -> None:
    record = {"messages": [{"role": "user", "content": "x" * 40}, {"role": "assistant", "content": "y" * 8},
                           {"role": "user", "content": "z" * 12}, {"role": "assistant", "content": "w" * 4}]}  # fmt: skip
    found = rows(lines(tmp_path / "a.jsonl", record, record))
    assert [(row["input_tokens"], row["output_tokens"]) for row in found] == [(10, 2), (15, 1)] * 2
    assert len({row["session"] for row in found}) == 2


def test_a_tokenizer_that_is_given(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    made = tokenizers.Tokenizer(WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    log = lines(
        tmp_path / "log.jsonl",
        {"messages": [{"role": "user", "content": "a b b a"}, {"role": "assistant", "content": "b"}]},
    )
    found = rows(log, measure=Measure(tmp_path))
    assert [(row["input_tokens"], row["output_tokens"], row["token_source"]) for row in found] == [(4, 1, "tokenizer")]
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UsageProblem, match="cannot be read as a tokenizer"):
        Measure(tmp_path)
    with pytest.raises(UsageProblem, match="there is no tokenizer"):
        Measure(tmp_path / "absent")


# ---- hostile ----------------------------------------------------------------------------------------------------

GOOD = {"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"input_length": 600, "output_le', "not a JSON object, or cut off"),
        ("[1, 2]", "not a JSON object, or cut off"),
        ({**GOOD, "input_length": "600"}, "input_length and output_length are not whole numbers"),
        ({**GOOD, "input_length": 10**40}, "input_length and output_length are not whole numbers"),
        ({**GOOD, "output_length": -1}, "input_length and output_length are not whole numbers"),
        ({**GOOD, "input_length": 0, "hash_ids": []}, "input_length and output_length are not whole numbers"),
        ({**GOOD, "hash_ids": [1, None]}, "hash_ids is not a list of whole numbers"),
        ({**GOOD, "hash_ids": [1, 1 << 64]}, "hash_ids is not a list of whole numbers"),
        ({**GOOD, "hash_ids": {"a": 1}}, "hash_ids is not a list of whole numbers"),
        ({**GOOD, "hash_ids": [1, 2, 3]}, "3 hash ids for 600 tokens in blocks of 512"),
    ],
)
def test_bad_rows_of_a_block_log(tmp_path: Path, bad: Any, message: str) -> None:
    log = lines(tmp_path / "log.jsonl", GOOD, GOOD, bad, GOOD)
    batches, reading = read(log)
    assert sum(batch.requests.height for batch in batches) == 3
    assert [(item.line, item.message) for item in reading.problems] == [(3, message)]
    with pytest.raises(UnreadableInput, match=r"log\.jsonl:3: "):
        read(log, bad_rows="stop")


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(GOOD).encode() + b"\n\xff\xfe{\n" + json.dumps(GOOD).encode() + b"\n\x00\n"
    )
    batches, reading = read(log)
    assert sum(batch.requests.height for batch in batches) == 2 and reading.skipped == 2


def test_pieces_of_a_file_keep_their_line_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traces.agentlogs.blocks._PIECE_BYTES", 100)
    log = lines(
        tmp_path / "log.jsonl", *[{**GOOD, "hash_ids": [1, number]} if number % 7 else "broken" for number in range(50)]
    )
    batches, reading = read(log)
    assert len(batches) > 10
    assert [line for batch in batches for line in batch.requests["line"]] == [n + 1 for n in range(50) if n % 7]
    assert [item.line for item in reading.problems] == [n + 1 for n in range(0, 50, 7)]
    assert [one for batch in batches if batch.units for one in batch.units.chain[1::2]] == [
        n for n in range(50) if n % 7
    ]


@pytest.mark.parametrize(
    "text",
    ["", "   \n\n", "nonsense\n", "{", '{"a": 1}\n', "[]", "[[[", '"x"', "a,b,c\n1,2,3\n", "[" * 100_000, "\x00" * 100],
)
def test_no_known_format(tmp_path: Path, text: str) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(text)
    with pytest.raises(UnreadableInput) as caught:
        read(log)
    assert caught.value.exit_code == 3
    if text.strip():
        assert all(item.name in caught.value.hint for item in FORMATS)


def test_paths(tmp_path: Path) -> None:
    folder = tmp_path / "logs" / "deep"
    folder.mkdir(parents=True)
    log = lines(folder / "a.jsonl", GOOD)
    lines(folder / "other.jsonl", {"a": 1})
    (folder / "link.jsonl").symlink_to(log)
    (folder / "circle").symlink_to(tmp_path / "logs", target_is_directory=True)
    (folder / "dangling.jsonl").symlink_to(tmp_path / "nowhere")
    batches, reading = read(tmp_path / "logs", log, f"{tmp_path}/logs/**/*.jsonl")
    assert len(batches) == 1  # one file under all its names
    assert any(note.startswith("left out other.jsonl: ") for note in reading.notes)
    assert any(note.startswith("left out dangling.jsonl: ") for note in reading.notes)
    for nothing in (tmp_path / "absent.jsonl", tmp_path / "*.absent"):
        with pytest.raises(UnreadableInput, match="there is no file"):
            read(nothing)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(UnreadableInput, match="no log lies in"):
        read(empty)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableInput, match="is not a file"):
        read(tmp_path / "pipe")
    with pytest.raises(UsageProblem, match="unknown format nonsense"):
        read(log, name="nonsense")


@pytest.mark.parametrize("depth", [30, 200, 480, 900])
def test_contents_within_contents(tmp_path: Path, depth: int) -> None:
    content: Any = "x" * 40
    for _ in range(depth):
        content = [{"type": "tool_result", "content": content}]
    log = tmp_path / "log.jsonl"
    usage = {"prompt_tokens": 2**31 - 1, "completion_tokens": 1}
    good = {"messages": [{"role": "user", "content": "x"}], "response": {"choices": [], "usage": usage}}
    deep = {**good, "messages": [{"role": "user", "content": "@"}]}
    with contextlib.suppress(RecursionError):
        log.write_text(json.dumps(good) + "\n" + json.dumps(deep).replace('"@"', json.dumps(content)) + "\n")
        batches, reading = read(log)
        assert sum(batch.requests.height for batch in batches) + reading.skipped == 2
        units = batches[0].units
        assert units is not None and int(units.tokens[0]) == 2**31 - 1


def test_file_names_of_any_bytes(tmp_path: Path) -> None:
    log = tmp_path / os.fsdecode(b"\xff\xfe.traj.json")
    log.write_text(json.dumps([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]))
    assert rows(log)[0]["session"].endswith(".traj.json")


def test_block_ids_of_two_files_are_not_the_same(tmp_path: Path) -> None:
    first, second = lines(tmp_path / "a.jsonl", GOOD), lines(tmp_path / "b.jsonl", GOOD)
    batches, reading = read(first, second)
    chains = [set(batch.units.chain.tolist()) for batch in batches if batch.units]
    assert len(chains) == 2 and not chains[0] & chains[1]
    assert any("each file's own" in note for note in reading.notes)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from([
            "type", "sessionId", "message", "content", "usage", "input_tokens", "output_tokens", "id", "timestamp", "payload",
            "info", "last_token_usage", "messages", "role", "request", "response", "choices", "tools", "session_id",
            "round_index", "input_tokens_total", "prefix_tokens", "timing_events", "hash_ids", "input_length", "requests",
            "block_size", "in", "out", "trajectory", "history", "traj", "task_id", "action", "observation", "source", "text",
            "query", "isSidechain", "agentId", "uuid", "prompt_tokens", "completion_tokens", "tool_calls", "function", "body",
        ]), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(JSON, min_size=1, max_size=4), st.sampled_from(FORMATS), st.booleans())
def test_no_format_breaks_on_any_json(tmp_path_factory: Any, records: list[Any], chosen: Any, document: bool) -> None:
    log = tmp_path_factory.mktemp("any") / "log.jsonl"
    log.write_text(json.dumps(records) if document else "".join(json.dumps(item) + "\n" for item in records))
    try:
        batches, _ = read(log, name=chosen.name)
    except StepscopeError:
        return
    for batch in batches:
        assert batch.requests["input_tokens"].null_count() == 0
        assert batch.requests.filter(pl.col("input_tokens") < 0).is_empty()


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([
        "agent-logs/claude_code/ccl_representative_messages.jsonl", "agent-logs/miniswe/local.traj.json",
        "agent-logs/sweagent/function_calling_simple.traj", "workloads/tracelab/replay_examples_session_workload_example.csv",
        "agent-logs/openhands/basic.json",
    ]),
    st.integers(0, 1 << 30), st.binary(max_size=6),
)  # fmt: skip
def test_cut_and_overwritten_logs(tmp_path_factory: Any, name: str, at: int, junk: bytes) -> None:
    raw = sample(name).read_bytes()
    at %= len(raw)
    for text in (raw[:at], raw[:at] + junk + raw[at + len(junk) :]):
        log = tmp_path_factory.mktemp("cut") / Path(name).name
        log.write_bytes(text)
        with contextlib.suppress(StepscopeError):
            read(log)
