"""A real HTTP server on the loopback that speaks the streaming protocol of the OpenAI API, to order.

It stands in for servers that misbehave; how a real engine behaves is tested with the real engine. A test gives a
handler: a coroutine that gets the parsed request and writes its answer byte by byte.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass(slots=True, kw_only=True)
class Call:
    """One request as it arrived, and the means to answer it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int  # identifies the TCP connection
    request: web.Request
    response: web.StreamResponse | None = None
    number: int = 0  # order of arrival, from 0

    async def start(self) -> None:
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await self.response.prepare(self.request)

    async def raw(self, data: bytes) -> None:
        assert self.response is not None
        await self.response.write(data)

    async def event(self, value: dict[str, Any]) -> None:
        await self.raw(f"data: {json.dumps(value)}\n\n".encode())

    def cut(self) -> None:
        """Drop the connection as a dying server does."""
        assert self.request.transport is not None
        self.request.transport.abort()


Handler = Callable[[Call], Awaitable[web.StreamResponse | None]]


@dataclass(slots=True, kw_only=True)
class Server:
    """A running server: its address, and what it was asked."""

    base_url: str = ""
    calls: list[Call] = field(default_factory=list)
    runner: web.AppRunner | None = None
    in_flight: int = 0
    most_in_flight: int = 0

    async def close(self) -> None:
        if self.runner is not None:
            runner, self.runner = self.runner, None
            await runner.cleanup()


@asynccontextmanager
async def openai_server(handler: Handler) -> AsyncIterator[Server]:
    """Serve with `handler` on a free port."""
    server = Server()

    async def handle(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        call = Call(
            path=request.path,
            headers=dict(request.headers),
            body=body,
            connection=id(request.transport),
            request=request,
            number=len(server.calls),
        )
        server.calls.append(call)
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            answer = await handler(call)
        finally:
            server.in_flight -= 1
        return answer or call.response or web.Response(status=500)

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/{tail:.*}", handle)
    server.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await server.runner.setup()
    site = web.TCPSite(server.runner, "127.0.0.1", 0)
    await site.start()
    server.base_url = f"http://127.0.0.1:{server.runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await server.close()


def chunk(*ids: int, text: str = "", finish: str | None = None, role: bool = False) -> dict[str, Any]:
    """A chat chunk as vLLM sends it with `return_token_ids`; without ids where none are given."""
    delta: dict[str, Any] = {"content": text} | ({"role": "assistant"} if role else {})
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish}
    if ids:
        choice["token_ids"] = list(ids)
    return {"object": "chat.completion.chunk", "choices": [choice]}


def usage(prompt: int, output: int, cached: int | None = None) -> dict[str, Any]:
    """The last chunk of a stream with `include_usage`."""
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    return {"object": "chat.completion.chunk", "choices": [], "usage": counts}


def well_behaved(*, token_s: float = 0.0, first_s: float = 0.0, cached: int | None = 0) -> Handler:
    """One token per chunk, as many as were asked for."""

    async def handler(call: Call) -> None:
        await call.start()
        await call.event(chunk(text="", role=True))
        await asyncio.sleep(first_s)
        wanted = call.body["max_tokens"]
        for number in range(wanted):
            await call.event(chunk(7, text="", finish="length" if number == wanted - 1 else None))
            await asyncio.sleep(token_s)
        await call.event(usage(100, wanted, cached))
        await call.raw(b"data: [DONE]\n\n")

    return handler
