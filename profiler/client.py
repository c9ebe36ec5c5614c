"""Asynchronous load client: sends a plan to an OpenAI-compatible server and records every request.

Sessions run side by side, the turns of a session one after another (closed loop); a request with a planned arrival is
not sent before it. Each request gets an id that vLLM keeps: `X-Request-Id: r` becomes `chatcmpl-r-<8 hex>` or
`cmpl-r-<i>-<8 hex>` in the engine. Ids end in a part that starts with a letter, so what the engine appends can be told
from them.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from profiler.answer import Answer
from profiler.exchange import Endpoint, Exchange, converse
from profiler.lateness import Lateness
from profiler.prompts import PromptStore
from profiler.requestlog import RequestLog, RequestRecord
from profiler.workloads.request import Plan, PlannedRequest

# So many failures to reach the server in a row, over all sessions, and it is taken for gone.
GONE_AFTER_FAILURES = 3
CONNECT_TIMEOUT_S = 30.0
# Below uvicorn's 5 s: an idle connection is given up by us before the server does, or a request meets its end.
KEEPALIVE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pass is."""

    total: int
    sent: int
    finished: int  # in whatever way
    failed: int
    output_tokens: int  # of finished requests


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What came of a pass. `requests` counts those sent; those never sent are in `not_sent`."""

    requests: int
    failed: int  # status 'error'
    output_tokens: int
    start_ns: int
    end_ns: int
    first_cached_tokens: int | None  # of the request sent first; unknown where it failed or the server does not say
    aborted: int
    not_sent: int
    server_gone: bool  # the pass ended early because the server could not be reached any more
    max_late_ns: int  # largest delay between due and sent
    late: Lateness  # the same by percentiles
    first_error: str | None


async def run_plan(
    plan: Plan,
    *,
    base_url: str,
    model: str,
    pass_name: str,
    cache_salt: str | None,
    out_path: Path,
    stop: asyncio.Event,
    observer: Callable[[Progress], None] | None = None,
    request_timeout_s: float = 600,
    prompts: PromptStore | None = None,
) -> PassResult:
    """Send `plan` to the server at `base_url` (such as `http://127.0.0.1:8000`) and append a line per request.

    `prompts` takes the token ids of every request that went through.

    Ends when every request has ended; when `stop` is set or this coroutine is cancelled (requests in flight are
    recorded as 'aborted'); or when the server cannot be reached any more. A request's failure is a record, not an
    exception. Raises UsageProblem where `out_path` cannot be written.
    """
    timeout = aiohttp.ClientTimeout(total=request_timeout_s, sock_connect=CONNECT_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    cookies = aiohttp.DummyCookieJar()
    with RequestLog(out_path) as log:
        async with aiohttp.ClientSession(timeout=timeout, connector=connector, cookie_jar=cookies) as http:
            endpoint = Endpoint(
                http=http, base_url=base_url.rstrip("/").removesuffix("/v1"), model=model, cache_salt=cache_salt
            )
            running = _Pass(plan, endpoint=endpoint, name=pass_name, log=log, observer=observer, prompts=prompts)
            return await running.run(stop)


class _Pass:
    """The state of one pass: counters, the log, and whether the server is gone."""

    def __init__(
        self,
        plan: Plan,
        *,
        endpoint: Endpoint,
        name: str,
        log: RequestLog,
        observer: Callable[[Progress], None] | None,
        prompts: PromptStore | None,
    ) -> None:
        self._plan, self._endpoint, self._name, self._log, self._observer = plan, endpoint, name, log, observer
        self._prompts = prompts
        self._ended = {index: asyncio.Event() for request in plan.requests for index in request.after}
        self._nonce = uuid.uuid4().hex[:8]
        self._gone = asyncio.Event()
        self._failures_in_a_row = 0
        self._sent = self._failed = self._aborted = self._finished = self._output_tokens = 0
        self._late_ns: list[int] = []
        self._first: RequestRecord | None = None  # of the records so far, the one sent first
        self._first_error: str | None = None
        self._start_ns = 0

    async def run(self, stop: asyncio.Event) -> PassResult:
        """Drive all sessions to their end, or until stopped, cancelled, or left by the server."""
        self._start_ns = time.time_ns()
        sessions = [asyncio.create_task(self._drive(chain, stop)) for chain in self._plan.chains]
        watchers: list[asyncio.Future[Any]] = [asyncio.create_task(stop.wait()), asyncio.create_task(self._gone.wait())]
        work: asyncio.Future[Any] = asyncio.gather(*sessions)
        try:
            await asyncio.wait([work, *watchers], return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()  # an unwritable log, or a fault of ours
        finally:
            for task in (*sessions, *watchers):
                task.cancel()
            ended = await asyncio.gather(*sessions, *watchers, return_exceptions=True)
            await asyncio.gather(work, return_exceptions=True)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome
        return self._result()

    async def _drive(self, session: tuple[PlannedRequest, ...], stop: asyncio.Event) -> None:
        due_ns = self._start_ns
        for request in session:
            if request.arrival_offset_ns is not None:
                due_ns = max(due_ns, self._start_ns + request.arrival_offset_ns)
            if request.after:
                await asyncio.gather(*(self._ended[index].wait() for index in request.after))
                due_ns = max(due_ns, time.time_ns())
            await asyncio.sleep(max(0, due_ns - time.time_ns()) / 1e9)
            if stop.is_set() or self._gone.is_set():
                return
            finished_ns = await self._send(request, due_ns)
            due_ns = finished_ns + request.tool_wait_ns + request.think_ns

    async def _send(self, request: PlannedRequest, due_ns: int) -> int:
        request_id = f"{self._name}-{self._nonce}-r{request.index:05d}"
        body = self._endpoint.body(request)
        exchange = Exchange(sent_ns=time.time_ns(), answer=Answer())
        self._sent += 1
        self._report()
        ended = False
        try:
            await converse(self._endpoint, request, request_id, body, exchange)
            ended = True
        finally:
            exchange.finished_ns = exchange.finished_ns or time.time_ns()
            whole = exchange.answer.done and exchange.answer.error is None  # then being cancelled comes too late
            status = "error" if exchange.problem is not None else "ok" if ended or whole else "aborted"
            self._settle(self._record(request, request_id, due_ns, exchange, status))
            if request.index in self._ended:
                self._ended[request.index].set()
        self._keep_prompt(request, request_id, exchange, status)
        if exchange.reached and not exchange.lost:
            self._failures_in_a_row = 0
        elif exchange.lost:
            self._failures_in_a_row += 1
            if self._failures_in_a_row >= GONE_AFTER_FAILURES:
                self._gone.set()
        return exchange.finished_ns

    def _record(
        self, request: PlannedRequest, request_id: str, due_ns: int, exchange: Exchange, status: str
    ) -> RequestRecord:
        answer = exchange.answer
        token_ns = answer.token_ns
        planned = request.arrival_offset_ns
        return RequestRecord(
            client_request_id=request_id,
            pass_name=self._name,
            index=request.index,
            session_id=request.session_id,
            parent_session_id=request.parent_session_id,
            turn=request.turn,
            planned_ns=None if planned is None else self._start_ns + planned,
            sent_ns=exchange.sent_ns,
            late_ns=max(0, exchange.sent_ns - due_ns),
            first_token_ns=token_ns[0] if token_ns else None,
            last_token_ns=token_ns[-1] if token_ns else None,
            finished_ns=exchange.finished_ns,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            output_tokens=answer.output_tokens,
            status=status,
            error=exchange.problem,
            http_status=exchange.http_status,
            finish_reason=answer.finish_reason,
            tool_ns=request.tool_wait_ns,
            think_ns=request.think_ns,
            token_source=answer.token_source,
            token_ns=token_ns,
        )

    def _keep_prompt(self, request: PlannedRequest, request_id: str, exchange: Exchange, status: str) -> None:
        answer = exchange.answer
        if self._prompts is not None and status == "ok":
            self._prompts.take(
                request_id,
                index=request.index,
                pass_name=self._name,
                prompt=answer.prompt_ids,
                output=answer.output_ids,
            )

    def _settle(self, record: RequestRecord) -> None:
        self._finished += 1
        self._failed += record.status == "error"
        self._aborted += record.status == "aborted"
        self._output_tokens += record.output_tokens or 0
        self._late_ns.append(record.late_ns)
        if record.status == "error" and self._first_error is None:
            self._first_error = record.error
        if self._first is None or record.sent_ns < self._first.sent_ns:
            self._first = record
        self._log.append(record)
        self._report()

    def _report(self) -> None:
        if self._observer is not None:
            self._observer(
                Progress(
                    total=self._plan.n_requests,
                    sent=self._sent,
                    finished=self._finished,
                    failed=self._failed,
                    output_tokens=self._output_tokens,
                )
            )

    def _result(self) -> PassResult:
        return PassResult(
            requests=self._sent,
            failed=self._failed,
            output_tokens=self._output_tokens,
            start_ns=self._start_ns,
            end_ns=time.time_ns(),
            first_cached_tokens=None if self._first is None else self._first.cached_tokens,
            aborted=self._aborted,
            not_sent=self._plan.n_requests - self._sent,
            server_gone=self._gone.is_set(),
            max_late_ns=max(self._late_ns, default=0),
            late=Lateness.of(self._late_ns),
            first_error=self._first_error,
        )
