"""Mooncake traces: JSON lines of `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

A hash id stands for a block of 512 tokens and everything before it, so two prompts share exactly the text of their
common leading ids. The last block of a prompt may be partial. Published timestamps come in steps of 3 s.
"""

from __future__ import annotations

from pathlib import Path

from traces.clock import NS_PER_MS
from traces.requestlogs.base import LogOptions, RequestLogFrame
from traces.requestlogs.blocks import BlockForm, fits_blocks, has_keys, read_blocks

_FORM = BlockForm(name="mooncake", block_tokens=512, ns_per_unit=NS_PER_MS, unit="milliseconds")


class MooncakeFormat:
    """See the module."""

    name = _FORM.name

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line has the four keys, and ids for blocks of 512 as far as that can be seen."""
        return has_keys(head) and fits_blocks(head, _FORM.block_tokens) is not False

    def read(self, path: Path, options: LogOptions) -> RequestLogFrame:
        """One request per line. Raises UnreadableInput where no line is one, or as options say."""
        return read_blocks(path, _FORM, options)
