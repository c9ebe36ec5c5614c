"""Findings of decode on the memory side of the roofline, or too small for the device: a larger batch, fewer bits, speculation.

A step is slowed by what it reads once for all requests. Where there is a step ledger its own law says what a step costs
whatever it does; else the cost model does, from the recording. The side says which roof is lower, not that a step is near
it: what a step takes beyond its roof (the rest) is in every interval, growing with the work or staying as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from analyzers.finding import Finding, Gain, Severity
from analyzers.finding_basis import Basis, Served, counted, finding, gain_between
from analyzers.finding_limits import ACCEPTED, DRAFTED, LEAST_LARGER_BATCH
from analyzers.finding_model import Decode, Priced, decode_of, is_possible, priced

_EVIDENCE = (
    "SELECT step_id, decode_reqs, decode_kv_tokens, busy_ns AS explained_ns, memory_ns, latency_ns, inefficient_ns, roof_fraction "
    "FROM steps WHERE run_id = $run_id AND kind = 'decode' AND trusted IS NOT false AND busy_ns > 0 AND decode_reqs > 0 "
    "AND decode_tokens = decode_reqs AND coalesce(side, 'memory') = 'memory' ORDER BY explained_ns DESC"
)
_DECODE_ONLY = (
    "SELECT s.pid, s.seq, s.total_tokens, s.running, s.waiting, s.result_start_ns - s.sched_end_ns AS step_ns FROM ledger_steps AS s "
    "WHERE s.run_id = $run_id AND s.result_start_ns >= s.sched_end_ns AND s.total_tokens > 0 AND NOT EXISTS (SELECT 1 FROM ledger_rows "
    "AS r WHERE r.run_id = s.run_id AND r.pid = s.pid AND r.seq = s.seq AND r.output_before = 0) ORDER BY s.pid, s.seq"
)
_SPECULATION = 'speculative-config={"method": "ngram", "num_speculative_tokens": %d, "prompt_lookup_max": 3, "prompt_lookup_min": 1}'
_LARGER = (
    "more requests at once: fewer replicas, more clients or sessions per replica (--max-num-seqs; SGLang: --max-running-requests), "
    "fewer tensor-parallel ranks; each request's tokens then come a little later"
)

_FP8_WEIGHTS = "weights in 8 bits or fewer (vLLM and SGLang: --quantization fp8, or a quantized checkpoint); check the answers' quality"
_FP8_CACHE = (
    "a cache in 8 bits (vLLM: --kv-cache-dtype fp8; SGLang: --kv-cache-dtype fp8_e5m2), which also holds twice as much; check the "
    "answers' quality"
)


def of_decode(run: Basis, known: Served | None) -> Iterator[Finding]:
    """Nothing where decode steps lie on the computing side, or where neither ledger nor cost model can price them."""
    decode, model = decode_of(run), priced(run)
    ledger = [] if known is None else list(_larger_by_ledger(run, known))
    yield from ledger
    if decode is None or model is None or run.work_ns <= 0:
        return
    roof_ns = model.decode_ns(decode.batch, decode.context)
    if not is_possible(decode.step_ns, roof_ns):
        return
    if not ledger:
        yield from _larger_by_model(run, decode, model, roof_ns)
    yield from _fewer_bits(run, decode, model, roof_ns)
    yield from _speculation(run, decode, model, roof_ns)


def _larger_by_ledger(run: Basis, known: Served) -> Iterator[Finding]:
    """Twice as many requests in half as many decode steps: half of the bases of steps that only decode goes away."""
    steps = known.steps.filter((pl.col("decode_tokens") > 0) & (pl.col("prefill_tokens") == 0))
    waiting = steps["waiting"].fill_null(0).max()
    seats = run.number("max_num_seqs")
    running = float(steps.select(pl.col("decode_tokens").mean()).item() or 0)
    if not steps.height or waiting or (seats and 2 * running > seats):
        return  # what limits the batch then is a finding of its own
    # between two thirds of them, since the last are not shared, and half of all steps, prompts sharing theirs too
    counts = (steps.height / 3, 0.45 * steps.height, known.steps.height / 2)
    gain = known.gain(*(np.array([count, 0.0, 0.0, 0.0, 0.0]) for count in counts))
    if gain is None or gain.value < LEAST_LARGER_BATCH:
        return
    yield finding(
        run, "decode.small-batch", "decode serves few requests at once",
        f"{steps.height} steps decode {running:.1f} requests on average, and each pays what a step costs whatever it does; twice "
        "as many would share it", _LARGER,
        _DECODE_ONLY,
        gain=gain, whole_ns=known.total_ns,
    )  # fmt: skip


def _larger_by_model(run: Basis, decode: Decode, model: Priced, roof_ns: float) -> Iterator[Finding]:
    """Per token, with twice the batch: r + e becomes r' + e to r' + 2e, where r is the roof's time and e the rest."""
    twice = model.decode_ns(2 * decode.batch, decode.context)
    step, rest = decode.step_ns, max(decode.step_ns - roof_ns, 0.0)
    low, high = (2 * roof_ns - twice) / (2 * step), (2 * roof_ns - twice + rest) / (2 * step)
    gain = _of_decode(run, decode, low, 1 - twice / (2 * roof_ns), high)
    if gain is None or gain.value < LEAST_LARGER_BATCH:
        return
    small = decode.latency_share >= 0.5
    yield finding(
        run, "decode.small-batch", "decode is bound by latency: its kernels are too small" if small
        else "few requests share what decode reads",
        f"{decode.batch} requests on average decode at {decode.context:,} tokens in {counted(decode.steps, 'step')}, "
        f"{_reached(decode, roof_ns)}; at the roof twice as many would take {twice / roof_ns:.2f} times as long. Assumed: that they reach "
        "as much of it; the interval: from what is beyond the roof growing with the batch, to it staying as it is",
        _LARGER, _EVIDENCE, gain=gain, whole_ns=run.work_ns, device_ns=decode.total_ns,
    )  # fmt: skip


