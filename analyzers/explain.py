"""What a word of ours means: the glossary, the data dictionary, what labels cannot tell; with a run, its findings and checks.

The glossary is glossary.toml; tables and columns are explained in traces/schema.sql, and nowhere else.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

from traces.errors import UsageProblem
from traces.labels import CAVEATS
from traces.store import TraceStore, schema_sql

EXPLAIN_VERSION = 1
_SUGGESTIONS = 5
_COLUMN = re.compile(r"    (\w+) ([A-Z]+(?:\[\])?)(?: NOT NULL)?,?\s*(?:-- (.*))?")
_FINDING_GROUP, _CHECK_GROUP = "finding", "check"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """One meaning of a word. `group`: a key of the glossary's titles, or 'table', 'column', 'caveat'; `title` in words.

    `todo`: what to do about it, `see`: related terms, `also`: other spellings, `like`: a pattern of names; empty where there is
    nothing to say.
    """

    name: str
    group: str
    title: str
    text: str
    todo: str = ""
    see: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    like: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Meanings of `term`. With a run: `findings` and `checks` of that id in it (rows of the tables, times in ns)."""

    version: int = EXPLAIN_VERSION
    term: str | None
    meanings: list[Meaning]
    run_id: str | None = None
    findings: list[dict[str, Any]] | None = None
    checks: list[dict[str, Any]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def explain(term: str | None, store: TraceStore | None = None) -> Explanation:
    """What `term` means, and what a run has of it; every term of the glossary where it is None.

    Raises UsageProblem, with the nearest terms, for a word that is not known here.
    """
    if term is None:
        return Explanation(term=None, meanings=list(glossary()))
    findings = None if store is None else _rows(store, "findings", "finding_id", term)
    checks = None if store is None else _rows(store, "health", "check_id", term)
    meanings = meanings_of(term)
    if not (meanings or findings or checks):
        near = suggestions(term)
        hint = f"near it: {', '.join(near)}" if near else "`stepscope explain` lists every term"
        raise UsageProblem(f"unknown term {term[:80]}", hint=hint)
    run_id = None if store is None else store.run_id
    return Explanation(term=term, meanings=meanings, run_id=run_id, findings=findings, checks=checks)


def meanings_of(term: str) -> list[Meaning]:
    """Every meaning of a word, the glossary's first; case, blanks, dashes and underscores are not told apart."""
    word = _plain(term)
    return _index().get(word) or [item for item in glossary() if item.like and fnmatchcase(word, _plain(item.like))]


def suggestions(term: str) -> list[str]:
    """Terms that are spelled much alike, or hold the word."""
    word, index = _plain(term), _index()
    near = difflib.get_close_matches(word[:80], index, n=_SUGGESTIONS, cutoff=0.6)
    if len(word) > 2:
        near += [known for known in index if word in known and known not in near]
    return list(dict.fromkeys(index[known][0].name for known in near))[:_SUGGESTIONS]


@cache
def glossary() -> tuple[Meaning, ...]:
    """Every term of glossary.toml and every caveat of step labels, in their order."""
    raw = tomllib.loads(resources.files("analyzers").joinpath("glossary.toml").read_text(encoding="utf-8"))
    titles: dict[str, str] = raw.pop("title")
    terms = [
        Meaning(
            name=name, group=group, title=titles[group], text=item["text"], todo=item.get("todo", ""),
            see=tuple(item.get("see", ())), also=tuple(item.get("also", ())), like=item.get("like", ""),
        )
        for group, items in raw.items() for name, item in items.items()
    ]  # fmt: skip
    title = "What a step's label cannot tell (column steps.caveats)"
    return (*terms, *(Meaning(name=name, group="caveat", title=title, text=text) for name, text in CAVEATS.items()))


@cache
def dictionary() -> tuple[Meaning, ...]:
    """Every table, and every column as TABLE.COLUMN, of schema.sql."""
    return tuple(_dictionary())


def _dictionary() -> Iterator[Meaning]:
    comment: list[str] = []
    table = ""
    for line in schema_sql().splitlines():
        if line.startswith("--"):
            comment.append(line.removeprefix("--").strip())
            continue
        if line.startswith("CREATE TABLE "):
            table = line.split()[2]
            yield Meaning(name=table, group="table", title="Table", text=" ".join(comment))
        elif (match := _COLUMN.fullmatch(line)) and match[3]:
            yield Meaning(
                name=f"{table}.{match[1]}", group="column", title=f"Column of {table}, {match[2]}", text=match[3]
            )
        comment = []


@cache
def _index() -> dict[str, list[Meaning]]:
    found: dict[str, list[Meaning]] = {}
    for item in glossary():
        for word in (item.name, *item.also):
            found.setdefault(_plain(word), []).append(item)
    for item in dictionary():
        for word in {item.name, item.name.partition(".")[2] or item.name}:
            found.setdefault(_plain(word), []).append(item)
    return found


def _plain(term: str) -> str:
    return re.sub(r"[\s_-]+", " ", term.strip().lower())


def _rows(store: TraceStore, table: str, column: str, term: str) -> list[dict[str, Any]]:
    rows = store.query(
        f"SELECT * EXCLUDE (run_id) FROM {table} WHERE run_id = ? AND lower({column}) = lower(?) ORDER BY ALL",
        [store.run_id, term],
    ).to_dicts()
    for row in rows:
        for name in ("proof", "affects"):
            if row.get(name) is not None:
                row[name] = json.loads(row[name])
    return rows
