"""Preemption, chunked prefill, prefix hits and n-gram drafts on a real vLLM: phases against the ledger's truth."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pytest
from engine_harness import profile_real
from ledger_oracle import (
    Record,
    in_order,
    phase_rows,
    records_of,
    scheduled,
    step_counts,
    stored_counts,
    stored_rows,
)

from traces.ingest import IngestOptions, ingest
from traces.store import named_sql

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
]

SMALL_CACHE = ("max-model-len=1024", "block-size=32", "num-gpu-blocks-override=40", "max-num-batched-tokens=256")
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
# Prompts of one token more than the budget; without a prefix cache a preempted request computes all of it again.
BATCH = ("batch:n=8,prompt=257,output=72,form=ids", "no-enable-prefix-caching")
AGENT = (
    "agent:sessions=4,turns=3,output=60,system=150,tools=0,task=60,observation=150,stagger=0,tool_wait=0",
    f"speculative-config={json.dumps(NGRAM)}",
)
STATED = (
    "kind, prefill_reqs, prefill_tokens, prefill_kv_tokens, prefill_qq, prefill_qk, decode_reqs, decode_tokens, "
    "decode_kv_tokens, decode_qk"
)
MULTI_TOKEN = {"generation_multi_token", "generation_long_query"}
SCENARIOS = ("batch", "agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A profiled run: its ledger as written, its database, and the database of its trace alone."""

    records: list[Record]
    requests: list[Record]  # the client's, of the profiled pass
    con: duckdb.DuckDBPyConnection
    labels_only: duckdb.DuckDBPyConnection

    @property
    def window(self) -> set[int]:
        """Ledger steps of the profiled pass."""
        rows = self.con.execute("SELECT seq FROM ledger_steps WHERE pass = 'profiled' AND total_tokens > 0").fetchall()
        return {row[0] for row in rows}

    @property
    def rows(self) -> list[Record]:
        """The scheduled requests of the profiled pass."""
        window = self.window
        return [row for row in scheduled(self.records) if row["seq"] in window]


def recorded(folder: Path, workload: str, *engine_args: str) -> Scenario:
    run_dir = folder / "run"
    flags = [part for argument in SMALL_CACHE + engine_args for part in ("--engine-arg", argument)]
    ended = profile_real(run_dir, "--workload", workload, "--no-control", "--window", "all", *flags)
    assert ended.code == 0, ended.err
    assert (ended.manifest["status"], ended.manifest["hook_errors"]) == ("complete", [])
    ingest([str(path) for path in (run_dir / "trace").iterdir()], folder / "labels.duckdb", IngestOptions())
    lines = (run_dir / "requests.jsonl").read_text().splitlines()
    return Scenario(
        records=records_of(run_dir),
        requests=[item for item in map(json.loads, lines) if item["pass"] == "profiled"],
        con=duckdb.connect(str(run_dir / "run.duckdb"), read_only=True),
        labels_only=duckdb.connect(str(folder / "labels.duckdb"), read_only=True),
    )


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Scenario]]:
    """Each scenario is recorded when a test first asks for it."""
    made: dict[str, Scenario] = {}

    def run(name: str) -> Scenario:
        if name not in made:
            made[name] = recorded(tmp_path_factory.mktemp(name), *{"batch": BATCH, "agent": AGENT}[name])
        return made[name]

    yield run
    for scenario in made.values():
        scenario.con.close()
        scenario.labels_only.close()


@pytest.fixture(params=SCENARIOS)
def scenario(request: pytest.FixtureRequest, run_of: Callable[[str], Scenario]) -> Scenario:
    return run_of(request.param)


@pytest.fixture
def batch(run_of: Callable[[str], Scenario]) -> Scenario:
    return run_of("batch")


@pytest.fixture
def agent(run_of: Callable[[str], Scenario]) -> Scenario:
    return run_of("agent")


def test_every_ledger_step_has_the_phases_of_the_oracle(scenario: Scenario) -> None:
    window = scenario.window
    assert len(window) > 40
    stored = in_order(stored_rows(scenario.con))
    assert stored == in_order([row for row in phase_rows(scenario.records) if row.seq in window])
    counts = {seq: values for seq, values in step_counts(scenario.records).items() if seq in window}
    assert stored_counts(scenario.con) == counts
    checks = dict(scenario.con.execute("SELECT check_id, status FROM health").fetchall())
    assert (checks["ledger_match"], checks["label_phases"]) == ("ok", "ok")


