"""The load client against a real HTTP server that does what a test tells it."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai_server import Call, Handler, Server, chunk, openai_server, usage, well_behaved

from profiler.client import PassResult, Progress, run_plan
from profiler.workloads.plan import Plan, PlannedRequest, build_plan
from traces.errors import UsageProblem

DONE = b"data: [DONE]\n\n"


def plan_of(*requests: dict[str, Any]) -> Plan:
    """Requests that default to one session of token-id prompts."""
    made = []
    for index, given in enumerate(requests):
        defaults = {"session_id": "s", "turn": index, "max_tokens": 3, "prompt_token_ids": (1, 2)}
        made.append(PlannedRequest(index=index, **(defaults | given)))
    return Plan(spec="test", seed=0, requests=tuple(made))


def chat_plan(**given: Any) -> Plan:
    return plan_of({"prompt_token_ids": None, "messages": ({"role": "user", "content": "hi"},)} | given)


async def send(plan: Plan, base_url: str, out: Path, **given: Any) -> PassResult:
    arguments = {"model": "m", "pass_name": "control", "cache_salt": None, "stop": asyncio.Event()} | given
    return await run_plan(plan, base_url=base_url, out_path=out, **arguments)


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def served(
    handler: Handler, plan: Plan, out: Path, **given: Any
) -> tuple[PassResult, list[dict[str, Any]], list[Call]]:
    """Run `plan` against `handler`; what came of it, the records by index, and the calls the server saw."""

    async def main() -> tuple[PassResult, Server]:
        async with openai_server(handler) as server:
            return await asyncio.wait_for(send(plan, server.base_url, out, **given), timeout=20), server

    result, server = asyncio.run(main())
    return result, sorted(records(out), key=lambda record: record["index"]), server.calls


def answering(*payloads: bytes | dict[str, Any]) -> Handler:
    """A stream of exactly these bytes and events."""

    async def handler(call: Call) -> None:
        await call.start()
        for payload in payloads:
            await (call.raw(payload) if isinstance(payload, bytes) else call.event(payload))

    return handler


def test_a_request_carries_what_the_engine_needs(tmp_path: Path) -> None:
    tools = ({"type": "function", "function": {"name": "f"}},)
    plan = chat_plan(tools=tools, session_id="a-1")
    _, (record,), (call,) = served(well_behaved(), plan, tmp_path / "r", pass_name="profiled", cache_salt="salt")
    assert call.path == "/v1/chat/completions"
    assert call.body == {
        "model": "m",
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "session_id": "a-1",
        "cache_salt": "salt",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "none",
    }
    assert (
        call.headers["X-Request-Id" if "X-Request-Id" in call.headers else "X-Request-ID"]
        == (record["client_request_id"])
    )
    assert re.fullmatch(r"profiled-[0-9a-f]{8}-r00000", record["client_request_id"])


def test_completions_by_token_ids_and_by_text(tmp_path: Path) -> None:
    plan = plan_of({"prompt_token_ids": (5, 6)}, {"prompt_token_ids": None, "prompt": "some text"})
    _, _, calls = served(well_behaved(), plan, tmp_path / "r")
    assert [(call.path, call.body["prompt"]) for call in calls] == [
        ("/v1/completions", [5, 6]),
        ("/v1/completions", "some text"),
    ]
    assert "cache_salt" not in calls[0].body and "tool_choice" not in calls[0].body


def test_the_record_of_a_good_request(tmp_path: Path) -> None:
    before = time.time_ns()
    plan = chat_plan(arrival_offset_ns=0, tool_wait_ns=5, think_ns=7, parent_session_id="p")
    result, (record,), _ = served(well_behaved(token_s=0.02, first_s=0.05, cached=64), plan, tmp_path / "r")
    assert record["stepscope_request"] == 1
    wanted = {
        "pass": "control", "session_id": "s", "parent_session_id": "p", "turn": 0, "prompt_tokens": 100,
        "cached_tokens": 64, "output_tokens": 3, "status": "ok", "error": None, "http_status": 200,
        "finish_reason": "length", "tool_ns": 5, "think_ns": 7, "token_source": "ids",
    }  # fmt: skip
    assert {key: record[key] for key in wanted} == wanted
    tokens = record["token_ns"]
    assert len(tokens) == 3 and tokens == sorted(tokens)
    assert all(later - earlier > 10_000_000 for earlier, later in itertools.pairwise(tokens))
    assert (record["first_token_ns"], record["last_token_ns"]) == (tokens[0], tokens[-1])
    assert before <= record["planned_ns"] <= record["sent_ns"] < tokens[0] - 40_000_000
    assert tokens[-1] <= record["finished_ns"] <= time.time_ns()
    assert result.requests == 1 and result.failed == 0 and result.output_tokens == 3
    assert result.first_cached_tokens == 64 and result.first_error is None
    assert result.start_ns <= record["sent_ns"] and record["finished_ns"] <= result.end_ns


def test_chunks_are_not_tokens(tmp_path: Path) -> None:
    handler = answering(
        chunk(role=True), chunk(1, 2, 3, text="abc"), b": keep-alive\n\n", chunk(4), chunk(text="x"),
        chunk(5, 6, finish="length"), usage(10, 6), DONE,
    )  # fmt: skip
    _, (record,), _ = served(handler, chat_plan(), tmp_path / "r")
    assert len(record["token_ns"]) == record["output_tokens"] == 6
    assert len(set(record["token_ns"][:3])) == 1  # one chunk, one time
    assert record["cached_tokens"] is None


def test_a_server_that_ignores_return_token_ids(tmp_path: Path) -> None:
    handler = answering(chunk(role=True), chunk(text="ab"), chunk(text=""), chunk(text="", finish="stop"), usage(9, 5))
    result, (record,), _ = served(handler, chat_plan(), tmp_path / "r")
    assert record["token_source"] == "chunks" and len(record["token_ns"]) == 2
    assert record["output_tokens"] == result.output_tokens == 5 and record["status"] == "ok"


def test_events_cut_anywhere_and_odd_line_ends(tmp_path: Path) -> None:
    stream = b"".join(
        f"event: x\r\ndata:{json.dumps(value)}\r\n\r\n".encode()
        for value in (chunk(role=True), chunk(1, text="ä\u2028"), chunk(2, finish="length"), usage(3, 2, 0))
    )

    async def handler(call: Call) -> None:
        await call.start()
        for start in range(0, len(stream), 7):
            await call.raw(stream[start : start + 7])
            await asyncio.sleep(0)
        await call.raw(b"data: [DONE]")  # no blank line behind it

    _, (record,), _ = served(handler, chat_plan(), tmp_path / "r")
    assert record["status"] == "ok" and record["output_tokens"] == 2 and len(record["token_ns"]) == 2


@pytest.mark.parametrize(
    ("payloads", "message"),
    [
        ((chunk(1), {"error": {"message": "EngineCore died", "code": 500}}, DONE), "EngineCore died"),
        ((chunk(1), {"object": "error", "message": "bad"}, DONE), "bad"),
        ((chunk(1), {"error": "plain"}, DONE), "plain"),
        ((chunk(1), {"error": {"code": 3}}), "an error without a message"),
        ((chunk(1), b"data: {nonsense\n\n", DONE), "malformed stream: an event that is no JSON: '{nonsense'"),
        ((chunk(1), b"data: [1, 2]\n\n", DONE), "malformed stream: an event that is no object"),
        ((chunk(1), b"data: \xff\xfe\n\n", DONE), "malformed stream: an event that is no JSON"),
        ((chunk(1),), "the stream ended early"),
        ((b"<html>hello</html>",), "the answer was no event stream"),
        ((), "the answer was no event stream"),
    ],
)
def test_a_stream_that_goes_wrong_is_an_error_and_the_session_goes_on(
    payloads: tuple[bytes | dict[str, Any], ...], message: str, tmp_path: Path
) -> None:
    async def handler(call: Call) -> None:
        await (answering(*payloads) if call.number == 0 else well_behaved())(call)

    result, (first, second), _ = served(handler, plan_of({}, {}), tmp_path / "r")
    assert first["status"] == "error" and first["error"].startswith(message)
    assert len(first["token_ns"]) == sum(isinstance(item, dict) and item == chunk(1) for item in payloads)
    assert second["status"] == "ok"
    assert result.failed == 1 and result.first_error == first["error"] and not result.server_gone


def test_events_with_odd_types_do_not_break_the_client(tmp_path: Path) -> None:
    handler = answering(
        {"choices": None}, {"choices": {}}, {"choices": ["x"]}, {"choices": [{"delta": None, "token_ids": "abc"}]},
        {"usage": {"prompt_tokens": "7", "completion_tokens": True, "prompt_tokens_details": []}},
        {"choices": [{"text": 3, "finish_reason": 4}]}, DONE,
    )  # fmt: skip
    _, (record,), _ = served(handler, chat_plan(), tmp_path / "r")
    assert record["status"] == "ok" and record["token_ns"] == []
    assert record["prompt_tokens"] is None and record["output_tokens"] is None and record["cached_tokens"] is None


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error": {"message": "context too long"}}', "HTTP 400: context too long"),
        (404, b'{"object": "error", "message": "no such model"}', "HTTP 404: no such model"),
        (422, b'{"detail": "unprocessable"}', "HTTP 422: unprocessable"),
        (500, b"Internal Server Error", "HTTP 500: Internal Server Error"),
        (503, b"", "HTTP 503: Service Unavailable"),
        (302, b"elsewhere", "HTTP 302: elsewhere"),
    ],
)
def test_a_refusal_is_recorded_with_the_servers_message(status: int, body: bytes, message: str, tmp_path: Path) -> None:
    from aiohttp import web

    async def handler(call: Call) -> web.StreamResponse:
        return web.Response(status=status, body=body, headers={"Location": "http://127.0.0.1:9/"})

    result, got, _ = served(handler, plan_of({}, {}, {}, {}), tmp_path / "r")
    assert [(record["status"], record["error"], record["http_status"]) for record in got] == [
        ("error", message, status)
    ] * 4
    assert result.failed == 4 and not result.server_gone  # it answers: the pass runs to its end


def test_a_connection_cut_mid_stream_keeps_the_tokens_seen(tmp_path: Path) -> None:
    async def handler(call: Call) -> None:
        if call.number > 0:
            await well_behaved()(call)
            return
        await call.start()
        await call.event(chunk(1))
        await call.event(chunk(2))
        await asyncio.sleep(0.05)
        call.cut()

    result, (first, second), _ = served(handler, plan_of({}, {}), tmp_path / "r")
    assert first["status"] == "error" and first["error"].startswith("connection failed: ")
    assert len(first["token_ns"]) == first["output_tokens"] == 2 and first["prompt_tokens"] is None
    assert second["status"] == "ok" and result.failed == 1 and result.output_tokens == 5


def test_a_server_that_dies_ends_the_pass_early(tmp_path: Path) -> None:
    plan = plan_of(*[{"session_id": f"s{index % 2}", "turn": index // 2} for index in range(40)])

    async def main() -> PassResult:
        async with openai_server(well_behaved()) as server:

            def watch(progress: Progress) -> None:
                if progress.finished == 4:
                    closing.append(asyncio.ensure_future(server.close()))

            closing: list[asyncio.Future[None]] = []
            return await asyncio.wait_for(send(plan, server.base_url, tmp_path / "r", observer=watch), timeout=10)

    result = asyncio.run(main())
    assert result.server_gone and 1 <= result.failed <= 4
    assert result.not_sent == 40 - result.requests and result.not_sent >= 30
    assert len(records(tmp_path / "r")) == result.requests


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused
        base_url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = asyncio.run(asyncio.wait_for(send(plan_of(*[{}] * 10), base_url, tmp_path / "r"), timeout=10))
    got = records(tmp_path / "r")
    assert result.server_gone and result.failed == len(got) == 3 and result.not_sent == 7
    assert {record["status"] for record in got} == {"error"} and result.first_cached_tokens is None
    assert result.first_error is not None and result.first_error.endswith(": Connection refused")


def test_a_server_that_hangs_runs_into_the_deadline(tmp_path: Path) -> None:
    async def handler(call: Call) -> None:
        await call.start()
        await call.event(chunk(1))
        await asyncio.sleep(60)

    began = time.monotonic()
    result, got, _ = served(handler, plan_of(*[{}] * 9), tmp_path / "r", request_timeout_s=0.2)
    assert time.monotonic() - began < 5
    assert result.server_gone and [record["error"] for record in got] == ["no answer in time"] * 3
    assert all(len(record["token_ns"]) == 1 for record in got)


def _stopped(
    out: Path, stopper: Callable[[asyncio.Event, asyncio.Task[PassResult]], None]
) -> PassResult | BaseException:
    """A pass of one session in flight and one that waits for a tool; `stopper` is called in the midst of it."""
    plan = plan_of({"max_tokens": 500}, {}, {"session_id": "t", "turn": 0, "think_ns": 60_000_000_000}, {
        "session_id": "t", "turn": 1
    })  # fmt: skip

    async def main() -> PassResult:
        async with openai_server(well_behaved(token_s=0.01)) as server:
            stop = asyncio.Event()
            task = asyncio.create_task(send(plan, server.base_url, out, stop=stop))
            await asyncio.sleep(0.4)
            stopper(stop, task)
            result = await asyncio.wait_for(task, timeout=5)
            await asyncio.sleep(0.05)
            assert server.in_flight == 0  # the server saw the connection go
            return result

    try:
        return asyncio.run(main())
    except asyncio.CancelledError as error:
        return error


@pytest.mark.parametrize("how", ["stop", "cancel"])
def test_stopping_records_what_is_in_flight_as_aborted(how: str, tmp_path: Path) -> None:
    out = tmp_path / "r"
    outcome = _stopped(out, lambda stop, task: stop.set() if how == "stop" else task.cancel() and None)
    done, flying = records(out)
    assert (done["session_id"], done["status"]) == ("t", "ok")
    assert (flying["session_id"], flying["status"], flying["error"]) == ("s", "aborted", None)
    assert 10 <= flying["output_tokens"] < 100 and flying["last_token_ns"] <= flying["finished_ns"]
    if how == "stop":
        assert isinstance(outcome, PassResult)
        assert (outcome.requests, outcome.aborted, outcome.failed, outcome.not_sent) == (2, 1, 0, 2)
    else:
        assert isinstance(outcome, asyncio.CancelledError)


def test_a_stop_set_beforehand_sends_nothing(tmp_path: Path) -> None:
    stop = asyncio.Event()
    stop.set()
    result, got, _ = served(well_behaved(token_s=0.05), plan_of(*[{}] * 5), tmp_path / "r", stop=stop)
    assert (result.requests, result.not_sent, got) == (0, 5, [])


def test_turns_wait_for_each_other_and_sessions_do_not(tmp_path: Path) -> None:
    wait_ns = 150_000_000
    plan = plan_of(*[
        {"session_id": f"s{session}", "turn": turn, "tool_wait_ns": 100_000_000, "think_ns": 50_000_000}
        for session in range(8) for turn in range(2)
    ])  # fmt: skip

    async def main() -> Server:
        async with openai_server(well_behaved(token_s=0.05)) as server:
            await send(plan, server.base_url, tmp_path / "r")
            return server

    server = asyncio.run(main())
    by_session: dict[str, list[dict[str, Any]]] = {}
    for record in sorted(records(tmp_path / "r"), key=lambda record: record["turn"]):
        by_session.setdefault(record["session_id"], []).append(record)
    assert server.most_in_flight == 8
    assert len({call.connection for call in server.calls}) == 8  # kept alive from one turn to the next
    for first, second in by_session.values():
        gap = second["sent_ns"] - first["finished_ns"]
        assert wait_ns <= gap < wait_ns + 1_000_000_000
        assert second["late_ns"] == pytest.approx(gap - wait_ns, abs=1000)
        assert second["planned_ns"] is None


def test_open_loop_arrivals_are_kept_and_lateness_is_recorded(tmp_path: Path) -> None:
    offsets = [0, 100_000_000, 200_000_000]
    plan = plan_of(*[{"session_id": f"s{i}", "arrival_offset_ns": offset} for i, offset in enumerate(offsets)])
    result, got, _ = served(well_behaved(token_s=0.1), plan, tmp_path / "r")
    for record, offset in zip(got, offsets, strict=True):
        assert record["planned_ns"] == result.start_ns + offset
        assert 0 <= record["sent_ns"] - record["planned_ns"] == record["late_ns"] < 500_000_000
    assert got[1]["sent_ns"] < got[0]["finished_ns"]
    assert result.max_late_ns == max(record["late_ns"] for record in got)


def test_in_an_open_loop_a_turn_does_not_wait_for_the_one_before(tmp_path: Path) -> None:
    plan = plan_of(*[
        {"session_id": "s", "turn": turn, "arrival_offset_ns": turn * 50_000_000, "after_previous": False}
        for turn in range(3)
    ])  # fmt: skip
    result, _, _ = served(well_behaved(token_s=0.2), plan, tmp_path / "r")
    got = sorted(records(tmp_path / "r"), key=lambda record: record["turn"])
    assert got[2]["sent_ns"] < got[0]["finished_ns"]
    late = sorted(record["late_ns"] for record in got)
    assert (result.late.n, result.late.p50_ns, result.late.p99_ns, result.late.max_ns) == (3, late[1], late[2], late[2])


def test_an_observer_that_blocks_shows_up_as_lateness(tmp_path: Path) -> None:
    plan = plan_of({"session_id": "a"}, {"session_id": "b", "arrival_offset_ns": 50_000_000})
    result, got, _ = served(
        well_behaved(), plan, tmp_path / "r", observer=lambda progress: time.sleep(0.3 if progress.sent == 1 else 0)
    )
    assert got[1]["late_ns"] == result.max_late_ns > 150_000_000


def test_the_observer_follows_the_pass(tmp_path: Path) -> None:
    seen: list[Progress] = []
    served(well_behaved(), plan_of({}, {}), tmp_path / "r", observer=seen.append)
    assert [(item.sent, item.finished, item.output_tokens) for item in seen] == [
        (1, 0, 0), (1, 1, 3), (2, 1, 3), (2, 2, 6),
    ]  # fmt: skip
    assert {item.total for item in seen} == {2}


def test_an_empty_plan(tmp_path: Path) -> None:
    result, got, _ = served(well_behaved(), Plan(spec="test", seed=0, requests=()), tmp_path / "r")
    assert (result.requests, result.failed, result.first_cached_tokens, got) == (0, 0, None, [])


def test_ids_are_unique_over_requests_and_passes(tmp_path: Path) -> None:
    out = tmp_path / "r"
    plan = build_plan("batch:n=20,output=1,prompt=5", 0, max_context_tokens=1000)
    for _ in range(2):
        served(well_behaved(), plan, out)
    ids = [record["client_request_id"] for record in records(out)]
    assert len(set(ids)) == len(ids) == 40
    assert all(re.search(r"-r\d{5}$", request_id) for request_id in ids)


def test_appending_behind_a_torn_line_leaves_the_new_line_whole(tmp_path: Path) -> None:
    out = tmp_path / "r"
    out.write_text('{"stepscope_request":1,"client_requ')
    asyncio.run(_one(out))
    torn, whole = out.read_text().splitlines()
    assert torn == '{"stepscope_request":1,"client_requ' and json.loads(whole)["status"] == "ok"


async def _one(out: Path) -> PassResult:
    async with openai_server(well_behaved()) as server:
        return await send(plan_of({}), server.base_url, out)


def test_a_log_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageProblem, match=r"cannot write .*: No such file or directory"):
        asyncio.run(_one(tmp_path / "missing" / "r"))


def test_a_full_disk_ends_the_pass_with_a_typed_error(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    with pytest.raises(UsageProblem, match="No space left on device"):
        asyncio.run(asyncio.wait_for(_one(Path("/dev/full")), timeout=5))


def test_two_hundred_streams_at_once_stay_cheap_and_leak_nothing(tmp_path: Path) -> None:
    plan = build_plan("batch:n=200,output=20,prompt=5", 0, max_context_tokens=1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    result, got, _ = served(well_behaved(token_s=0.02), plan, tmp_path / "r")
    assert result.output_tokens == 4000 and all(len(record["token_ns"]) == 20 for record in got)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 10  # server and client together
