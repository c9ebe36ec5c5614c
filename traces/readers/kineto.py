"""Torch-profiler (Kineto) JSON, in whatever state it comes: plain, gzip or zstd, whole or cut off.

`ts` in `stage.events` is as in the file, in integer ns; `ReadReport.base_ns` carries `baseTimeNanoseconds`, which may
stand behind the events. Flows (`ac2g`) are counted and dropped: device activities carry the correlation of their
launch themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.kineto_json.pipeline import read_document

_SIGNS = re.compile(rb'"(?:traceEvents|schemaVersion|deviceProperties|displayTimeUnit|distributedInfo)"')
_EVENT_SIGN = re.compile(rb'"ph"\s*+:')


class KinetoReader:
    """Reads trace-event JSON as the torch profiler writes it, and most of what others write."""

    name = "kineto"

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the file looks like trace-event JSON: the first decompressed bytes decide, then the name."""
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if text.startswith(b"["):
            return _EVENT_SIGN.search(text) is not None or "trace" in path.name
        if not text.startswith(b"{"):
            return False
        return _SIGNS.search(text) is not None or ".trace.json" in path.name

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Parse `path` into the sink. Raises UnreadableInput where nothing at all can be kept."""
        return read_document(path, src, sink, options)
