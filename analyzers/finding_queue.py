"""Findings from the step ledger: requests that wait for a seat or for cache, preemption, prompts cut into small chunks.

Each is priced by the law of the run's own steps (analyzers/step_law.py), so none needs a model or peaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import polars as pl

from analyzers.finding import Finding, Proof
from analyzers.finding_basis import Basis, Served, finding
from analyzers.finding_limits import FULL_CACHE, MOST_CHUNK_TOKENS, MOST_SEATS
from analyzers.step_law import Floats

_MORE_CACHE = (
    "more room for the cache (vLLM: --gpu-memory-utilization, --kv-cache-dtype fp8, --num-gpu-blocks-override where it is set; "
    "SGLang: --mem-fraction-static, --kv-cache-dtype fp8_e5m2), weights in fewer bits, or fewer requests per replica"
)
_STEPS = (
    "SELECT pid, seq, sched_end_ns, result_start_ns, total_tokens, running, waiting, kv_usage FROM ledger_steps "
    "WHERE run_id = $run_id AND {where} ORDER BY pid, seq"
)
# What was resumed, of the whole run, and the device time of what was computed again, of the recorded window.
_PREEMPTED = (
    "SELECT request_id, l.resumed, l.longest_context, d.explained_ns FROM (SELECT engine_request_id AS request_id, count(*) AS resumed, "
    "max(prompt_tokens + output_before) AS longest_context FROM ledger_rows WHERE run_id = $run_id AND is_resumed GROUP BY ALL) AS l "
    "FULL JOIN (SELECT request_id, sum(device_ns)::BIGINT AS explained_ns FROM step_requests WHERE run_id = $run_id "
    "AND phase = 'recompute' GROUP BY ALL) AS d USING (request_id) ORDER BY d.explained_ns DESC NULLS LAST, request_id"
)
# One more request as large as those that run would not fit.
_IS_FULL = (pl.col("running") > 0) & (pl.col("kv_usage") * (1 + 1 / pl.col("running")) >= FULL_CACHE)
_NO_STEPS = np.zeros(5)


def of_queue(run: Basis, known: Served) -> Iterator[Finding]:
    """Seats, cache, chunks."""
    yield from _seats(run, known)
    yield from _cache(run, known)
    yield from _chunks(run, known)


def _seats(run: Basis, known: Served) -> Iterator[Finding]:
    """Requests wait because all seats are taken, although cache and token budget have room."""
    seats = run.number("max_num_seqs")
    if seats is None:
        return
    full = (pl.col("running") >= seats) & (pl.col("waiting") > 0) & ~_IS_FULL
    steps = known.steps.filter(full & (pl.col("decode_tokens") > 0) & _has_budget(run))
    wanted = _power_of_two(int(_over(steps, (pl.col("running") + pl.col("waiting")).max())))
    wanted = min(wanted, MOST_SEATS * seats)
    if not steps.height or wanted <= seats:
        return
    gain = known.gain(*_more_at_once(run, known, steps, wanted))
    yield finding(
        run, "queue.seats", "requests wait for a seat",
        f"in {steps.height} steps all {seats} seats are taken and {_over(steps, pl.col('waiting').mean()):.0f} requests wait, "
        f"while {1 - _over(steps, pl.col('kv_usage').max()):.0%} of the cache stay free",
        f"more seats (vLLM: --max-num-seqs {wanted}; SGLang: --max-running-requests {wanted})",
        _STEPS.format(where=f"running >= {seats} AND waiting > 0 AND kv_usage * (1 + 1 / running) < {FULL_CACHE}"),
        gain=gain, whole_ns=known.total_ns, proof=run.proof(f"max-num-seqs={wanted}") if run.engine == "vllm" else None,
    )  # fmt: skip


def _cache(run: Basis, known: Served) -> Iterator[Finding]:
    """The cache is full: requests wait for it, or are preempted and computed again."""
    again = run.rows("finding_preempted", **{"pass": known.name}).join(
        known.steps.select("pid", "seq"), on=["pid", "seq"], how="semi"
    )
    full = _IS_FULL & (pl.col("waiting") > 0) & (pl.col("running") < (run.number("max_num_seqs") or math.inf))
    steps = known.steps.filter(full & (pl.col("decode_tokens") > 0) & _has_budget(run))
    seats = MOST_SEATS * int(_over(steps, pl.col("running").max()))
    least, value, most = _more_at_once(run, known, steps, seats) if steps.height else (_NO_STEPS,) * 3
    proof = _more_blocks(run, known)
    if not again.height:
        if steps.height:
            yield finding(
                run, "kv.full", "requests wait for room in the KV cache",
                f"in {steps.height} steps {_over(steps, pl.col('kv_usage').mean()):.0%} of the cache are in use, one more request does "
                f"not fit, and {_over(steps, pl.col('waiting').mean()):.0f} requests wait", _MORE_CACHE,
                _STEPS.format(where=f"running > 0 AND waiting > 0 AND kv_usage * (1 + 1 / running) >= {FULL_CACHE}"),
                gain=known.gain(least, value, most), whole_ns=known.total_ns, proof=proof,
            )  # fmt: skip
        return
    tokens, pairs, alone = (float(again[name].sum()) for name in ("tokens", "pairs", "alone"))
    paid = np.array([0.0, tokens, pairs, 0.0, 0.0])
    only, share = _steps(alone), known.law.share(paid, known.whole)[0]
    apart = _steps(known.fewer_overlap(share))
    yield finding(
        run, "kv.preemption", "requests are preempted and computed again",
        f"the KV cache is full: {again['request_id'].n_unique()} requests lost their cache and computed {int(tokens):,} tokens again",
        _MORE_CACHE,
        _PREEMPTED,
        gain=known.gain(paid - apart, paid + only + value, paid + only + most), whole_ns=known.total_ns, proof=proof,
        device_ns=_recomputed_ns(run),
    )  # fmt: skip


def _chunks(run: Basis, known: Served) -> Iterator[Finding]:
    """Prompts fill the token budget step after step, with nothing that decodes: fewer, larger chunks pay fewer bases."""
    budget = run.number("max_num_batched_tokens")
    if budget is None:
        return
    full = known.steps.filter(pl.col("total_tokens") >= budget)
    steps = full.filter(pl.col("decode_tokens") == 0)
    row = run.rows("finding_prompts", **{"pass": known.name}).row(0, named=True)
    larger = min(
        _power_of_two(row["longest"] or 0), MOST_CHUNK_TOKENS, run.number("max_model_len") or MOST_CHUNK_TOKENS
    )
    if not steps.height or larger < 2 * budget:
        return
    # decoding needs its steps all the same; but where prompts are through sooner, more decode at once
    gain = known.gain(_steps(steps.height / 2), _steps(steps.height * (1 - budget / larger)), _steps(full.height))
    yield finding(
        run, "prefill.small-chunks", "prompts are cut into small chunks",
        f"{steps.height} steps do nothing but {budget:,} tokens of prompts of up to {row['longest']:,} tokens, and each pays "
        "what a step costs whatever it does",
        f"larger chunks (vLLM: --max-num-batched-tokens {larger}; SGLang: --chunked-prefill-size {larger}); requests that decode "
        "meanwhile wait longer for a token",
        _STEPS.format(where=f"total_tokens >= {budget}"), gain=gain, whole_ns=known.total_ns,
        proof=run.proof(f"max-num-batched-tokens={larger}") if run.engine == "vllm" else None,
    )  # fmt: skip


def _has_budget(run: Basis) -> pl.Expr:
    """Steps whose token budget is not used up: one more request would fit."""
    budget = run.number("max_num_batched_tokens")
    return pl.lit(value=True) if budget is None else pl.col("total_tokens") < budget


def _more_at_once(run: Basis, known: Served, steps: pl.DataFrame, seats: int) -> tuple[Floats, Floats, Floats]:
    """Steps that go away if up to `seats` of the requests that waited in `steps` had run: least, middle, most.

    Least: in each step those that waited join, as far as the cache reaches, but no more than come while one is served (what
    waited had piled up). Most: every decode step of the pass held as many as ever wanted to run, and prompts filled their
    chunks.
    """
    room = pl.when(pl.col("kv_usage") > 0).then(pl.col("running") / pl.col("kv_usage")).otherwise(float(seats))
    if steps.select(_IS_FULL.any()).item() is not False:
        room = pl.lit(float(seats))  # a cache that is full is what is enlarged
    joined = pl.min_horizontal(pl.col("running") + pl.col("waiting"), room, pl.lit(float(seats)))
    steady = pl.max_horizontal(pl.col("running"), pl.lit(_steady_batch(run, known, seats)))
    least = float(
        steps.select((1 - (pl.col("running") / pl.min_horizontal(joined, steady)).clip(0, 1)).sum()).item() or 0
    )
    wanted = _over(steps, joined.max())
    decoding = known.steps.filter(pl.col("decode_tokens") > 0)
    most = _over(decoding, (1 - (pl.col("decode_tokens") / max(wanted, 1.0)).clip(0, 1)).sum())
    prompts = known.steps.filter((pl.col("decode_tokens") == 0) & (pl.col("prefill_tokens") > 0))
    budget = run.number("max_num_batched_tokens")
    chunks = math.ceil(prompts["prefill_tokens"].sum() / budget) if budget else prompts.height
    whole = max(most, least) + max(0, prompts.height - chunks)
    return _steps(least), _steps((least + whole) / 2), _steps(whole)


def _steady_batch(run: Basis, known: Served, most: int) -> float:
    """Requests that decode at once where none waits (Little): those that come while one is served."""
    row = run.rows("finding_prompts", **{"pass": known.name}).row(0, named=True)
    if not row["span_ns"] or not row["output"] or row["prompts"] < 2:
        return float(most)  # all come at once
    per_ns = (row["prompts"] - 1) / row["span_ns"]
    decoded = max(float(known.whole[3]), 1.0)
    each_ns = float(known.law.prices[3] + known.law.prices[4] * known.whole[4] / decoded)
    prefill_ns = float(known.law.prices[1:3] @ known.whole[1:3]) / row["prompts"]
    left = 1 - per_ns * (row["output"] * each_ns + prefill_ns)
    return min(float(most), per_ns * row["output"] * known.bases[0] / left) if left > 0 else float(most)


def _steps(count: float) -> Floats:
    return np.array([count, 0.0, 0.0, 0.0, 0.0])


def _more_blocks(run: Basis, known: Served) -> Proof | None:
    """As many blocks as all sessions of the pass need at once, where the run limits them by hand."""
    block = run.number("block_size")
    if block is None or not run.given("num-gpu-blocks-override"):
        return None
    return run.proof(f"num-gpu-blocks-override={-(-known.need_tokens // block) + 1}")  # vLLM keeps one for itself


def _recomputed_ns(run: Basis) -> int | None:
    rows = run.con.execute(
        "SELECT sum(device_ns)::BIGINT FROM step_requests WHERE run_id = ? AND phase = 'recompute'", [run.run_id]
    ).fetchall()
    return rows[0][0] if rows else None


def _over(steps: pl.DataFrame, of: pl.Expr) -> float:
    """One number over all steps; 0 where none is known."""
    return float(steps.select(of).item() or 0)


def _power_of_two(tokens: int) -> int:
    """The smallest power of two that holds `tokens`."""
    return 1 << max(tokens - 1, 0).bit_length()
