"""Prometheus text, as a server's `/metrics` answers it, → staging table `metrics`.

The time of a scrape is not in that format, so our own snapshots begin with a line

    # stepscope scraped_ns=<ns since the epoch>

which holds for the samples behind it, up to the next such line: several scrapes may stand in one file. A sample's own
timestamp (ms) wins over it. Without either, ts_ns is NULL. NaN and infinities become NULL values.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path

import pyarrow as pa

from traces.clock import INT64_MAX, NS_PER_MS
from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.staging import LOG_TABLES

SCRAPED = "# stepscope scraped_ns="
_ROWS_PER_TABLE = 65_536

_LABEL = re.compile(r'\s*([a-zA-Z_:][a-zA-Z0-9_:]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|(?=\}))')
# value, then a timestamp in ms, then perhaps an OpenMetrics exemplar
_NUMBER = r"[+-]?(?:[0-9][0-9.eE+-]*|\.[0-9][0-9eE+-]*|[iI]nf(?:inity)?|[nN]a[nN])"
_VALUE = re.compile(rf"\s*({_NUMBER})(?:\s+(-?[0-9]+))?\s*(?:#.*)?")
_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_OPENING, _CLOSING = re.compile(r"\s*\{"), re.compile(r"\s*\}")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}

_Sample = tuple[str, str, float | None, int | None]  # name, labels as JSON, value, ts_ns


class MetricsReader:
    """Samples by the line; a scrape has a few thousand."""

    name = "metrics"

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the first line is our scrape time or a comment of the format; in a `.prom` file a sample will do."""
        first = head.lstrip().partition(b"\n")[0].decode(errors="replace")
        if first.startswith((SCRAPED, "# HELP ", "# TYPE ")):
            return True
        return path.suffix == ".prom" and (not first or _METRIC.match(first) is not None)

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Append `metrics`: one row per sample, labels as a JSON object with sorted keys.

        Lines that are no sample are left out and counted in `dropped`. Raises UnreadableInput where the file cannot
        be opened, or has samples of which none can be read.
        """
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise UnreadableInput(f"cannot read {path}: {error.strerror}", hint="give Prometheus text") from error
        report = ReadReport(path=path, format=self.name, sha256=hashlib.sha256(raw).hexdigest(), bytes_read=len(raw))
        samples = self._samples(raw.decode(errors="replace"), report)
        if not samples and report.dropped:
            raise UnreadableInput(f"no line of {path} is a sample", hint="give what a server's /metrics answers")
        report.events = len(samples) + sum(report.dropped.values())
        report.kept = {"metrics": len(samples)}
        for start in range(0, max(1, len(samples)), _ROWS_PER_TABLE):
            sink.append("metrics", _table(samples[start : start + _ROWS_PER_TABLE], src))
        if options.progress is not None:
            options.progress(report.bytes_read, report.events)
        return report

    def _samples(self, text: str, report: ReadReport) -> list[_Sample]:
        samples: list[_Sample] = []
        scraped_ns: int | None = None
        for line in text.split("\n"):
            stripped = line.strip()
            if stripped.startswith("#"):
                if stripped.startswith(SCRAPED):
                    scraped_ns = _integer(stripped[len(SCRAPED) :])
                    if scraped_ns is None:
                        _count(report, "scrape time that is no number")
            elif stripped:
                sample = parse_sample(stripped, scraped_ns)
                if sample is None:
                    _count(report, "no sample")
                else:
                    samples.append(sample)
        return samples


def parse_sample(line: str, scraped_ns: int | None) -> _Sample | None:
    """Name, labels (JSON), value and time (ns) of one line; None where it is not of the format."""
    metric = _METRIC.match(line)
    if metric is None:
        return None
    position = metric.end()
    labels: dict[str, str] = {}
    opening = _OPENING.match(line, position)
    if opening is not None:
        position = opening.end()
        while (label := _LABEL.match(line, position)) is not None:
            if label.group(1) in labels:
                return None
            labels[label.group(1)] = _ESCAPE.sub(_unescape, label.group(2))
            position = label.end()
        closing = _CLOSING.match(line, position)
        if closing is None:
            return None
        position = closing.end()
    elif not line[position : position + 1].isspace():
        return None
    value = _VALUE.fullmatch(line, position)
    if value is None:
        return None
    try:
        number = float(value.group(1))
    except ValueError:
        return None
    own_ms = _integer(value.group(2)) if value.group(2) else None
    own_ns = own_ms * NS_PER_MS if own_ms is not None and abs(own_ms) <= INT64_MAX // NS_PER_MS else None
    text = json.dumps(labels, sort_keys=True, ensure_ascii=False)
    return metric.group(), text, number if math.isfinite(number) else None, scraped_ns if own_ns is None else own_ns


def _count(report: ReadReport, reason: str) -> None:
    report.dropped[reason] = report.dropped.get(reason, 0) + 1


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPED.get(match.group(1), match.group(0))


def _integer(text: str) -> int | None:
    text = text.strip()
    if re.fullmatch(r"-?[0-9]{1,19}", text) is None:
        return None
    number = int(text)
    return number if abs(number) <= INT64_MAX else None


def _table(samples: list[_Sample], src: int) -> pa.Table:
    names, labels, values, times = zip(*samples, strict=True) if samples else ((), (), (), ())
    columns = {"src": [src] * len(names), "ts_ns": times, "name": names, "labels": labels, "value": values}
    return pa.table(columns, schema=LOG_TABLES["metrics"])
