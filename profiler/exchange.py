"""One request to an OpenAI-compatible server and the stream that answers it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from profiler.answer import MAX_MESSAGE_CHARACTERS, Answer, error_message
from profiler.sse import EventDecoder, MalformedStreamError
from profiler.workloads.request import PlannedRequest

_DRAIN_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    http: aiohttp.ClientSession
    base_url: str
    model: str
    cache_salt: str | None

    def url(self, request: PlannedRequest) -> str:
        return f"{self.base_url}/v1/{'completions' if request.messages is None else 'chat/completions'}"

    def body(self, request: PlannedRequest) -> bytes:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "session_id": request.session_id,
        }
        if self.cache_salt is not None:
            body["cache_salt"] = self.cache_salt
        if request.messages is None:
            body["prompt"] = request.prompt if request.prompt_token_ids is None else request.prompt_token_ids
        else:
            body["messages"] = request.messages
            if request.tools:
                # 'auto', the default beside tools, is refused by a server without a tool parser.
                body |= {"tools": request.tools, "tool_choice": "none"}
        return json.dumps(body, separators=(",", ":")).encode()


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request on its way. `reached` tells whether the server answered at all."""

    sent_ns: int
    answer: Answer
    http_status: int | None = None
    reached: bool = False
    lost: bool = False  # the connection failed, or nothing came in time
    finished_ns: int = 0
    problem: str | None = None


async def converse(
    endpoint: Endpoint, request: PlannedRequest, request_id: str, body: bytes, exchange: Exchange
) -> None:
    """Send one request and read its stream into `exchange`; whatever goes wrong on the wire ends up in `problem`."""
    # A server that compresses would hold tokens back until a block is full.
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "X-Request-Id": request_id}
    try:
        async with endpoint.http.post(
            endpoint.url(request), data=body, headers=headers, allow_redirects=False
        ) as response:
            exchange.reached = True
            exchange.http_status = response.status
            if response.status != 200:
                exchange.problem = await _refusal(response)
                return
            await _read_stream(response, exchange)
    except MalformedStreamError as error:
        exchange.problem = f"malformed stream: {error}"
    except TimeoutError:
        exchange.problem, exchange.lost = "no answer in time", True
    except aiohttp.ClientConnectorError as error:
        reason = os.strerror(error.errno) if error.errno else str(error.os_error)
        exchange.problem, exchange.lost = f"cannot connect to {error.host}:{error.port}: {reason}", True
    except (aiohttp.ClientError, OSError) as error:
        text = str(error) or type(error).__name__
        exchange.problem, exchange.lost = f"connection failed: {text}"[:MAX_MESSAGE_CHARACTERS], True


async def _read_stream(response: aiohttp.ClientResponse, exchange: Exchange) -> None:
    decoder, answer = EventDecoder(), exchange.answer
    async for received in response.content.iter_any():
        ts_ns = time.time_ns()
        for event in decoder.feed(received):
            answer.take(event, ts_ns)
        if answer.done:
            exchange.finished_ns = ts_ns
            break
    else:
        ts_ns = time.time_ns()
        for event in decoder.close():
            answer.take(event, ts_ns)
    exchange.problem = answer.problem()
    # The end of the body after [DONE] lets the connection be used again; a server that keeps it open must not stop us.
    with contextlib.suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(_DRAIN_TIMEOUT_S):
            await response.content.read()


async def _refusal(response: aiohttp.ClientResponse) -> str:
    raw = (await response.content.read(65536)).decode(errors="replace")
    try:
        body = json.loads(raw)
    except ValueError:
        body = None
    message = error_message(body) if isinstance(body, dict) else raw.strip()[:MAX_MESSAGE_CHARACTERS]
    return f"HTTP {response.status}: {message or response.reason}"
