"""The terminal form of `energy`, what the energy went to: phases, step kinds, tokens, requests, and what remedies would save."""

from __future__ import annotations

import textwrap

from analyzers.energy_reading import EnergyReport
from analyzers.report.text import DASH, count, duration, percent, ratio, share, shown, table

_WIDTH = 100
_PART = {
    "prefill": "prefill", "decode": "decode", "other": "steps without phases", "not split": "steps not split",
    "unattributed": "activities of no step", "idle": "idle", "unrecorded": "unrecorded", "rest": "not accounted for",
    "doubtful": "recorded window, not to be divided",
    "outside": "outside the recorded window",
}  # fmt: skip
_WHY_REQUEST = {
    "not_covered": "have steps without power samples", "not_divided": "have steps that could not be divided over requests",
    "sensor_slower": "are shorter than the time between two power readings",
}  # fmt: skip


def joules(value: float | None) -> str:
    """Joules as a person reads them."""
    if not value:
        return DASH if value is None else "0 J"
    for limit, unit, factor in ((1.0, "mJ", 1e3), (1e3, "J", 1.0), (1e6, "kJ", 1e-3), (1e9, "MJ", 1e-6)):
        if abs(value) < limit:
            return f"{value * factor:.3g} {unit}" if abs(value * factor) < 999.5 else f"{value * factor:.0f} {unit}"
    return f"{value * 1e-9:.3g} GJ"


def watts(value: float | None) -> str:
    """Watts with one decimal."""
    return DASH if value is None else f"{value:.1f} W"


def money(value: float | None) -> str:
    """A cost in the currency of the price."""
    return DASH if value is None else f"{value:.4g}"


def priced(report: EnergyReport, header: list[str], rows: list[list[str]], costs: list[float | None]) -> None:
    """Appends a column of costs where a price was given."""
    if report.price_per_kwh is not None:
        header.append("cost")
        for row, cost in zip(rows, costs, strict=True):
            row.append(money(cost))


def wrapped(text: str, indent: str = "  ") -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=True)


def parts_lines(report: EnergyReport) -> list[str]:
    """Energy by phase and cause of idleness."""
    if not report.parts:
        return []
    rows = [
        [
            _PART[row["part"]],
            shown(row["cause"], 24) if row["cause"] else "",
            duration(row["time_ns"]),
            joules(row["energy_j"]),
            percent(row["share"]),
        ]
        for row in report.parts
    ]
    header = ["what for", "cause", "time", "energy", "of energy"]
    priced(report, header, rows, [row.get("cost") for row in report.parts])
    return ["where the energy went (by time overlap; sums to the whole)", *table(header, rows, left=2)]


def kinds_lines(report: EnergyReport) -> list[str]:
    """Energy by step kind."""
    chosen = [row for row in report.kinds if row["covered"]]
    if not chosen:
        return []
    rows = [
        [
            shown(row["kind"], 12), f"{row['covered']:,} of {row['steps']:,}", duration(row["busy_ns"]), joules(row["energy_j"]),
            joules(share(row["energy_j"], row["covered"])), joules(row["prefill_j"]), joules(row["decode_j"]),
        ]
        for row in chosen
    ]  # fmt: skip
    header = ["step kind", "steps", "device time", "energy", "per step", "prefill", "decode"]
    priced(report, header, rows, [row.get("cost") for row in chosen])
    return table(header, rows, indent="")


def tokens_lines(report: EnergyReport) -> list[str]:
    """Energy per million tokens."""
    if not report.tokens:
        return []
    rows = [
        [row["what"], row["of"], count(row["tokens"]), joules(row["energy_j"]), joules(row["j_per_million"])]
        for row in report.tokens
    ]
    header = ["energy of", "over", "tokens", "energy", "per million"]
    priced(report, header, rows, [row.get("cost_per_million") for row in report.tokens])
    lines = ["per million tokens", *table(header, rows, left=2)]
    crossing = max((row.get("crossing", 0) for row in report.tokens), default=0)
    if crossing:
        lines += wrapped(f"{crossing:,} requests began or ended outside the samples: their tokens are not counted.")
    return lines


