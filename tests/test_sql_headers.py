"""Every SQL file says what it is for; the columns its header names are those it returns."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from recording import RUN, Recording

from traces.unrecorded import host_marks

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted([*ROOT.glob("traces/sql/*.sql"), *ROOT.glob("analyzers/sql/*.sql")])
HEALTH_COLUMNS = {"rank", "check_id", "status", "value", "threshold", "affects", "message"}
SOURCES = "\n".join(path.read_text(encoding="utf-8") for folder in ("traces", "analyzers")
                    for ending in ("sql", "py") for path in (ROOT / folder).rglob(f"*.{ending}"))  # fmt: skip


def split(path: Path) -> tuple[list[str], str]:
    """Lines of the header without their dashes, and the rest."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return [line.removeprefix("--").strip() for line in lines[:end]], "\n".join(lines[end:])


def is_query(body: str) -> bool:
    """One statement that returns rows."""
    return re.match(r"(SELECT|WITH)\b", body) is not None and not re.search(
        r"^(INSERT|UPDATE|CREATE|DELETE)\b", body, re.MULTILINE
    )


def documented(header: list[str]) -> set[str]:
    """Names at the start of a line, set off from their description by two blanks, or alone on it."""
    found: set[str] = set()
    for line in header:
        match = re.match(r"((?:[a-z0-9_]+, )*[a-z0-9_]+)(?:  +\S|$)", line)
        if match and (", " in match.group(1) or "  " in line):
            found.update(match.group(1).split(", "))
    return found


def mentioned(header: list[str], column: str) -> bool:
    """By its name, as `prefix_*` with the rest of its name, or as `*_suffix`."""
    text = " ".join(header)
    if re.search(rf"\b{re.escape(column)}\b", text):
        return True
    prefix, _, rest = column.partition("_")
    if f"*_{rest}" in text:
        return True
    return f"{prefix}_*" in text and re.search(rf"\b{re.escape(rest)}\b", text) is not None


QUERIES = [path for path in FILES if is_query(split(path)[1])]


@pytest.fixture(scope="module")
def linked() -> duckdb.DuckDBPyConnection:
    """A linked run with its staging tables still there."""
    recording = Recording().file(distributedInfo={"rank": 0, "world_size": 1})
    recording.label(1_000, 500).launch(1_100, 1).kernel(1_200, 100, 1)
    return recording.link().con


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_says_what_it_is_for(path: Path) -> None:
    header, body = split(path)
    assert header and len(header[0].split()) >= 4
    assert body.strip()
    assert len(header) + len(body.splitlines()) <= 250


@pytest.mark.parametrize("path", QUERIES, ids=lambda path: path.stem)
def test_documented_columns_are_the_columns(path: Path, linked: duckdb.DuckDBPyConnection) -> None:
    header, body = split(path)
    sql = re.sub(r"\$[a-z_]+", "NULL", body.rstrip().rstrip(";")).replace("{group}", "name")
    with host_marks(linked, RUN):
        try:
            columns = [row[0] for row in linked.execute(f"DESCRIBE {sql}").fetchall()]
        except duckdb.CatalogException as error:  # reads a table that is there only inside an analysis
            missing = re.search(r"Table with name (\w+) does not exist", str(error))
            assert missing is not None
            assert re.search(rf'TABLE (?:temp\.|stage\.)?{missing.group(1)}\b|"{missing.group(1)}"', SOURCES)
            return
    if path.stem.startswith("health_"):
        assert set(columns) == HEALTH_COLUMNS
        return
    assert [column for column in columns if not mentioned(header, column)] == []
    assert documented(header) <= set(columns)


def test_the_rule_itself() -> None:
    header = ["One row per thing.", "kind, name", "busy_ns   ns of it", "prefill_* and decode_*: tokens"]
    assert documented(header) == {"kind", "name", "busy_ns"}
    assert mentioned(header, "prefill_tokens") and not mentioned(header, "prefill_reqs")
    assert len(QUERIES) > 20