def test_only_preempted_requests_compute_again(scenario: Scenario) -> None:
    preempted = {record["id"] for record in scenario.records if record.get("event") == "preempted"}
    again = scenario.con.execute(
        "SELECT DISTINCT request_id FROM step_requests WHERE phase = 'recompute' AND new_tokens > 0"
    ).fetchall()
    assert {row[0] for row in again} <= preempted
    counted = scenario.con.execute("SELECT request_id FROM requests WHERE n_preemptions > 0").fetchall()
    assert {row[0] for row in counted} == preempted
    computed = dict(
        scenario.con.execute(
            "SELECT request_id, sum(new_tokens) FROM step_requests WHERE phase = 'recompute' GROUP BY ALL"
        ).fetchall()
    )
    times = Counter(row["ids"] for row in scenario.rows if row["resumed"])
    for row in scenario.rows:
        if row["resumed"] and times[row["ids"]] == 1:
            lost = max(0, row["high_water"] - row["computed"])
            assert computed.get(row["ids"], 0) == lost, "from the cache's last block to where it was"


def test_without_a_prefix_cache_all_is_computed_again(batch: Scenario) -> None:
    resumed = [row for row in batch.rows if row["resumed"]]
    assert resumed
    assert {row["computed"] for row in resumed} == {0}
    last = (
        "SELECT s.ledger_seq, r.request_id FROM step_requests AS r JOIN steps AS s USING (step_id) WHERE r.phase = '{}'"
    )
    again = set(batch.con.execute(last.format("recompute")).fetchall())
    assert sum(row["high_water"] for row in resumed) > 256
    assert again & set(batch.con.execute(last.format("decode")).fetchall()), "the last chunk brings a new token"


def test_a_last_chunk_of_one_token_is_prefill(batch: Scenario) -> None:
    ends = [row for row in batch.rows if row["new"] == 1 and row["computed"] == row["prompts"] - 1 == 256]
    assert ends, "the first prompt fills the budget of 256 and one token is left"
    for row in ends:
        phases = batch.con.execute(
            "SELECT r.phase, r.new_tokens, r.context_tokens, r.accepted_tokens, s.host_start_ns FROM step_requests AS r "
            "JOIN steps AS s USING (step_id) WHERE s.ledger_seq = ? AND r.request_id = ?", [row["seq"], row["ids"]],
        ).fetchall()  # fmt: skip
        assert [phase[:4] for phase in phases] == [("prefill", 1, 257, 1)]
        stated = batch.labels_only.execute(
            "SELECT decode_tokens, prefill_reqs FROM steps WHERE host_start_ns = ?", [phases[0][4]]
        ).fetchone()
        assert stated is not None
        others = [other for other in batch.rows if other["seq"] == row["seq"] and other["out"] > 0]
        assert stated[0] == sum(other["new"] for other in others), "the label says so too"


def test_chunks_ride_with_decodes(scenario: Scenario) -> None:
    mixed = scenario.con.execute(
        "SELECT count(*), min(prefill_ns), min(decode_ns) FROM steps WHERE kind = 'mixed' AND busy_ns > 0"
    ).fetchone()
    chunks = scenario.con.execute(
        "SELECT max(n) FROM (SELECT count(*) AS n FROM step_requests WHERE phase = 'prefill' GROUP BY request_id)"
    ).fetchone()
    assert mixed is not None
    assert mixed[0] > 2
    assert min(mixed[1:]) > 0
    assert chunks is not None
    assert chunks[0] >= 2


def test_prompts_and_outputs_are_those_of_the_api(scenario: Scenario) -> None:
    """A prompt is what the cache had, what was computed for the first time, and what a resumed request got beyond that."""
    by_request = {
        client: counts
        for client, *counts in scenario.con.execute(
            "SELECT q.client_request_id, sum(r.new_tokens) FILTER (WHERE r.phase = 'prefill'), max(r.cached_tokens), "
            "sum(r.accepted_tokens) FROM step_requests AS r JOIN requests AS q USING (request_id) GROUP BY ALL"
        ).fetchall()
    }
    ids = dict(scenario.con.execute("SELECT request_id, client_request_id FROM requests").fetchall())
    for row in scenario.rows:
        if row["resumed"]:
            by_request[ids[row["ids"]]][0] += max(0, min(row["computed"], row["prompts"]) - row["high_water"])
    assert by_request == {
        item["client_request_id"]: [
            item["prompt_tokens"] - item["cached_tokens"], item["cached_tokens"], item["output_tokens"]
        ]
        for item in scenario.requests
    }  # fmt: skip


def test_later_turns_find_their_prefix(agent: Scenario) -> None:
    hits = agent.con.execute("SELECT sum(cached_tokens) FROM step_requests WHERE cached_tokens % 32 = 0").fetchone()
    assert hits == (sum(item["cached_tokens"] for item in agent.requests),)
    assert hits > (0,)


def test_rejected_drafts_do_not_count_as_computed(agent: Scenario) -> None:
    """The engine itself goes on where the oracle's high-water mark stands."""
    preempted = {row["ids"] for row in agent.rows if row["resumed"]}
    goes_on = [row for row in agent.rows if not row["first"] and row["ids"] not in preempted]
    assert len(goes_on) > 40
    assert [row for row in goes_on if row["computed"] != row["high_water"]] == []
    verified = agent.con.execute(
        "SELECT r.new_tokens, r.accepted_tokens FROM step_requests AS r WHERE r.phase = 'verify'"
    ).fetchall()
    assert all(2 <= new <= 4 and 1 <= accepted <= new for new, accepted in verified)
    assert any(accepted < new for new, accepted in verified), "some draft was rejected"
    assert any(accepted > 1 for _, accepted in verified), "some draft was accepted"
    drafted = agent.con.execute("SELECT sum(spec_tokens) FROM steps").fetchone()
    assert drafted == (sum(new - 1 for new, _ in verified),)


