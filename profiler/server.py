"""Talking to the engine's server apart from the load: health, metrics, profiler calls."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from profiler.engines.base import HttpCall

SCRAPE_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A call that was not carried out: `status` None where no answer came (then `timed_out` says why)."""

    status: int | None
    timed_out: bool
    text: str


class Server:
    """An asynchronous context; one connection pool."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._http is not None, "used outside its context"
        return self._http

    async def answers(self, path: str) -> bool:
        """Whether a GET of `path` succeeds within two seconds."""
        try:
            async with self._session.get(self.base_url + path, timeout=aiohttp.ClientTimeout(total=2)) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def call(self, call: HttpCall, *, timeout_s: float) -> Refusal | None:
        """POST; None on success."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(self.base_url + call.path, json=call.body, timeout=timeout) as response:
                if response.status < 300:
                    return None
                text = (await response.text(errors="replace"))[:300].strip()
                return Refusal(status=response.status, timed_out=False, text=text)
        except TimeoutError:
            return Refusal(status=None, timed_out=True, text=f"no answer within {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Refusal(status=None, timed_out=False, text=str(error) or type(error).__name__)

    async def ask(self, path: str, body: dict[str, Any], *, timeout_s: float) -> Any:
        """The JSON that a POST is answered with; None where it is refused, late, or no JSON."""
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(self.base_url + path, json=body, timeout=timeout) as response:
                return await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
            return None

    async def scrape(self, path: Path) -> bool:
        """Save the text of /metrics to `path`, headed by the time it was taken; False where there is none."""
        timeout = aiohttp.ClientTimeout(total=SCRAPE_TIMEOUT_S)
        try:
            async with self._session.get(self.base_url + "/metrics", timeout=timeout) as response:
                if response.status != 200:
                    return False
                body = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False
        stamp = f"# stepscope scraped_ns={time.time_ns()}\n".encode()
        await asyncio.to_thread(path.write_bytes, stamp + body)
        return True
