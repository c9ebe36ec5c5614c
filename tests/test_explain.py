"""`explain`: one glossary, complete, and honest about what it does not know."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from shell import stepscope
from test_commands import broken_graphs

from analyzers import kernels
from analyzers.explain import dictionary, explain, glossary, meanings_of, suggestions
from analyzers.finding_agents_causes import CAUSES as AGENT_CAUSES
from analyzers.report.explain_text import explain_lines
from cli import Composition
from traces.errors import UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.labels import CAVEATS
from traces.store import TraceStore, columns, schema_sql, table_names

ROOT = Path(__file__).resolve().parents[1]
SOURCES = [*(ROOT / "analyzers").rglob("*.py"), *(ROOT / "traces").rglob("*.py"), *(ROOT / "traces").rglob("*.sql")]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which idle time is withheld, and one finding."""
    folder = tmp_path_factory.mktemp("explained")
    target = folder / "t.duckdb"
    ingest_once([str(broken_graphs(folder / "t.json"))], target, IngestOptions(finish=Composition().analysis()))
    import duckdb

    with duckdb.connect(str(target)) as con:
        con.execute(
            "INSERT INTO findings SELECT run_id, 'decode.small-batch', 1, 'warning', 'a \x1b[31mtitle', 'a cause', 2000000, NULL, 0.5, "
            "2000000, 0.25, 0.1, 0.4, 'step_time', 'select \x07 1', 'more requests', '{\"workload\": null}' FROM runs"
        )
    return target


def words(group: str) -> set[str]:
    return {item.name for item in glossary() if item.group == group}


def listed(column: str) -> set[str]:
    """What schema.sql lists behind a column of table.column."""
    (text,) = (item.text for item in dictionary() if item.name == column)
    return set(re.findall(r"[a-z_]+", text.split(";")[0].replace("of lost:", "")))


def test_what_the_schema_lists_is_explained() -> None:
    assert words("cause") == listed("gaps.cause")
    assert words("category") | {"comm", "memcpy"} == listed("kernels.category") - {"other"} | {"memcpy", "comm"}
    assert listed("kernels.category") == set(kernels.CATEGORIES)
    assert words("bound") == listed("steps.bound")
    assert words("piece") - {"amplification"} == listed("reuse.piece")
    assert words("loss") == listed("reuse.cause")
    for column in (
        "steps.kind",
        "steps.split_method",
        "steps.graph_mode",
        "step_requests.phase",
        "kernels.step_link",
        "kernels.side",
    ):
        for value in listed(column) - {"none", "launch", "time", "stream_order"}:
            assert meanings_of(value), (column, value)


def test_every_check_is_explained() -> None:
    found: set[str] = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        found |= set(re.findall(r"'([a-z_]+)'(?:::VARCHAR)? AS check_id", text)) - {"_missing"}
        found |= set(re.findall(r'say\(\s*con, run_id, "([a-z_]+)"', text))
    found |= {
        "head_missing",
        "tail_missing",
        "giant_activity",
        "malformed_times",
        "displaced_records",
        "stream_overrun",
        "idle_requests",
    }
    assert len(found) > 20
    assert found - words("check") - words("recording") - words("cause") == set()


def test_every_finding_is_explained() -> None:
    found = {f"agents.{name}" for name in AGENT_CAUSES}
    for path in (ROOT / "analyzers").glob("finding_*.py"):
        found |= set(
            re.findall(r'^\s+(?:run, )?"([a-z]+\.[a-z0-9-]+)",', path.read_text(encoding="utf-8"), re.MULTILINE)
        )
    assert len(found) > 25
    assert [name for name in sorted(found) if not any(item.group == "finding" for item in meanings_of(name))] == []
    (family,) = meanings_of("kernels.kv-cache")
    assert family.name == "kernels.CATEGORY"


