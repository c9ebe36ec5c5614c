"""Findings outside the engine's core: the frontend that tokenizes, the way back to the client, the client itself."""

from __future__ import annotations

from collections.abc import Iterator

from analyzers.finding import Finding, Severity
from analyzers.finding_basis import Basis, finding, gain_between, waits_enough
from analyzers.finding_limits import FRONTEND_FLOOR_NS, LATE_CLIENT_NS, LATE_OUTPUT_NS, LEAST_PLANNED

_MS = 1e6
_OUTPUT = (
    "SELECT q.request_id, q.last_token_ns, max(s.result_start_ns) AS given_ns, q.last_token_ns - max(s.result_start_ns) AS late_ns "
    "FROM requests AS q JOIN ledger_rows AS r ON r.run_id = q.run_id AND r.engine_request_id = q.request_id "
    "JOIN ledger_steps AS s ON s.run_id = r.run_id AND s.pid = r.pid AND s.seq = r.seq WHERE q.run_id = $run_id "
    "AND r.accepted_tokens > 0 AND q.last_token_ns IS NOT NULL GROUP BY q.request_id, q.last_token_ns ORDER BY late_ns DESC"
)


def of_frontend(run: Basis) -> Iterator[Finding]:
    """Nothing where neither idle time nor requests are known."""
    if run.trusts("gaps", "gaps.cause", "devices.idle_ns", "requests.queued_ns"):
        yield from _frontend(run)
    row = run.rows("finding_lateness").row(0, named=True)
    if row["planned"] >= LEAST_PLANNED and row["late_ns"] >= LATE_CLIENT_NS:
        yield finding(
            run, "client.late", "the client sends later than planned",
            f"of {row['planned']} requests that were to be sent at a time, one in twenty was sent {row['late_ns'] / _MS:,.0f} ms late "
            f"or more (at most {row['late_most_ns'] / _MS:,.0f} ms): the engine saw another load than was asked for",
            "run the client on a machine of its own, or split the load over several; until then read no latency at this rate",
            "SELECT request_id, planned_ns, arrival_ns, arrival_ns - planned_ns AS late_ns FROM requests WHERE run_id = $run_id "
            "AND planned_ns IS NOT NULL AND pass IS DISTINCT FROM 'warmup' AND status = 'ok' ORDER BY late_ns DESC",
            gain=None, whole_ns=0, severity=Severity.INFO,
        )  # fmt: skip
    if run.trusts("ledger_steps") and row["answered"] and row["output_ns"] >= LATE_OUTPUT_NS:
        yield finding(
            run, "frontend.output", "tokens reach the client late",
            f"in half of {row['answered']} requests the last token takes {row['output_ns'] / _MS:,.0f} ms or more from the engine "
            "core to the client",
            "more processes that detokenize and answer (vLLM: --api-server-count; SGLang: --tokenizer-worker-num), less per token "
            "(no logprobs, --stream-interval), a client that keeps up",
            _OUTPUT, gain=None, whole_ns=0, severity=Severity.INFO,
        )  # fmt: skip


def _frontend(run: Basis) -> Iterator[Finding]:
    """Between a wait that keeps what HTTP and a tokenizer take when nothing is wrong, and none at all."""
    row = run.rows("finding_frontend", floor=FRONTEND_FLOOR_NS).row(0, named=True)
    if not waits_enough(row["frontend_ns"], run.window_ns) or row["over_ns"] <= 0:
        return
    low, high = (row[name] / run.window_ns for name in ("over_ns", "frontend_ns"))
    yield finding(
        run, "frontend.input", "the device waits for the frontend",
        f"{row['waits']:,} times all the engine has to do is between the client and its queue (HTTP, chat template, tokenizer, "
        f"hand-over): {high:.0%} of the window",
        "more processes that tokenize (vLLM: --api-server-count; SGLang: --tokenizer-worker-num), prompts as token ids, clients that "
        "keep requests in the queue",
        "SELECT rank, device, start_ns, dur_ns AS explained_ns, detail FROM gaps WHERE run_id = $run_id AND cause = 'frontend' "
        "ORDER BY explained_ns DESC",
        gain=gain_between(low, (low + high) / 2, high, "window"), whole_ns=run.window_ns, device_ns=row["frontend_ns"],
    )  # fmt: skip
