"""Findings of prompts: prefill on the computing side of the roofline, prompts that are most of the work or delay decoding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from analyzers.finding import Finding, Gain, Proof
from analyzers.finding_basis import Basis, Served, counted, finding, gain_between, waits_enough
from analyzers.finding_limits import (
    FEWER_PROMPT_TOKENS,
    FIXED_INTERFERENCE,
    LEAST_CHUNK_TOKENS,
    LEAST_INTERFERENCE,
    LEAST_PHASE,
)
from analyzers.finding_model import fp8_speedup
from traces.rows import first_row

_PHASES = ("steps.busy_ns", "steps.kind", "steps.prefill_ns", "devices.busy_ns", "kernels")
_KERNELS = (
    "SELECT k.category, k.side, k.bound, count(*) AS kernels, sum(k.prefill_ns)::BIGINT AS explained_ns FROM kernels AS k JOIN steps AS s "
    "ON s.run_id = k.run_id AND s.step_id = k.step_id WHERE k.run_id = $run_id AND k.valid AND k.prefill_ns > 0 "
    "AND s.trusted IS NOT false{where} GROUP BY ALL ORDER BY explained_ns DESC"
)
# Matrix products in 16 bits on the computing side, as sql/finding_prefill.sql has them.
_PRODUCTS = (
    " AND k.side = 'compute' AND k.category IN ('gemm', 'moe') AND NOT coalesce(k.impossible, false) AND k.roof_fraction IS NOT NULL "
    "AND (k.dtype IS NULL OR regexp_matches(lower(k.dtype), 'bf16|bfloat16|fp16|float16|half'))"
)
_MIXED = (
    "SELECT step_id, prefill_tokens, decode_reqs, busy_ns, interference_ns AS explained_ns, prefill_ns, split_low_ns, split_high_ns "
    "FROM steps WHERE run_id = $run_id AND kind = 'mixed' AND trusted IS NOT false AND busy_ns > 0 AND interference_ns > 0 "
    "AND decode_reqs > 0 AND prefill_tokens > 0 ORDER BY explained_ns DESC"
)


def of_prefill(run: Basis, known: Served | None) -> Iterator[Finding]:
    """From the recording nothing where the phases of the steps are withheld."""
    yield from _prompts(run, known)
    if run.trusts(*_PHASES):
        yield from _fp8(run)
        yield from _interference(run)


def _prompts(run: Basis, known: Served | None) -> Iterator[Finding]:
    """What a tenth fewer prompt tokens would save: by the law of the ledger's steps, else by the recorded kernels."""
    by_ledger = None if known is None else _prompts_by_ledger(run, known)
    title, fix = "prompts take most of the time", (
        "shorter prompts (fewer tools and documents, shorter histories), or prompts that share what comes first, so that the "
        "prefix cache has it (vLLM: --enable-prefix-caching; SGLang: no --disable-radix-cache)"
    )  # fmt: skip
    if by_ledger is not None:
        gain, total_ns, cause, proof = by_ledger
        evidence = (
            "SELECT pid, seq, engine_request_id, new_tokens, computed_before, prompt_tokens FROM ledger_rows "
            "WHERE run_id = $run_id AND computed_before < prompt_tokens ORDER BY new_tokens DESC"
        )
        yield finding(
            run, "prefill.prompts", title, cause, fix, evidence, gain=gain, whole_ns=total_ns, proof=proof
        )  # fmt: skip
        return
    if not run.trusts(*_PHASES) or run.work_ns <= 0:
        return
    row = run.rows("finding_prefill").row(0, named=True)
    share = row["prefill_ns"] / run.work_ns
    if share < LEAST_PHASE or row["compute_ns"] < row["prefill_ns"] / 2:
        return
    few, squared = FEWER_PROMPT_TOKENS, FEWER_PROMPT_TOKENS * (1 - FEWER_PROMPT_TOKENS)
    attention, computing = row["attention_ns"] / run.work_ns, row["compute_ns"] / run.work_ns
    yield finding(
        run, "prefill.prompts", title,
        f"prefill takes {share:.0%} of the step time, and {row['compute_ns'] / row['prefill_ns']:.0%} of it lies on the computing side of "
        f"the roofline: it grows with every token. The gain is that of {few:.0%} fewer prompt tokens",
        fix, _KERNELS.format(where=""),
        gain=gain_between(
            few * computing, few * share + squared * attention / 2, few * share + squared * attention, run.work_is
        ),
        whole_ns=run.work_ns, device_ns=row["prefill_ns"],
    )  # fmt: skip


