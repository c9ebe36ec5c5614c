"""`agentlog`: what agents re-read, from their logs alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzers.commands.options import COUNT, echo_json, echo_lines, json_option, peak_options, with_options
from traces.errors import UsageProblem

if TYPE_CHECKING:
    from analyzers.agentlog_cost import PromptCost
    from analyzers.agentlog_pieces import Cache

_SIZE = re.compile(r"(tokens|blocks)=([0-9.]+[kmb]?)", re.IGNORECASE)
_MOST_TOKENS = 1 << 50
_ROWS, _JSON_ROWS = 20, 10_000

_options = (
    click.option("--cache", default="infinite", show_default=True, metavar="infinite|off|recorded|tokens=N|blocks=N",
                 help="The cache to assume; recorded: what the log says was reused."),
    click.option("--ttl", "ttl_s", type=click.FloatRange(min=0, max=1e8), metavar="S", help="Unused for so long, a prefix is gone."),
    click.option("--block", type=click.IntRange(min=1, max=1 << 20), metavar="N",
                 help="Tokens of a cache block.  [default: the log's, else 16]"),
    click.option("--model", "--model-config", metavar="PRESET|config.json", help="With --gpu: floors of prefill time."),
    *peak_options,
    click.option("--tokenizer", type=click.Path(path_type=Path), metavar="PATH",
                 help="tokenizer.json for logs without usage.  [default: characters / 4]"),
    click.option("--format", "log_format", metavar="NAME", help="Of the logs.  [default: by their look]"),
    click.option("--bad-rows", type=click.Choice(["skip", "stop"]), default="skip", show_default=True,
                 help="What to do at a record that is none."),
    click.option("--by", type=click.Choice(["session", "turn"]), default="session", show_default=True, help="Rows."),
    click.option("--limit", type=COUNT, help="Rows to print.  [default: 20; as JSON 10,000]"),
    json_option,
)  # fmt: skip


@click.command()
@click.argument("logs", metavar="LOG...", nargs=-1, required=True)
@with_options(*_options)
def agentlog(
    logs: tuple[str, ...], cache: str, ttl_s: float | None, block: int | None, tokenizer: Path | None,
    log_format: str | None, bad_rows: str, by: str, limit: int | None, as_json: bool, **words: Any,
) -> None:  # fmt: skip
    """What agents re-read, turn by turn, from their LOGs alone: files, folders or patterns."""
    from analyzers.agentlog import account
    from analyzers.report.agentlog_text import agentlog_json, agentlog_lines
    from traces.agentlogs.base import Reading
    from traces.agentlogs.measure import Measure
    from traces.agentlogs.registry import read_agent_logs

    assumed = _assumed(cache, ttl_s, block)
    reading = Reading(measure=Measure(tokenizer), bad_rows=bad_rows)
    cost, notes = _cost(words)
    found = account(read_agent_logs(logs, reading, name=log_format), assumed, reading, cost=cost)
    if as_json:
        echo_json(agentlog_json(found, by=by, limit=limit or _JSON_ROWS, notes=notes))
    else:
        echo_lines(agentlog_lines(found, by=by, limit=limit or _ROWS, notes=notes))


def _assumed(text: str, ttl_s: float | None, block: int | None) -> Cache:
    """Raises UsageProblem for a cache that is none."""
    from analyzers.agentlog_pieces import INFINITE, OFF, RECORDED, SIZED, Cache
    from analyzers.scenario import parse_count

    ttl_ns = None if ttl_s is None else round(ttl_s * 1e9)
    word = text.strip().lower()
    if word in (INFINITE, OFF, RECORDED):
        if word == RECORDED and ttl_ns is not None:
            raise UsageProblem("a recorded cache has its own time to live", hint="leave out --ttl, or --cache recorded")
        return Cache(kind=word, ttl_ns=ttl_ns, block_tokens=block)
    match = _SIZE.fullmatch(word)
    size = int(parse_count(match[2], "--cache:")) if match and match[2].count(".") < 2 else 0
    if match and match[1] == "blocks" and block is None:
        raise UsageProblem(
            "a cache of blocks needs the size of a block", hint="give --block N too, or --cache tokens=N"
        )
    tokens = size * (block or 1) if match and match[1] == "blocks" else size
    if not 0 < tokens <= _MOST_TOKENS:
        raise UsageProblem(
            f"unknown cache {text}", hint="infinite, off, recorded, tokens=400k, or blocks=25k with --block"
        )
    return Cache(kind=SIZED, tokens=tokens, ttl_ns=ttl_ns, block_tokens=block)


def _cost(words: dict[str, Any]) -> tuple[PromptCost | None, tuple[str, ...]]:
    """Floors of prompts of a model on a device; what to know of them."""
    if words.get("model") is None:
        if any(words.get(name) is not None for name in ("gpu", "peak_flops", "bandwidth")):
            raise UsageProblem("--gpu without --model", hint="give both, or none")
        return None, ()
    from dataclasses import replace

    from analyzers.agentlog_cost import PromptCost, PromptFloor
    from analyzers.scenario import asked, expect

    scenario, question = asked({**words, "prompt": 1, "batch": 1, "output": 1})
    expected = expect(scenario, question)

    def floor_of(tokens: int) -> PromptFloor:
        found = expect(scenario, replace(question, prompt=tokens)).prediction
        return PromptFloor(
            compute_s=found.prefill.compute_s, memory_s=found.prefill.memory_s,
            kv_read_s=found.memory.kv_bytes / found.peak_bandwidth,
        )  # fmt: skip

    device = expected.device or "given peaks"
    told = f"prefill floor: {expected.model} on one {device}, {expected.dtype}, at the peaks ({expected.peak_source})"
    return PromptCost(floor_of), (told, *expected.notes)
