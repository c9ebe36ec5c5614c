"""Definitions behind every number of a page: term → meaning."""

from __future__ import annotations

TERMS: dict[str, str] = {
    "window": (
        "From the first recorded activity to the last one's end; of own captures, the capture window. Window = "
        "busy + idle + not recorded, to the nanosecond."
    ),
    "busy": (
        "Time in which at least one activity (kernel, copy, memset; on a CPU engine: an operator on the compute "
        "thread) ran on the device. Overlap of streams counts once."
    ),
    "not recorded": (
        "Time the recording cannot speak for: dropped records, graph launches without kernels, waits for work "
        "outside the recording. It is not idle."
    ),
    "idle, cause": (
        "A gap between activities is cut where its cause changes. Decided in this order: no request in the "
        "engine; launched but not begun; launched late, by what the launching thread did meanwhile."
    ),
    "step": (
        "One iteration of the engine's scheduler. An activity belongs to the step that launched it, not to the "
        "one it ran in."
    ),
    "prefill, decode": (
        "Prefill computes prompt tokens (recomputation after a preemption included), decode new tokens "
        "(verification of drafted tokens included). In a mixed step each side gets the mean of what it costs "
        "alone and what it adds (Shapley), scaled to the measured time; the interval comes from decode-only steps "
        "of like size where there are some."
    ),
    "interference": "How much longer a mixed step took than its decoding requests would have needed without the prefill.",
    "FLOP, bytes": (
        "By cost model from recorded operand shapes, else a graph capture, else the model's configuration; "
        "unknown stays unknown. MoE counts the experts to expect under uniform routing unless routing was "
        "recorded."
    ),
    "intensity, ridge, side": (
        "Intensity = FLOP / byte. Ridge = peak FLOP/s / peak bytes/s. Side is compute at or above the ridge, "
        "memory below."
    ),
    "of the roof": (
        "The time that the roof allows (the larger of FLOP / peak and bytes / bandwidth) over the measured time. "
        "Above 105 % is impossible: an input is wrong, and no bound is given."
    ),
    "bound": (
        "The side from 50 % of the roof on; below that latency where it took at most 3 times an empty kernel's "
        "time, else inefficient; comm for collectives."
    ),
    "MFU, MBU": (
        "FLOP (bytes) over what the peak allows in the phase's device time; over its wall time in the columns named so."
    ),
    "TTFT": "First streamed token minus request sent, at the client.",
    "TPOT": "(Last token minus first token) / (output tokens - 1).",
    "ITL": (
        "Differences of consecutive token times. At the client in the latency table; by the engine's step ledger "
        "where it is told apart with and without a prefill."
    ),
    "queue": "First scheduled minus arrival in the engine.",
    "percentiles": "By linear interpolation, with n. Of few requests p99 is little more than the largest.",
    "cached, fresh, re-sent, lost": (
        "Pieces of a prompt, which sum to it. Cached: the engine's own count. Fresh: not computed before. "
        "Re-sent: the model's own output coming back as input. Lost: computed before and computed again."
    ),
    "hit ratio": "Cached prompt tokens / prompt tokens.",
    "energy": (
        "The sensor's energy counter where there is one, else power over time. Steps and phases get it by overlap "
        "in time."
    ),
    "execution-idle": (
        "Whole seconds in which a program was resident and every activity signal below 5 %, every link below 1 "
        "GB/s. It differs from idle by kernels by construction; both are given."
    ),
    "predicted gain": (
        "The share of time (or energy) that would go away with the cause, by the cost model; a finding is shown "
        "only where its interval leaves zero out."
    ),
    "n": "The number of steps, activities, requests or intervals a number is of.",
}
