"""What vLLM's benchmark calls `timed_trace`: JSON lines with the keys of Mooncake, in seconds and blocks of 16.

Both are settable there and here (`unit`, `block`). `hash_ids` may be missing, and need not cover the whole prompt: the
rest of it is text of its own. (vLLM itself makes such a prompt shorter; here `input_length` holds.)
"""

from __future__ import annotations

from pathlib import Path

from traces.clock import NS_PER_S
from traces.requestlogs.base import LogOptions, RequestLogFrame
from traces.requestlogs.blocks import KEYS, BlockForm, read_blocks
from traces.requestlogs.json_lines import first_object

_FORM = BlockForm(name="timed_trace", block_tokens=16, ns_per_unit=NS_PER_S, unit="seconds", hashed=False)


class TimedTraceFormat:
    """See the module."""

    name = _FORM.name

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line has a time and two lengths. Formats with more to go by are asked before."""
        return set(KEYS) - {"hash_ids"} <= set(first_object(head))

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per line. Raises UnreadableInput where no line is one, or as options say."""
        return read_blocks(path, _FORM, options)
