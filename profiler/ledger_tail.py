"""Following the hook's ledger while it is written: steps since the profiler started, and what the hook has to say."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

_STEP = b'{"kind":"step"'
_MARK = b'{"kind":"mark"'
_HEADER = b'{"kind":"header"'


@dataclass(slots=True, kw_only=True)
class LedgerTail:
    """Reads what is new in `directory`/*.jsonl at each `poll`. Steps are counted per file; the fullest one counts."""

    directory: Path
    marks: list[tuple[str, int]] = field(default_factory=list)  # (mark, ts_ns), in file order
    errors: list[str] = field(default_factory=list)
    headers: list[dict[str, object]] = field(default_factory=list)
    _offsets: dict[Path, int] = field(default_factory=dict)
    total_steps: int = 0  # of all files, recorded or not
    _steps: dict[Path, int] = field(default_factory=dict)
    _counting: set[Path] = field(default_factory=set)

    def poll(self) -> None:
        """Take in complete lines written since the last call. An unreadable file is left for the next call."""
        for path in sorted(self.directory.glob("*.jsonl")):
            try:
                with path.open("rb") as file:
                    file.seek(self._offsets.get(path, 0))
                    data = file.read()
            except OSError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            self._take(path, whole.splitlines())

    def steps_recorded(self) -> int:
        """Steps after the profiler's start; across data-parallel engine cores, of the one with the most."""
        return max(self._steps.values(), default=0)

    def last(self, mark: str) -> int | None:
        """Time of the last `mark`, ns since the epoch."""
        return next((ts for name, ts in reversed(self.marks) if name == mark), None)

    def _take(self, path: Path, lines: list[bytes]) -> None:
        for line in lines:
            if line.startswith(_STEP):
                self.total_steps += 1
                if path in self._counting:
                    self._steps[path] += 1
            elif line.startswith((_MARK, _HEADER)):
                self._take_record(path, line)

    def _take_record(self, path: Path, line: bytes) -> None:
        try:
            record = json.loads(line)
        except ValueError:
            return  # torn by a full disk; the reader reports it
        if record["kind"] == "header":
            self.headers.append(record)
            return
        name = str(record.get("mark"))
        self.marks.append((name, int(record.get("ts") or 0)))
        if name == "profile_start_end":
            self._steps[path] = 0
            self._counting.add(path)
        elif name == "profile_stop_begin":
            self._counting.discard(path)
        elif name == "error":
            self.errors.append(str(record.get("text")))