def request_lines(report: EnergyReport) -> list[str]:
    """The requests that took the most."""
    totals = report.requests
    if totals is None:
        return []
    lines = [
        f"dearest requests ({count(totals['known'])} of {count(totals['requests'])} known, {joules(totals['energy_j'])})"
    ]
    if totals["top"]:
        rows = [
            [
                shown(row["client_request_id"] or row["request_id"], 36), count(row["prompt_tokens"]), count(row["output_tokens"]),
                duration(row["device_ns"]), joules(row["energy_j"]),
            ]
            for row in totals["top"]
        ]  # fmt: skip
        header = ["request", "prompt tok", "output tok", "device time", "energy"]
        priced(report, header, rows, [row.get("cost") for row in totals["top"]])
        lines += table(header, rows)
    for key, why in _WHY_REQUEST.items():
        lines += wrapped(f"{totals[key]:,} {why}") if totals[key] else []
    return lines


def session_lines(report: EnergyReport) -> list[str]:
    """The sessions that took the most."""
    if not any(row["requests"] > 1 for row in report.sessions):
        return []
    rows = [
        [
            shown(row["session_id"], 36), f"{row['known']:,} of {row['requests']:,}", count(row["prompt_tokens"]),
            count(row["output_tokens"]), joules(row["energy_j"]),
        ]
        for row in report.sessions
    ]  # fmt: skip
    header = ["dearest sessions", "requests", "prompt tok", "output tok", "energy"]
    priced(report, header, rows, [row.get("cost") for row in report.sessions])
    return table(header, rows, indent="")


def downclock_lines(report: EnergyReport) -> list[str]:
    """What lower clocks would save."""
    if not report.downclock or not report.execution_idle:
        return []
    facts = report.study["downclock"]
    names = {"sm_only": "SM clocks", "sm_and_memory": "SM and memory clocks"}
    rows = [
        [
            names[row["variant"]], duration(row["time_ns"]), joules(row["energy_j"]), ratio(row["power_ratio"]),
            joules(row["saved_j"]), percent(share(row["saved_j"], report.energy_j)), ratio(row["p95_ratio"]),
        ]
        for row in report.downclock
    ]  # fmt: skip
    header = ["lower", "time", "its energy", "power", "saved", "of all", "p95 there"]
    priced(report, header, rows, [row.get("saved_cost") for row in report.downclock])
    note = (
        f"An estimate: power falls by the ratio an L40S showed in the study ({facts['default_w']} W to {facts['sm_only_w']} "
        f"and {facts['sm_and_memory_w']} W), {facts['after_s']} s into execution-idle and not within {facts['cooldown_s']} s "
        "of the last rise; p95 latency is the study's. This device may differ."
    )
    return ["remedy: lower clocks while execution-idle", *table(header, rows), *wrapped(note)]


def packing_lines(report: EnergyReport) -> list[str]:
    """What fewer devices would save."""
    facts = report.packing
    if facts is None:
        return []
    title = "remedy: pack the load on fewer devices"
    if facts["why"]:
        return [f"{title}: {facts['why']}"]
    saved = f"{joules(facts['saved_low_j'])} to {joules(facts['saved_high_j'])}"
    low, high = (percent(share(facts[key], report.energy_j)) for key in ("saved_low_j", "saved_high_j"))
    text = (
        f"An estimate: of {facts['devices']} devices the summed activity needs {facts['peak_devices']} in the busiest second "
        f"and {facts['mean_devices']:.2f} on average. Unloading the others saves {saved} ({low} to {high} of all): from as "
        f"many as the busiest second needs, to as many as each second needs. An unloaded device draws "
        f"{watts(facts['baseline_w'])} ({facts['baseline_source']}) instead of {watts(facts['idle_w'])}. Latency rises, and "
        "memory has to hold what is packed; neither is in this figure."
    )
    return [title, *wrapped(text)]