def _prompts_by_ledger(run: Basis, known: Served) -> tuple[Gain, int, str, Proof | None] | None:
    """The gain, the step time, the cause and the proof; None where prompts are not most of the work."""
    tokens, pairs = known.whole[1], known.whole[2]
    share, _ = known.law.share(np.array([0.0, tokens, pairs, 0.0, 0.0]), known.whole)
    few = FEWER_PROMPT_TOKENS
    # Every token its price (and requests that are served sooner overlap less), to all of it growing with the square of the
    # prompt and every step's base with it: prompts of one length do not tell these apart.
    squared = few * (2 - few)
    shares = ((few, few), (few, squared), (squared, squared))
    less = [np.array([0.0, once * tokens, twice * pairs, 0.0, 0.0]) for once, twice in shares]
    less[0][0] = -known.fewer_overlap(known.law.share(less[0], known.whole)[0])
    less[2][0] = few * known.steps.height
    gain = known.gain(*less)
    if share < LEAST_PHASE or gain is None:
        return None
    length = run.option("batch", "prompt")
    changed = run.with_option("batch", "prompt", str(max(1, round(length * (1 - few))))) if length else None
    cause = (
        f"{int(tokens):,} prompt tokens take {share:.0%} of the step time, each its price. The gain is that of {few:.0%} fewer "
        "prompt tokens"
    )
    return gain, known.total_ns, cause, run.proof(workload=changed) if changed else None


def _fp8(run: Basis) -> Iterator[Finding]:
    """Products in 16 bits on the computing side, on a device that multiplies faster in fp8: their roof falls; the rest may stay."""
    row = run.rows("finding_prefill").row(0, named=True)
    known = first_row(run.con.execute(
        "SELECT name, peak_source FROM devices WHERE run_id = ? ORDER BY rank, device", [run.run_id]
    ))  # fmt: skip
    if known is None or known[1] is None or run.work_ns <= 0 or row["prefill_ns"] < LEAST_PHASE * run.work_ns:
        return
    config = run.config.get("model_config")
    dtype = (config.get("dtype") or config.get("torch_dtype") or "bfloat16") if isinstance(config, dict) else "bfloat16"
    faster = fp8_speedup(known[0], dtype if isinstance(dtype, str) else None)
    if faster is None or run.is_quantized or not run.trusts("kernels.flops"):
        return
    low, high = ((1 - 1 / faster) * row[name] / run.work_ns for name in ("roof_ns", "products_ns"))
    if low <= 0:
        return
    yield finding(
        run, "prefill.fp8", "prefill multiplies in 16 bits on the computing side of the roofline",
        f"{row['products_ns'] / row['prefill_ns']:.0%} of prefill are matrix products in 16 bits on the computing side, at "
        f"{row['roof_ns'] / row['products_ns']:.0%} of their roof; by its datasheet this device multiplies {faster:.1f} times as fast in "
        "fp8. The interval: from what is beyond the roof staying as it is, to fp8 reaching as much of its roof",
        "products in fp8 (vLLM and SGLang: --quantization fp8, or an fp8 checkpoint); check the answers' quality",
        _KERNELS.format(where=_PRODUCTS),
        gain=gain_between(low, (low + high) / 2, high, run.work_is), whole_ns=run.work_ns, device_ns=row["products_ns"],
        proof=run.proof("quantization=fp8") if run.on_gpu else None,
    )  # fmt: skip


def _interference(run: Basis) -> Iterator[Finding]:
    """Chunks so small that decoding waits at most twice as long; some of the delay may stay, or none if prefill moves away."""
    row = run.rows("finding_interference").row(0, named=True)
    if not row["steps"] or row["waited_ns"] <= 0 or not row["chunk_tokens"] or row["delay_ns"] <= 0:
        return
    delayed = row["delay_ns"] / row["waited_ns"]
    if (
        not waits_enough(row["device_ns"], run.work_ns)
        or delayed < LEAST_INTERFERENCE
        or row["step_ns"] < 2 * row["alone_ns"]
    ):
        return
    fitting = row["chunk_tokens"] * row["alone_ns"] / max(row["step_ns"] - row["alone_ns"], 1.0)
    chunk = max(LEAST_CHUNK_TOKENS, 1 << max(0, int(fitting).bit_length() - 1))
    away = 1 - chunk / row["chunk_tokens"]
    if away <= 0:
        return
    gain = gain_between(delayed * away * (1 - FIXED_INTERFERENCE), delayed * away, delayed, "token_intervals")
    slower = row["step_ns"] / row["alone_ns"] if row["alone_ns"] > 0 else 0.0
    yield finding(
        run, "prefill.interference", "long prefills delay the requests that decode",
        f"in {counted(row['steps'], 'step')} {row['chunk_tokens']:,.0f} prompt tokens on average ride along, and {row['reqs']:,.0f} tokens "
        f"of others come {slower:.1f} times as late. Smaller chunks add steps: the prompts themselves take longer",
        f"smaller chunks (vLLM: --max-num-batched-tokens {chunk}; SGLang: --chunked-prefill-size {chunk}), or prefill on other "
        "replicas (disaggregated). Compare with `stepscope compare`: tokens come sooner, the step time does not fall",
        _MIXED, gain=gain, whole_ns=row["device_ns"], device_ns=row["device_ns"],
    )  # fmt: skip
