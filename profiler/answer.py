"""What a streamed completion has delivered so far: token times, usage, how it ended."""

from __future__ import annotations

import json
from typing import Any

from profiler.sse import MalformedStreamError

_DONE = b"[DONE]"
MAX_MESSAGE_CHARACTERS = 500


class Answer:
    """Takes the events of one answer in order. Times are ns since the epoch, when the bytes arrived.

    A chunk is not a token: a role chunk comes first, one chunk may carry several tokens, and a token whose text is
    empty may come in none. So tokens are counted by the ids that `return_token_ids` asks for. A server that ignores
    it (SGLang) leaves one time per chunk with text (`token_source` 'chunks'), and usage has the number of tokens.
    """

    __slots__ = (
        "_chunk_ns", "_id_ns", "_ids_seen", "_usage_output_tokens", "cached_tokens", "done", "error", "events",
        "finish_reason", "output_ids", "prompt_ids", "prompt_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self._id_ns: list[int] = []
        self._chunk_ns: list[int] = []
        self._ids_seen = False
        self._usage_output_tokens: int | None = None
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.done = False  # the closing [DONE] came
        self.prompt_ids: list[int] | None = None  # as the engine rendered the prompt; None where it does not say
        self.output_ids: list[int] = []
        self.events = 0

    @property
    def token_ns(self) -> list[int]:
        """Arrival time of each token; of each chunk with text where the server gives no ids."""
        return self._id_ns if self._ids_seen else self._chunk_ns

    @property
    def token_source(self) -> str | None:
        """'ids' | 'chunks' | None where nothing was generated."""
        return "ids" if self._ids_seen else "chunks" if self._chunk_ns else None

    @property
    def output_tokens(self) -> int | None:
        """As usage says, else as counted by ids; unknown where neither came."""
        if self._usage_output_tokens is not None:
            return self._usage_output_tokens
        return len(self._id_ns) if self._ids_seen else None

    def take(self, event: bytes, ts_ns: int) -> None:
        """One event. Raises MalformedStreamError where it is not of the completion API."""
        if event.strip() == _DONE:
            self.done = True
            return
        try:
            chunk = json.loads(event)
        except ValueError as error:
            raise MalformedStreamError(
                f"an event that is no JSON: {_clip(event.decode(errors='replace'), 80)!r}"
            ) from error
        if not isinstance(chunk, dict):
            raise MalformedStreamError(f"an event that is no object: {_clip(str(chunk), 80)!r}")
        self.events += 1
        if chunk.get("error") or chunk.get("object") == "error":
            self.error = error_message(chunk)
            return
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._take_choice(choices[0], ts_ns)
            self._take_prompt(chunk.get("prompt_token_ids") or choices[0].get("prompt_token_ids"))
        if isinstance(chunk.get("usage"), dict):
            self._take_usage(chunk["usage"])

    def problem(self) -> str | None:
        """Why a stream that has ended is no whole answer; None where it is one."""
        if self.error is not None:
            return self.error
        if self.done or self.finish_reason is not None:
            return None
        return "the stream ended early" if self.events else "the answer was no event stream"

    def _take_choice(self, choice: dict[str, Any], ts_ns: int) -> None:
        ids = choice.get("token_ids")
        if isinstance(ids, list):
            self._ids_seen = True
            self._id_ns.extend([ts_ns] * len(ids))
            self.output_ids.extend(i for i in ids if isinstance(i, int))
        if _has_text(choice):
            self._chunk_ns.append(ts_ns)
        if isinstance(choice.get("finish_reason"), str):
            self.finish_reason = choice["finish_reason"]

    def _take_prompt(self, ids: object) -> None:
        """The first chunk has them: of a chat beside the choices, of a completion inside."""
        if self.prompt_ids is None and isinstance(ids, list) and all(isinstance(i, int) for i in ids):
            self.prompt_ids = ids

    def _take_usage(self, usage: dict[str, Any]) -> None:
        # Some servers repeat usage in every chunk; the last one counts.
        self.prompt_tokens = _count(usage.get("prompt_tokens"))
        self._usage_output_tokens = _count(usage.get("completion_tokens"))
        details = usage.get("prompt_tokens_details")
        self.cached_tokens = _count(details.get("cached_tokens")) if isinstance(details, dict) else None


def error_message(body: dict[str, Any]) -> str:
    """The message in an error body, in either of the forms servers use, clipped."""
    error = body.get("error")
    message = error.get("message") if isinstance(error, dict) else error if isinstance(error, str) else None
    return _clip(str(message or body.get("message") or body.get("detail") or "an error without a message"))


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return isinstance(choice.get("text"), str) and (choice["text"] != "" or choice.get("finish_reason") is None)
    if delta.get("tool_calls") or any(delta.get(key) for key in ("content", "reasoning", "reasoning_content")):
        return True
    # An empty text is a token that decodes to nothing, except beside the role and at the end.
    return isinstance(delta.get("content"), str) and "role" not in delta and choice.get("finish_reason") is None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _clip(text: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
