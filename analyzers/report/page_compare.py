"""The page of a comparison: per candidate the verdict, what differs, what to mind, the changes drawn, every number; definitions."""

from __future__ import annotations

from collections import Counter

from analyzers.compare import Comparison, Pair
from analyzers.comparison.judge import BETTER, CHANGED, SAME, UNJUDGED, WORSE
from analyzers.report.compare_words import passes_words
from analyzers.report.figures_compare import comparison_figures
from analyzers.report.page_compare_rows import changes_section, rows_section
from analyzers.report.page_compare_terms import terms_section
from analyzers.report.page_compare_verdict import cautions_section, differences_section, verdict_section
from analyzers.report.page_html import Cell, number, row_head, section, table, text, words
from analyzers.report.page_shell import Sheet, shell

SECTIONS = (
    ("verdict", "Verdict", verdict_section), ("differences", "What differs", differences_section),
    ("cautions", "Cautions", cautions_section), ("changes", "Changes", changes_section), ("rows", "All numbers", rows_section),
)  # fmt: skip
_VERDICTS = (WORSE, BETTER, CHANGED, SAME, UNJUDGED)


def comparison_page(result: Comparison, plotly: str = "inline") -> str:
    """The comparison as HTML. `plotly`: see page_shell.shell."""
    body = "" if len(result.pairs) == 1 else _candidates(result)
    for place in range(1, len(result.pairs) + 1):
        body += "".join(make(result, place) for _, _, make in SECTIONS)
    sheet = Sheet(
        title=_title(result), subtitle=_subtitle(result.pairs), skip="candidates" if len(result.pairs) > 1 else "verdict-1",
        links=_links(result.pairs), body=body + terms_section(result), data={"figures": comparison_figures(result), "detail": None},
    )  # fmt: skip
    return shell(sheet, plotly)


def _title(result: Comparison) -> str:
    first = result.pairs[0]
    what = text(first.cand, 80) if len(result.pairs) == 1 else f"{len(result.pairs)} candidates"
    return f"{what} against {text(first.base, 80)}"


def _subtitle(pairs: tuple[Pair, ...]) -> str:
    sides = [f"base {text(pairs[0].base, 80)}{text(passes_words(pairs[0].passes_base))}"]
    sides += [f"candidate {text(pair.cand, 80)}{text(passes_words(pair.passes_cand))}" for pair in pairs[:3]]
    more = [f"and {len(pairs) - 3} more"] if len(pairs) > 3 else []
    return " · ".join([*sides, *more])


def _links(pairs: tuple[Pair, ...]) -> list[tuple[str, str]]:
    """To the sections of the only candidate, or to each candidate."""
    if len(pairs) == 1:
        return [*((f"{name}-1", title) for name, title, _ in SECTIONS), ("methods", "Definitions")]
    each = [(f"verdict-{place}", f"{place}. {text(pair.cand, 28)}") for place, pair in enumerate(pairs, start=1)]
    return [("candidates", "Candidates"), *each, ("methods", "Definitions")]


def _candidates(result: Comparison) -> str:
    """How many numbers of each candidate are worse, better, …"""
    rows: list[list[Cell | str]] = []
    for place, pair in enumerate(result.pairs, start=1):
        found = Counter(row.verdict for row in pair.rows)
        tripped = sum(row.gated for row in pair.rows)
        gate = "–" if result.gate is None else "tripped" if tripped else "not tripped"
        link = f'<a href="#verdict-{place}">{place}. {text(pair.cand, 80)}</a>'
        rows.append([row_head(link), *(number(found[word]) for word in _VERDICTS), words(gate)])
    body = table("numbers of each candidate by verdict", ["candidate", *_VERDICTS, "gate"], rows)
    return section("candidates", "Candidates", body)
