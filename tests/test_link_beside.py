"""Linking on two connections at once: whichever fails, the failure is seen, and nothing goes on behind it."""

from __future__ import annotations

import time

import duckdb
import pytest

from traces import link
from traces.store import schema_sql


def prepared() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(schema_sql())
    return con


def test_what_fails_beside_is_raised_when_the_block_is_left() -> None:
    con = prepared()  # without staging tables
    done = []
    with pytest.raises(duckdb.CatalogException, match="stage"), link._beside(con, "store_host", "r"):
        done.append(con.execute("SELECT 42").fetchall())
    assert done == [[(42,)]]


def test_what_fails_in_the_block_ends_what_runs_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    con = prepared()

    def slow(other: duckdb.DuckDBPyConnection, *_names: str) -> None:
        other.execute(
            "SELECT count(*) FROM range(100000000) AS a, range(1000) AS b WHERE hash(a.range + b.range) = 7"
        ).fetchall()

    def interrupted() -> None:
        with link._beside(con, "store_host", "r"):
            time.sleep(0.3)
            raise KeyboardInterrupt

    monkeypatch.setattr(link, "run_sql", slow)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 20
    assert con.execute("SELECT 42").fetchall() == [(42,)]