def test_parts_sum_to_the_whole(scenario: Scenario) -> None:
    con = scenario.con
    windows = con.execute(
        "SELECT busy_ns + idle_ns + unrecorded_ns = window_end_ns - window_start_ns, busy_ns FROM devices"
    ).fetchall()
    assert [row[0] for row in windows] == [True]
    steps = con.execute("SELECT step_id, busy_ns, prefill_ns + decode_ns + other_ns, kind FROM steps").fetchall()
    assert [step for step in steps if step[1] != step[2]] == []
    unattributed = windows[0][1] - sum(step[1] for step in steps)
    assert 0 <= unattributed <= 0.01 * windows[0][1]
    shares = con.execute(
        "SELECT s.step_id, s.prefill_ns, s.decode_ns, "
        "coalesce(sum(r.device_ns) FILTER (WHERE r.phase IN ('prefill', 'recompute')), 0), "
        "coalesce(sum(r.device_ns) FILTER (WHERE r.phase IN ('decode', 'verify')), 0) "
        "FROM steps AS s JOIN step_requests AS r USING (step_id) GROUP BY ALL"
    ).fetchall()
    assert len(shares) == len(scenario.window)
    assert [share for share in shares if share[1:3] != share[3:5]] == []
    empty = con.execute("SELECT count(*) FROM step_requests WHERE device_ns IS NULL OR device_ns <= 0").fetchone()
    assert empty == (0,)


def test_every_scheduled_request_has_one_row_of_logits_and_one_per_draft(scenario: Scenario) -> None:
    """Also where a recomputed chunk and the new token behind it are two rows of step_requests."""
    expected: Counter[int] = Counter()
    for row in scenario.rows:
        expected[row["seq"]] += 1 + row["spec"]
    steps, requests = (
        named_sql(name, "analyzers").rstrip().rstrip(";") for name in ("phases_steps", "phases_requests")
    )
    for query, sampled in ((steps, "prefill_sampled + decode_sampled"), (requests, "sampled")):
        rows = scenario.con.execute(
            f"SELECT s.ledger_seq, sum(q.{sampled}) FROM ({query}) AS q JOIN steps AS s USING (step_id) "
            "WHERE s.source = 'ledger' GROUP BY ALL",
            {"run_id": scenario.con.execute("SELECT run_id FROM runs").fetchall()[0][0]},
        ).fetchall()
        assert dict(rows) == expected


def test_labels_alone_agree_or_say_what_they_cannot_know(scenario: Scenario) -> None:
    truth = dict(_by_start(scenario.con, "WHERE source = 'ledger'"))
    labelled = dict(_by_start(scenario.labels_only, "WHERE prefill_tokens + decode_tokens > 0"))
    assert truth.keys() == labelled.keys()
    seqs = dict(scenario.con.execute("SELECT host_start_ns, ledger_seq FROM steps WHERE source = 'ledger'").fetchall())
    caveats = {
        start: set(json.loads(text))
        for start, text in scenario.labels_only.execute("SELECT host_start_ns, caveats FROM steps").fetchall()
    }
    differing = {start for start, counts in truth.items() if labelled[start] != counts}
    # What a preempted request recomputes of a generation stands under generation; one token looks like a decode.
    again = [row for row in scenario.rows if row["out"] > 0 and row["computed"] < row["high_water"]]
    assert {seqs[start] for start in differing} == {row["seq"] for row in again}
    hidden = {row["seq"] for row in again if row["new"] == 1}
    silent = {start for start in differing if not caveats[start] & MULTI_TOKEN}
    assert {seqs[start] for start in silent} <= hidden
    said = scenario.labels_only.execute("SELECT status FROM health WHERE check_id = 'label_caveats'").fetchall()
    assert said == [("warning",)]
    unsure = {seqs[start] for start in truth if caveats[start] & MULTI_TOKEN}
    several = {row["seq"] for row in scenario.rows if row["out"] > 0 and row["new"] > 1}
    assert unsure == several, "said of every step with several tokens for a generation, and of no other"
    unknown = scenario.labels_only.execute(
        "SELECT count(recompute_tokens) + count(spec_tokens) + count(accepted_tokens) FROM steps"
    ).fetchone()
    assert unknown == (0,)


def _by_start(con: duckdb.DuckDBPyConnection, where: str) -> list[tuple[int, list[object]]]:
    rows = con.execute(f"SELECT host_start_ns, {STATED} FROM steps {where}").fetchall()
    return [(start, counts) for start, *counts in rows]