def test_every_table_column_and_caveat_is_explained() -> None:
    for name in (*table_names(), *CAVEATS):
        assert meanings_of(name)
    named = {item.name for item in dictionary()}
    assert {f"{table}.{column}" for table, column in columns() if column != "run_id"} <= named
    assert schema_sql().count("CREATE TABLE") == sum(item.group == "table" for item in dictionary())


def test_see_leads_to_terms_and_names_are_there_once() -> None:
    names = [item.name for item in glossary()]
    assert len(names) == len(set(names))
    for item in glossary():
        assert item.text.endswith(".") or item.text.endswith("?") or item.group == "caveat", item
        assert [term for term in item.see if not meanings_of(term)] == [], item


@pytest.mark.parametrize(
    ("term", "name"),
    [("ttft", "TTFT"), ("time per output token", "TPOT"), ("Execution_Idle", "execution-idle"), ("deep-idle", "deep idle"),
     ("re-sent output", "resent_output"), ("KV-cache", "KV cache"), ("steps.busy_ns", "steps.busy_ns"), ("gaps", "gaps")],
)  # fmt: skip
def test_spellings(term: str, name: str) -> None:
    assert meanings_of(term)[0].name == name
    done = stepscope("explain", term)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(name) and all(len(line) <= 100 for line in done.out.splitlines())


@pytest.mark.parametrize(
    ("term", "near"),
    [("TTTF", "TTFT"), ("evited", "evicted"), ("busy_nss", "busy"), ("prefix", "prefix"), ("qqqq", "lists every term")],
)
def test_an_unknown_term_is_exit_2_with_the_nearest(term: str, near: str) -> None:
    done = stepscope("explain", term)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"error: unknown term {term}\nhint: ") and near in done.err


@pytest.mark.parametrize(
    "term", ["\x1b[31mred\x07", "x" * 100_000, "", "  ", "*", "[a", "kernels.", "'; drop table runs"]
)
def test_hostile_terms(term: str, database: Path) -> None:
    for more in ((), (str(database),)):
        done = stepscope("explain", term, *more)
        assert done.code == 2 and done.out == ""
        assert not set(done.err) & {"\x1b", "\x07"} and len(done.err) < 1000


def test_a_finding_of_a_run(database: Path) -> None:
    done = stepscope("explain", "decode.small-batch", database)
    assert done.code == 0
    assert "decode.small-batch  (Findings)" in done.out
    assert "\\x1b[31mtitle" in done.out and "\x1b" not in done.out and "\x07" not in done.out
    assert "  explains 2.00 ms of device time (50.0 % of the window)" in done.out
    assert "  predicted gain 25.0 % (10.0 % to 40.0 %) of the step time" in done.out
    data = stepscope("explain", "decode.small-batch", database, "--json").json()
    assert data["findings"][0]["proof"] == {"workload": None} and data["checks"] == []


def test_a_check_of_a_run(database: Path) -> None:
    done = stepscope("explain", "graph_kernels", database)
    assert done.code == 0 and "rank 0: withheld" in done.out
    assert "no finding and no check of that name" in stepscope("explain", "TTFT", database).out
    assert stepscope("explain", "nothing-like-it", database).code == 2


def test_every_term_is_listed() -> None:
    text = " ".join(stepscope("explain").out.split())
    assert [item.name for item in glossary() if item.name not in text] == []
    data = stepscope("explain", "--json").json()
    assert [item["name"] for item in data["meanings"]] == [item.name for item in glossary()]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_fit(width: int, database: Path) -> None:
    with TraceStore.open(database) as store:
        for term in (None, "bound", "start_ns", "decode.small-batch", "graph_kernels"):
            lines = explain_lines(explain(term, store), width)
            assert [line for line in lines if len(line) > min(width, 100)] == []


def test_suggestions_are_few_and_known() -> None:
    found = suggestions("kernel")
    assert 0 < len(found) <= 5 and all(meanings_of(name) for name in found)
    with pytest.raises(UsageProblem):
        explain("nothing like it")
    assert json.dumps(explain("TTFT").to_dict())
