"""From the paths a person names to the files an ingest reads: what each is for, and which rank it comes from."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traces.errors import UnreadableInput, UsageProblem
from traces.manifest import MANIFEST_NAME
from traces.sniff import PIPE, file_problem, find_reader, hint_of, looks_like_capture, open_head

# Suffixes looked for in directories; a file named by itself is judged by its content alone.
KNOWN_SUFFIXES = (
    ".json", ".json.gz", ".json.zst", ".jsonl", ".jsonl.gz", ".jsonl.zst",
    ".sqlite", ".sqlite3", ".nsys-rep", ".qdrep", ".prom", ".prom.gz", "prompts.parquet",
    ".csv", ".csv.gz", ".dmon", ".dmon.gz",
)  # fmt: skip
# Files that stand beside recordings and are none: model folders, engine settings, lists of captured graphs.
_NO_RECORDING = frozenset({
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json", "added_tokens.json", "chat_template.json", "model.safetensors.index.json", "execution_details.json",
})  # fmt: skip
_ROLE_OF_READER = {
    "kineto": "trace", "nsys": "trace", "schedule": "ledger", "requests": "requests", "metrics": "metrics",
    "prompts": "prompts", "telemetry": "telemetry", "nvidia-smi": "telemetry", "dcgm": "telemetry",
    "prometheus": "telemetry",
}  # fmt: skip
_RANK = re.compile(r"(?<![A-Za-z])rank[-_]?(\d{1,5})(?!\d)", re.IGNORECASE)
_COORDINATE = re.compile(r"(?<![A-Za-z])([DPTE]P)-(\d{1,5})(?!\d)")  # SGLang: id-TP-0-DP-1-DECODE
_COORDINATES = re.compile(
    r"(?<![A-Za-z])((?:(?:dp|pp|tp|dcp|pcp|ep)\d{1,5}_?){2,})"
)  # vLLM: dp0_pp0_tp1_dcp0_ep0_rank1
_STAGE = re.compile(r"-(EXTEND|DECODE)(?=[.-])")

_Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFile:
    """One file of an ingest. `rank` and `stage` are what its name says; what the file itself states wins later."""

    path: Path
    role: (
        str  # 'trace' | 'frontend' | 'capture' | 'ledger' | 'requests' | 'metrics' | 'manifest' | 'telemetry' | 'other'
    )
    reader: str | None = None  # name in sniff.READERS
    rank: int | None = None
    stage: str | None = None  # 'EXTEND' | 'DECODE' of SGLang's profiling by stage
    bytes: int = 0
    problem: str | None = None  # why it is not read, as the predicate of a sentence


def expand_inputs(paths: Sequence[str]) -> list[InputFile]:
    """The files behind files, directories (searched to the bottom) and glob patterns, each once, in a stable order.

    Files that cannot be read stay in the list with their `problem`, so that they can be named. Raises UnreadableInput
    where a path does not exist or nothing readable remains, UsageProblem where a directory holds several runs.
    """
    found: dict[Path, InputFile] = {}
    for text in paths:
        for path, named in _files_behind(text):
            key = Path(os.path.realpath(path))  # unlike resolve(), does not raise on a loop of links
            if key not in found:
                found[key] = _inspect(path, named=named)
    files = _without_exported_reports(list(found.values()))
    files = [item for item in files if not (item.role == "other" and item.problem is None)]
    if not any(item.problem is None and item.role != "manifest" for item in files):
        raise _nothing_left(paths, files)
    return _with_ranks(files)


def rank_of_name(name: str) -> int | None:
    """The rank that a file name states (`rank0`, `-TP-0-DECODE`, `dp0_pp0_tp1_…`); None where it states none."""
    key = _key_of_name(name)
    return None if key is None else key[2]


def classify(path: Path, head: bytes, reader: str | None) -> str:
    """The role of a file, by its name first and its content second."""
    name = path.name.lower()
    if name == MANIFEST_NAME:
        return "manifest"
    if ".async_llm" in name:
        return "frontend"
    if name.startswith("graph_capture") or (path.parent.name == "capture" and name.startswith("bs_")):
        return "capture"
    if name.startswith("telemetry") and _ROLE_OF_READER.get(reader or "") != "trace":
        return "telemetry"
    if reader == "kineto" and looks_like_capture(head):
        return "capture"
    return _ROLE_OF_READER.get(reader or "", "other")


def _files_behind(text: str) -> Iterator[tuple[Path, bool]]:
    """(path, named by the person) of every file that `text` stands for."""
    if not text:
        raise UsageProblem("a path is empty", hint="name the files to read; `.` is this folder")
    path = Path(text)
    if not os.path.lexists(path) and glob.has_magic(text):
        matches = sorted(glob.glob(text, recursive=True))  # noqa: PTH207 - Path.glob takes no absolute pattern
        if not matches:
            raise UnreadableInput(f"{text} matches no file", hint="quote the pattern, and check the path")
        for match in matches:
            if _is_directory(Path(match)):
                yield from ((item, False) for item in _walk(Path(match)))
            else:
                yield Path(match), False
    elif _is_directory(path):
        _refuse_several_runs(path)
        yield from ((item, False) for item in _walk(path))
    else:
        problem = file_problem(path)
        if problem is not None and not os.path.lexists(path):
            raise UnreadableInput(f"{path} {problem}", hint=hint_of(problem))
        yield path, True


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # what is wrong with it is said when it is opened
        return False


def _walk(top: Path) -> Iterator[Path]:
    """Files below `top` with known suffixes, sorted; every directory once, so that loops of links end."""
    seen: set[tuple[int, int]] = set()
    for folder, subfolders, names in os.walk(top, followlinks=True):
        try:
            status = Path(folder).stat()
        except OSError:  # removed while we looked
            subfolders.clear()
            continue
        if (status.st_dev, status.st_ino) in seen:
            subfolders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        is_run = MANIFEST_NAME in names
        subfolders[:] = sorted(
            item for item in subfolders if not item.startswith(".") and not (is_run and item == "model")
        )
        for name in sorted(names):
            if name.lower().endswith(KNOWN_SUFFIXES) and name not in _NO_RECORDING and not name.startswith("."):
                yield Path(folder) / name


def _refuse_several_runs(top: Path) -> None:
    if (top / MANIFEST_NAME).exists():
        return
    runs = sorted(item.parent for item in top.glob(f"*/{MANIFEST_NAME}"))
    if len(runs) > 1:
        raise UsageProblem(
            f"{top} holds {len(runs)} run directories ({', '.join(item.name for item in runs[:5])})",
            hint="give one of them: an ingest makes one run",
        )


def _inspect(path: Path, *, named: bool) -> InputFile:
    problem = file_problem(path)
    if problem == PIPE and named:  # cannot be looked into first; what people pipe are traces
        return InputFile(path=path, role="trace", reader="kineto")
    if problem is not None:
        role = classify(path, b"", None)
        return InputFile(path=path, role="trace" if role == "other" else role, problem=problem)
    size = path.stat().st_size
    if path.name == MANIFEST_NAME:
        return InputFile(path=path, role="manifest", bytes=size)
    head = open_head(path)
    reader = find_reader(path, head)
    role = classify(path, head, None if reader is None else reader.name)
    stage = _STAGE.search(path.name)
    return InputFile(
        path=path,
        role=role,
        reader=None if reader is None else reader.name,
        stage=stage.group(1) if stage else None,
        bytes=size,
        problem=None if reader is not None else _unknown(path, head, named=named or role == "telemetry"),
    )


def _unknown(path: Path, head: bytes, *, named: bool) -> str | None:
    """Why a file without a reader is left out; None for one that a directory merely happens to hold."""
    if path.suffix == ".duckdb":
        return "is a run database already"
    if head == b"":
        return "cannot be decompressed"
    return "has no format that stepscope reads" if named else None


def _without_exported_reports(files: list[InputFile]) -> list[InputFile]:
    """Leave out a `.nsys-rep` whose `.sqlite` export is in the list too: both hold the same recording."""
    exported = {item.path.with_suffix("") for item in files if item.path.suffix == ".sqlite" and item.problem is None}
    return [
        item for item in files
        if item.path.suffix not in (".nsys-rep", ".qdrep") or item.path.with_suffix("") not in exported
    ]  # fmt: skip


def _nothing_left(paths: Sequence[str], files: list[InputFile]) -> UnreadableInput:
    broken = [item for item in files if item.problem is not None]
    if broken:
        more = f" (and {len(broken) - 1} more files)" if len(broken) > 1 else ""
        problem = broken[0].problem or ""
        return UnreadableInput(f"{broken[0].path} {problem}{more}", hint=hint_of(problem))
    return UnreadableInput(
        f"no recording in {', '.join(paths)}", hint=f"looked for files that end in {', '.join(KNOWN_SUFFIXES)}"
    )


def _key_of_name(name: str) -> _Key | None:
    """(data-parallel rank, pipeline rank, rank within these) of a file name; None where it states no rank."""
    part = {kind.lower(): int(number) for kind, number in _COORDINATE.findall(name)}
    together = _COORDINATES.search(name)
    if together:
        part |= {kind: int(number) for kind, number in re.findall(r"([a-z]+)(\d+)", together.group(1))}
    stated = _RANK.search(name)
    if stated:
        return part.get("dp", 0), 0, int(stated.group(1))
    if "tp" in part:
        return part.get("dp", 0), part.get("pp", 0), part["tp"]
    if "dp" in part or "pp" in part:
        return 0, part.get("pp", 0), part.get("dp", part.get("pp", 0))
    return None


def _with_ranks(files: list[InputFile]) -> list[InputFile]:
    """Ranks from names. Where replicas or pipeline stages count from 0 each, all are numbered through in order."""
    keys = {item.path: _key_of_name(item.path.name) for item in files if item.reader in ("kineto", "nsys")}
    distinct = sorted({key for key in keys.values() if key is not None})
    clash = len({key[2] for key in distinct}) < len(distinct)
    number = {key: index if clash else key[2] for index, key in enumerate(distinct)}
    return [
        replace(item, rank=number[key]) if (key := keys.get(item.path)) is not None else item for item in files
    ]  # fmt: skip
