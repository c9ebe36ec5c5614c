"""Findings of engine, device and frontend: everything but the causes that lie in an agent's prompts (finding_agents)."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb

from analyzers.finding import Finding
from analyzers.finding_basis import basis, served
from analyzers.finding_decode import of_decode
from analyzers.finding_energy import of_energy
from analyzers.finding_frontend import of_frontend
from analyzers.finding_host import of_host
from analyzers.finding_kernels import of_kernels
from analyzers.finding_prefill import of_prefill
from analyzers.finding_queue import of_queue


def make(con: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[Finding]:
    """The findings of the run; what each kind needs and does not find is no finding of it."""
    run = basis(con, run_id)
    if run is None:
        return
    known = served(run)  # once: the law of the steps is fitted a few hundred times
    yield from of_host(run)
    if known is not None:
        yield from of_queue(run, known)
    yield from of_decode(run, known)
    yield from of_prefill(run, known)
    yield from of_kernels(run)
    yield from of_frontend(run)
    yield from of_energy(run)
