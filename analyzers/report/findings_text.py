"""The terminal form of `findings` and of `prove`."""

from __future__ import annotations

import shlex
import textwrap
from typing import Any

from analyzers.findings import FindingsReport
from analyzers.report.text import DASH, count, duration, percent, shown, table
from analyzers.verdict import Pass, Verdict

_WIDTH = 96
_OF = {
    "step_time": "of the engine's step time", "busy": "of the devices' busy time", "window": "of the window",
    "energy": "of the energy", "token_intervals": "of the time between tokens in these steps",
}  # fmt: skip
_MEANING = {
    "confirmed": "the measured gain lies in the predicted interval",
    "refuted": "the measured gain lies outside the predicted interval, further than the noise explains",
    "unclear": "the difference is larger than the noise, but the noise is too large to say whether the prediction holds",
    "no difference": "what was measured is within the noise of equal passes",
}


def findings_lines(report: FindingsReport, run: str, *, limit: int) -> list[str]:
    """A paragraph per finding, the most time first."""
    if not report.findings:
        told = (
            "of what could be looked at nothing costs it enough to be worth changing, but not all could be looked at"
            if report.not_looked_at else "nothing that is known of this run costs it enough to be worth changing"
        )  # fmt: skip
        return [
            *textwrap.wrap(f"no findings in {shown(report.run_id, 40)}: {told}", _WIDTH),
            *_unseen(report, run),
            *_baseline(report.baseline),
        ]
    number = f"{len(report.findings)} findings" if len(report.findings) > 1 else "one finding"
    lines = [f"{number} in {shown(report.run_id, 40)}, the most time first"]
    for row in report.findings[:limit]:
        lines += ["", *_finding(row, run)]
    if len(report.findings) > limit:
        lines += ["", f"… and {len(report.findings) - limit} more: --limit, or --json"]
    return [*lines, *_unseen(report, run), *_baseline(report.baseline)]


def _unseen(report: FindingsReport, run: str) -> list[str]:
    """What could not be looked for, why, and what mends it."""
    if not report.not_looked_at:
        return []
    lines = ["", "not looked at:"]
    for item in report.not_looked_at:
        lines += textwrap.wrap(
            f"{item.causes} [{', '.join(item.findings)}]", _WIDTH, initial_indent=" - ", subsequent_indent="   "
        )
        lines += _wrapped("why", item.why)
        mend = item.mend.replace("RUN", shlex.quote(shown(run, 300)))
        lines += (
            [f"   mend   {mend}"] if mend.startswith("stepscope ") else _wrapped("mend", mend)
        )  # a command is copied whole
    return lines


def _finding(row: dict[str, Any], run: str) -> list[str]:
    lines = [f"{row['place']}. {row['severity']}: {shown(row['title'], 80)}  [{shown(row['finding_id'], 40)}]"]
    lines += _wrapped("why", row["cause"])
    explained = (
        [f"{duration(row['device_ns'])} of device time ({percent(row['share'])} of the window)"]
        if row["device_ns"]
        else []
    )
    explained += [f"{row['energy_j']:.1f} J"] if row["energy_j"] else []
    lines += _wrapped("cost", ", ".join(explained)) if explained else []
    if row["predicted_gain"] is not None:
        lines += _wrapped("gain", f"{percent(row['predicted_gain'])} {_OF.get(row['gain_of'], '')} if it were gone "
                          f"({percent(row['gain_low'])} to {percent(row['gain_high'])})")  # fmt: skip
    elif row["gain_high"] is not None:
        lines += _wrapped("gain", f"not known; at most {percent(row['gain_high'])} {_OF.get(row['gain_of'], '')}")
    lines += _wrapped("fix", row["fix"])
    if row["proof"] is not None:
        lines.append(f"   check  stepscope prove {shlex.quote(shown(run, 300))} {shown(row['finding_id'], 60)}")
    return lines + _proved(row["proved"])


def _wrapped(word: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(shown(text, 600), _WIDTH - 10) or [DASH]
    return [f"   {word if not number else '':<6} {line}" for number, line in enumerate(wrapped)]


def _proved(proof: dict[str, Any] | None) -> list[str]:
    if proof is None:
        return []
    return _wrapped("proof", f"{shown(proof['verdict'], 20)}: measured {percent(proof['measured_gain'])} ± {percent(proof['noise'])} "
                    f"in {count(proof['rounds'])} rounds")  # fmt: skip


def _baseline(proof: dict[str, Any] | None) -> list[str]:
    if proof is None:
        return []
    return [
        "",
        f"compared with itself: {shown(proof['verdict'], 20)} ({percent(proof['measured_gain'])} ± {percent(proof['noise'])})",
    ]


def verdict_lines(verdict: Verdict) -> list[str]:
    """Predicted against measured, the noise, the passes."""
    lines = [f"{shown(verdict.finding_id, 60)}: {shown(verdict.title, 80)}", *_change(verdict), ""]
    if verdict.predicted_gain is not None:
        lines.append(f"  predicted  {percent(verdict.predicted_gain)} of the engine's step time goes away "
                     f"({percent(verdict.gain_low)} to {percent(verdict.gain_high)})")  # fmt: skip
    lines.append(f"  measured   {percent(verdict.measured_gain)} ± {percent(verdict.noise)} (95 %, {verdict.rounds} rounds): "
                 f"{duration(verdict.baseline_ns)} → {duration(verdict.changed_ns)} per pass")  # fmt: skip
    lines.append(
        f"  noise      A against A {percent(verdict.baseline_spread)}, B against B {percent(verdict.changed_spread)}"
    )
    told = textwrap.wrap(f"{verdict.verdict}: {_meaning(verdict)}", _WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += ["", *told, "", *_passes(verdict.passes), "", f"run directories: {shown(verdict.directory, 400)}"]
    return lines


def _meaning(verdict: Verdict) -> str:
    if verdict.predicted_gain is None and verdict.verdict != "no difference":
        if verdict.change_is_some:
            return "the change makes a difference; how much of the step time was not predicted"
        return "passes of the same thing differ by more than their noise: something else runs on this machine"
    return _MEANING[verdict.verdict] + (
        "; more --rounds make that smaller"
        if verdict.verdict in ("unclear", "no difference") and verdict.change_is_some
        else ""
    )


def _change(verdict: Verdict) -> list[str]:
    if not verdict.change_is_some:
        return ["  A and B are the same run"]
    return [
        line
        for item in verdict.change["differs"]
        for line in textwrap.wrap(f"B: {shown(item, 300)}", _WIDTH, initial_indent="  ", subsequent_indent="     ")
    ]


def _passes(passes: tuple[Pass, ...]) -> list[str]:
    rows = [
        [shown(item.name, 12), duration(item.step_ns), count(item.steps), count(item.requests), count(item.prompt_tokens),
         percent(item.cached_tokens / item.prompt_tokens if item.prompt_tokens else None)]
        for item in passes
    ]  # fmt: skip
    return table(["pass", "step time", "steps", "requests", "prompt tokens", "cached"], rows)
