"""Definitions behind the numbers of a comparison's page, and what this comparison was judged by."""

from __future__ import annotations

from analyzers.compare import Comparison
from analyzers.report.page_html import bullets, paragraph, section, text
from analyzers.report.page_terms import TERMS
from analyzers.report.text import percent

COMPARE_TERMS: dict[str, str] = {
    "change": (
        "What the candidate has more (+) or less (-) than the base, in percent of the base; of shares the difference, in "
        "percentage points (pp). The mean of several passes is geometric."
    ),
    "interval (from, to)": (
        "What the change may really be, by the noise of the samples and of the machine. It is wide enough for all numbers of "
        "the comparison together (Benjamini and Yekutieli 2005), so it is wider than that of one number alone."
    ),
    "worse, better": (
        "The interval leaves zero out. Where nothing differs the chance of any verdict in the comparison is one minus its "
        "confidence; of the verdicts given no larger a share is expected to be false."
    ),
    "no difference": "The interval holds zero. That is not that there is no difference: it may be as large as the interval is wide.",
    "changed": "The interval leaves zero out, and neither direction is better by itself.",
    "not judged": "Withheld, with the reason: health does not vouch for it, one side lacks it, or too few samples tell its noise.",
    "gate": (
        "Trips where a number of latency, throughput, steps or phases is worse by more than the threshold at the near end of its "
        "interval."
    ),
    "drift": (
        "What is allowed for a change of the machine between passes that were not taken in turns. It is an allowance and no "
        "estimate: a larger drift is not covered. Passes in turns, A B A B, need none."
    ),
    "n": "Requests, tokens, steps or intervals that a side's number is of.",
    "sessions, requests, blocks; paired": (
        "What was drawn again to tell the noise within a pass (bootstrap); together on both sides where they are the same ones (paired)."
    ),
    "steps of like size": (
        "A step is held against steps of its kind, with as many decoding requests, prefill tokens and context. The share of the time "
        "that has such a partner is given as matched; below 25 % there is no verdict."
    ),
    "per output token, per accepted token": "Decode time over the tokens that stayed, so that runs with and without speculation compare.",
    "kernels": (
        "Matched by name; what is left by category and launching operator, then by category. Times are per step of like size."
    ),
}  # fmt: skip
_SHARED = ("TTFT", "TPOT", "ITL", "percentiles", "prefill, decode", "idle, cause", "cached, fresh, re-sent, lost")


def terms_section(result: Comparison) -> str:
    """Definitions, after what each candidate was judged by."""
    lines = [
        f"{pair.cand}: {pair.judged} numbers judged, confidence {100 * pair.confidence:.4g} % for all of them together; times are given "
        f"{percent(pair.drift, 0)} for drift{', except where passes were taken in turns' if pair.in_turns else ''}."
        for pair in result.pairs
    ]
    terms = {
        **COMPARE_TERMS,
        "E2E": "Last token minus request sent, at the client.",
        **{name: TERMS[name] for name in _SHARED},
    }
    meanings = "".join(f"<dt>{text(term)}</dt><dd>{text(meaning, 2000)}</dd>" for term, meaning in terms.items())
    how = paragraph(
        "The numbers are those of `stepscope compare --json`; the exact value of a number shows when it is pointed at "
        "(times in ns, changes as shares of 1)."
    )
    return section("methods", "What the numbers mean", f"{how}{bullets(lines)}<dl>{meanings}</dl>")
