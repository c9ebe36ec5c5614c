"""The statement behind the numbers of a section: what a hover names, for `stepscope query RUN "…"`. `{run}` is the run."""

from __future__ import annotations

import textwrap

_STATEMENTS = {
    "devices": "SELECT rank, device, window_end_ns - window_start_ns AS window_ns, busy_ns, idle_ns, unrecorded_ns FROM devices "
    "WHERE run_id = {run}",
    "budget": "SELECT bound, sum(prefill_ns) AS prefill_ns, sum(decode_ns) AS decode_ns, sum(busy_ns) AS busy_ns FROM kernels "
    "WHERE run_id = {run} AND valid GROUP BY bound",
    "idle": "SELECT cause, count(*) AS pieces, sum(dur_ns) AS ns, quantile_cont(dur_ns, [0.5, 0.99]) AS p50_p99, max(dur_ns) "
    "FROM gaps WHERE run_id = {run} GROUP BY cause",
    "idle_sizes": "SELECT greatest(length(dur_ns::VARCHAR), 3) AS digits, count(*) AS pieces, sum(dur_ns) AS ns FROM gaps "
    "WHERE run_id = {run} AND cause IS DISTINCT FROM 'unrecorded' GROUP BY digits ORDER BY digits",
    "gaps": "SELECT * FROM gaps WHERE run_id = {run} ORDER BY dur_ns DESC",
    "categories": "SELECT category, count(*) AS activities, sum(busy_ns) AS busy_ns FROM kernels WHERE run_id = {run} AND valid "
    "GROUP BY category",
    "kernels": "SELECT name, category, count(*) AS activities, sum(busy_ns) AS busy_ns, sum(flops) AS flops, sum(bytes) AS bytes "
    "FROM kernels WHERE run_id = {run} AND valid GROUP BY name, category",
    "kernels_phases": "SELECT sum(prefill_ns) AS prefill_ns, sum(decode_ns) AS decode_ns, sum(busy_ns) AS busy_ns, "
    "sum(prefill_ns) FILTER (WHERE flops IS NOT NULL) AS prefill_costed_ns, sum(decode_ns) FILTER (WHERE flops IS NOT NULL) AS "
    "decode_costed_ns, sum(flops) AS flops, sum(bytes) AS bytes FROM kernels WHERE run_id = {run} AND valid",
    "step_kinds": "SELECT kind, count(*) AS steps, sum(prefill_tokens), sum(decode_tokens), sum(busy_ns), sum(prefill_ns), "
    "sum(decode_ns) FROM steps WHERE run_id = {run} GROUP BY kind",
    "steps": "SELECT * FROM steps WHERE run_id = {run} ORDER BY rank, seq",
    "phases": "SELECT sum(prefill_ns), sum(prefill_tokens), sum(decode_ns), sum(decode_tokens) FROM steps WHERE run_id = {run}",
    "ledger": "SELECT pass, seq, sched_start_ns, result_end_ns, total_tokens, running, waiting, kv_usage FROM ledger_steps "
    "WHERE run_id = {run}",
    "requests": "SELECT * FROM requests WHERE run_id = {run} ORDER BY arrival_ns",
    "latency": "SELECT pass, count(first_token_ns) AS n, quantile_cont(first_token_ns - arrival_ns, [0.5, 0.9, 0.99]) AS ttft_ns, "
    "quantile_cont(CASE WHEN output_tokens > 1 THEN (last_token_ns - first_token_ns) / (output_tokens - 1) END, [0.5, 0.9, 0.99]) AS "
    "tpot_ns, quantile_cont(queue_ns, [0.5, 0.9, 0.99]) AS queue_ns, quantile_cont(last_token_ns - arrival_ns, [0.5, 0.9, 0.99]) AS "
    "e2e_ns FROM requests WHERE run_id = {run} AND status = 'ok' GROUP BY pass",
    "growth": "SELECT turn, count(*) AS n, median(prompt_tokens) AS prompt_tokens, median(first_token_ns - arrival_ns) AS ttft_ns, "
    "median(prefill_device_ns) AS prefill_device_ns FROM requests WHERE run_id = {run} GROUP BY pass, turn ORDER BY pass, turn",
    "tokens": "SELECT * FROM tokens WHERE run_id = {run} ORDER BY request_id, i",
    "reuse": "SELECT piece, cause, sum(tokens) AS tokens, sum(device_ns) AS device_ns FROM reuse WHERE run_id = {run} "
    "GROUP BY piece, cause",
    "turns": "SELECT q.session_id, q.turn, r.piece, sum(r.tokens) AS tokens FROM reuse AS r JOIN requests AS q USING (run_id, request_id) "
    "WHERE run_id = {run} GROUP BY ALL",
    "telemetry": "SELECT rank, device, ts_ns, power_w, energy_j FROM telemetry WHERE run_id = {run} ORDER BY ts_ns",
    "execution_idle": "SELECT * FROM execution_idle WHERE run_id = {run}",
    "findings": "SELECT * FROM findings WHERE run_id = {run} ORDER BY place",
    "health": "SELECT * FROM health WHERE run_id = {run}",
    "sources": "SELECT * FROM sources WHERE run_id = {run}",
    "run": "SELECT * FROM runs WHERE run_id = {run}",
}


def sql_of(name: str, run_id: str) -> str:
    """The statement, for this run."""
    quoted = run_id.replace("'", "''")
    return _STATEMENTS[name].replace("{run}", f"'{quoted}'")


def hover_sql(name: str, run_id: str) -> str:
    """The statement as the last lines of a hover."""
    from analyzers.report.page_html import plain

    lines = textwrap.wrap(plain(sql_of(name, run_id), 900).replace("%{", "%\u200b{"), 84)
    return f"<br><span style='font-size:10px'>SQL: {'<br>'.join(lines)}</span><extra></extra>"


def statement_names() -> list[str]:
    """All of them."""
    return list(_STATEMENTS)
