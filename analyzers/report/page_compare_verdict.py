"""The first sections of a comparison's page: the verdict in words, what differs in how the runs were made, what to mind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from analyzers.compare import Comparison, Pair
from analyzers.comparison.differences import AREAS
from analyzers.comparison.judge import BETTER, CHANGED, SAME, UNJUDGED, WORSE, Row
from analyzers.comparison.metric import HEADLINE
from analyzers.report.compare_words import chance_words, change_words, mark_of, named, number_words, passes_words, told
from analyzers.report.page_html import Cell, paragraph, section, table, text, words
from analyzers.report.palette import VERDICT
from analyzers.report.text import percent

_LISTED = 8
_LONG = 80  # characters of a setting's value
_SINGLE = {
    WORSE: "Worse", BETTER: "Better", CHANGED: "Changed, neither better nor worse by itself", SAME: "No difference found",
}  # fmt: skip


def verdict_section(result: Comparison, place: int) -> str:
    """What got worse, better, changed, and what did not, the largest first; whether the gate tripped."""
    pair = result.pairs[place - 1]
    body = paragraph(_lead(pair), "lead") + _gate(result, pair)
    for word in (WORSE, BETTER, CHANGED, SAME):
        body += _named(pair, word)
    if pair.judged:
        body += paragraph(
            "Of each kind, what people decide by (latency, throughput, steps, phases) comes first, then what explains it; the largest "
            f"changes first. {chance_words(pair)}"
        )
    return section(f"verdict-{place}", heading(result, place, "Verdict"), body)


def heading(result: Comparison, place: int, title: str) -> str:
    """The title of a section; with the candidate where there are several."""
    return (
        title if len(result.pairs) == 1 else f"{place}. {result.pairs[place - 1].cand}: {title[0].lower()}{title[1:]}"
    )


def badge(mark: str, words_of: str) -> str:
    """A verdict as its colour, its shape and its word."""
    kind = mark.replace(" ", "-")
    return f'<span class="status verdict {kind}"><span aria-hidden="true">{VERDICT[mark][2]}</span> {text(words_of)}</span>'


def _lead(pair: Pair) -> str:
    found = Counter(row.verdict for row in pair.rows)
    left = f"; {found[UNJUDGED]} could not be judged, the table says why" if found[UNJUDGED] else ""
    turns = " The passes were taken in turns." if pair.in_turns else ""
    if not pair.judged:
        return f"None of {found[UNJUDGED]} numbers could be judged; the table says why."
    told_of = {WORSE: "worse", BETTER: "better", CHANGED: "changed", SAME: "without a difference"}
    parts = [f"{found[word]} {words_of}" for word, words_of in told_of.items() if found[word]]
    return f"Of {pair.judged} numbers judged: {', '.join(parts)}{left}.{turns}"


def _gate(result: Comparison, pair: Pair) -> str:
    if result.gate is None:
        return paragraph("No gate was asked for (`--gate`).", "missing")
    tripped = [row for row in pair.rows if row.gated]
    if not tripped:
        why = "nothing that it reads is worse by more than that at the near end of its interval"
        return f"<p>{badge('better', 'gate not tripped')} {text(percent(result.gate))}: {why}.</p>"
    names = ", ".join(text(named(row), 120) for row in _largest_first(tripped)[:_LISTED])
    more = f" and {len(tripped) - _LISTED} more" if len(tripped) > _LISTED else ""
    return f'<p class="alert">{badge("gate", "gate tripped")} {text(percent(result.gate))}, by {names}{more}.</p>'


def _named(pair: Pair, word: str) -> str:
    """The rows of one verdict."""
    rows = _largest_first([row for row in pair.rows if row.verdict == word])
    if not rows:
        return ""
    shown = "".join(_line(row) for row in rows[:_LISTED])
    rest = "".join(_line(row) for row in rows[_LISTED:])
    more = f"<details><summary>{len(rows) - _LISTED} more</summary><ul>{rest}</ul></details>" if rest else ""
    note = paragraph("That is not that there is none: the interval says how much there may be.") if word == SAME else ""
    return f"<h3>{badge(word, _SINGLE[word])}</h3>{note}<ul>{shown}</ul>{more}"


def _line(row: Row) -> str:
    sides = f"{number_words(row, row.base)} → {number_words(row, row.cand)}"
    change = f"{change_words(row, row.change)} (between {change_words(row, row.low)} and {change_words(row, row.high)})"
    gate = f" {badge('gate', 'trips the gate')}" if mark_of(row) == "gate" else ""
    return f"<li><strong>{text(named(row), 120)}</strong>: {text(change)}, {text(sides)}{gate}</li>"


def _largest_first(rows: Sequence[Row]) -> list[Row]:
    """Those that people decide by first; equal factors up and down are equally large."""
    return sorted(rows, key=lambda row: (row.group not in HEADLINE, -_size(row)))


def _size(row: Row) -> float:
    change = row.change or 0.0
    return abs(change) if row.unit == "share" else abs(math.log(max(1 + change, 1e-9)))


def differences_section(result: Comparison, place: int) -> str:
    """A row per thing that is not the same, by area; the areas in which nothing differs."""
    pair = result.pairs[place - 1]
    rows = [
        [
            words(item.area), words(item.name, _LONG), _side(item.base, f"pairs.{place - 1}.differences.{at}.base"),
            _side(item.cand, f"pairs.{place - 1}.differences.{at}.cand"), words(item.note, 400),
        ]
        for at, item in enumerate(pair.differences)
    ]  # fmt: skip
    found = {item.area for item in pair.differences}
    same = [area for area in AREAS if area not in found and area not in ("repeats", *pair.not_recorded)]
    untold = pair.not_recorded
    body = paragraph(f"Nothing differs that the recordings tell of in: {', '.join(same)}.") if same else ""
    body += paragraph(f"Not recorded on a side, so not compared: {', '.join(untold)}.", "missing") if untold else ""
    body += table("what differs in how the runs were made", ["area", "what", "base", "candidate", "mind"], rows)
    return section(f"differences-{place}", heading(result, place, "What differs"), body)


def _side(value: object, key: str) -> Cell:
    """Numbers with their exact value."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Cell(shown=told(value), value=value, key=key)
    return words(told(value, 2000), _LONG)


def cautions_section(result: Comparison, place: int) -> str:
    """What the intervals do not cover, and how the passes lay."""
    pair = result.pairs[place - 1]
    body = "".join(f'<p class="alert">{text(line[:1].upper() + line[1:], 2000)}.</p>' for line in pair.cautions)
    body = body or paragraph("The recordings give no reason for one.")
    turns = "taken in turns with those of base" if pair.in_turns else "not taken in turns"
    body += paragraph(
        f"Passes: base{passes_words(pair.passes_base) or ' none with requests'}, "
        f"candidate{passes_words(pair.passes_cand) or ' none with requests'}, {turns}."
    )
    return section(f"cautions-{place}", heading(result, place, "Cautions"), body)