def _fewer_bits(run: Basis, decode: Decode, model: Priced, roof_ns: float) -> Iterator[Finding]:
    """Weights or cache in fp8. The rest stays, or shrinks in proportion."""
    for finding_id, what, changed, fix, argument in (
        ("decode.fp8-weights", "weights", model.with_fp8_weights(), _FP8_WEIGHTS, "quantization=fp8"),
        ("decode.fp8-cache", "KV cache", model.with_fp8_cache(), _FP8_CACHE,
         "kv-cache-dtype=fp8" if run.engine == "vllm" else "kv-cache-dtype=fp8_e5m2"),
    ):  # fmt: skip
        less = roof_ns - changed.decode_ns(decode.batch, decode.context)
        low, high = less / decode.step_ns, less / roof_ns
        gain = _of_decode(run, decode, low, (low + high) / 2, high)
        known = model.fp8_speedup is not None and not (what == "weights" and run.is_quantized)
        if gain is None or low <= 0 or not known:
            continue
        yield finding(
            run, finding_id, f"decode reads a {what} that could be half as large" if what == "KV cache"
            else f"decode reads {what} that could be half as large",
            f"{less / roof_ns:.0%} of what {counted(decode.steps, 'decode step')} would take at the roof ({decode.batch} requests at "
            f"{decode.context:,} tokens) is for bytes of the {what} that fp8 does not have; they run {_reached(decode, roof_ns)}. The "
            "interval: from what is beyond the roof staying as it is, to it shrinking as much",
            fix, _EVIDENCE, gain=gain, whole_ns=run.work_ns, device_ns=decode.total_ns,
            proof=run.proof(argument) if run.on_gpu else None,
        )  # fmt: skip


def _speculation(run: Basis, decode: Decode, model: Priced, roof_ns: float) -> Iterator[Finding]:
    """Drafts checked in one step: the roof's time grows by theirs, and the rest with the tokens (at the lower end), as much
    as the roof's time, or not at all (at the upper end); and over what is accepted. So nothing is promised where the rest is
    most of a step: nobody knows that it would not grow."""
    if run.given("speculative-config", "speculative-algorithm") or decode.latency_share >= 1:
        return
    # a request's cache is read once for all its tokens of a step
    checked_ns = model.decode_ns((1 + DRAFTED) * decode.batch, max(1, decode.context // (1 + DRAFTED)))
    more_ns, rest_ns = max(checked_ns - roof_ns, 0.0), max(decode.step_ns - roof_ns, 0.0)
    longer = ((more_ns + DRAFTED * rest_ns) / decode.step_ns, more_ns / roof_ns, more_ns / decode.step_ns)
    low, value, high = (
        1 - (1 + more) / accepted_tokens(share, DRAFTED) for share, more in zip(ACCEPTED, longer, strict=True)
    )
    gain = _of_decode(run, decode, low, value, high)
    if gain is None or low <= 0:
        return
    yield finding(
        run, "decode.speculation", "drafted tokens could be checked while decode reads its weights",
        f"decode lies on the memory side, {_reached(decode, roof_ns)}: checking {DRAFTED} drafted tokens for each of {decode.batch} "
        f"requests makes a step {longer[2]:.0%} to {longer[0]:.0%} longer. The gain holds if {ACCEPTED[0]:.0%} to {ACCEPTED[-1]:.0%} of "
        "them are accepted, which only a run can tell: so it is never more than a warning",
        "speculative decoding (vLLM: --speculative-config with ngram, EAGLE or a draft model; SGLang: --speculative-algorithm)",
        _EVIDENCE, gain=gain, whole_ns=run.work_ns, device_ns=decode.total_ns, severity=Severity.WARNING,
        proof=run.proof(_SPECULATION % DRAFTED) if run.engine == "vllm" else None,
    )  # fmt: skip


def _reached(decode: Decode, roof_ns: float) -> str:
    """How near the steps are to their roof."""
    return f"at {roof_ns / decode.step_ns:.0%} of their roof"


def accepted_tokens(share: float, drafted: int) -> float:
    """Tokens that a step gives where each drafted one is accepted with probability `share` if those before it were."""
    return float(sum(share**number for number in range(drafted + 1)))


def _of_decode(run: Basis, decode: Decode, low: float, value: float, high: float) -> Gain | None:
    """A gain of decode steps as one of the step time; None where its low end is nothing."""
    part = decode.total_ns / run.work_ns
    return gain_between(part * low, part * value, part * high, run.work_is) if low > 0 else None
