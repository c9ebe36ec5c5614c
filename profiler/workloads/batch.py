"""`batch`: independent prompts for `/v1/completions`, all at once or as a Poisson process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from profiler.workloads.options import option
from profiler.workloads.request import PlannedRequest
from profiler.workloads.text import spread, stream, words
from profiler.workloads.tokens import FIRST_ID, N_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOptions:
    """Options of `batch`. Lengths in tokens of the built-in tokenizer (ASCII characters)."""

    prompts: int = option("n", "count", 16, minimum=1, maximum=1_000_000)
    prompt_tokens: int = option("prompt", "count", 256, minimum=1)
    output_tokens: int = option("output", "count", 32, minimum=1)
    rate_per_s: float = option("rate", "number", 0.0, maximum=1_000_000)  # 0: all at once
    jitter: float = option("jitter", "number", 0.0, maximum=1)
    # 'ids' sends token ids: exact lengths with any tokenizer.
    form: str = option("form", "choice", "text", choices=("text", "ids"))


class BatchWorkload:
    """An open loop: each prompt is a session of its own; see BatchOptions."""

    name: ClassVar[str] = "batch"
    options_type: ClassVar[type[BatchOptions]] = BatchOptions

    def size(self, options: BatchOptions) -> int:
        """Requests the plan will have."""
        return options.prompts

    def context_tokens(self, options: BatchOptions) -> int:
        """Longest prompt and its output, in tokens."""
        return int((options.prompt_tokens + options.output_tokens) * (1 + options.jitter))

    def messages_per_prompt(self, options: BatchOptions) -> int:  # noqa: ARG002
        """A completion goes past the chat template; a tokenizer may still add its first token."""
        return 0

    def requests(self, options: BatchOptions, seed: int) -> Iterator[PlannedRequest]:
        """The planned requests in order of arrival."""
        arrivals = stream(seed, "batch", "arrivals")
        arrival_ns = 0
        for index in range(options.prompts):
            random = stream(seed, "batch", index)
            prompt_tokens = spread(random, options.prompt_tokens, options.jitter)
            text, ids = None, None
            if options.form == "ids":
                ids = tuple(FIRST_ID + int(random.random() * N_IDS) for _ in range(prompt_tokens))
            else:
                text = words(random, prompt_tokens)
            yield PlannedRequest(
                index=index,
                session_id=f"batch-{index}",
                arrival_offset_ns=arrival_ns,
                prompt=text,
                prompt_token_ids=ids,
                max_tokens=spread(random, options.output_tokens, options.jitter),
            )
            if options.rate_per_s > 0:
                arrival_ns += int(-math.log(1.0 - arrivals.random()) / options.rate_per_s * 1_000_000_000)
