"""The numbers of a comparison on its page: the changes drawn, and every row as a table."""

from __future__ import annotations

from analyzers.compare import Comparison, Pair
from analyzers.comparison.judge import Row
from analyzers.report.compare_words import change_words, mark_of, number_words
from analyzers.report.figures_compare import drawn
from analyzers.report.page_compare_verdict import badge, heading
from analyzers.report.page_html import Cell, figure, figure_number, number, paragraph, section, table, text, words
from analyzers.report.text import DASH

_HEADER = (
    "number",
    "group",
    "verdict",
    "base",
    "candidate",
    "change",
    "from",
    "to",
    "n base",
    "n cand.",
    "how it was told, or why not",
)


def changes_section(result: Comparison, place: int) -> str:
    """Every judged number's change with its interval."""
    pair = result.pairs[place - 1]
    changes, shares = drawn(pair)
    name = heading(result, place, "Changes")
    if not changes and not shares:
        return section(f"changes-{place}", name, "", why="no number could be judged")
    body = paragraph(
        "A mark is the change, the line its interval. An interval that crosses the line at zero is no difference. What does not fit is "
        "drawn at the edge; the table has it."
    )
    if len(changes) + len(shares) < pair.judged:
        body += paragraph(
            f"{len(changes) + len(shares):,} of {pair.judged:,} numbers: all that differ, and the first of the others."
        )
    if changes:
        body += figure(f"changes-{place}", "change of each number in percent of the base, with its interval, by group")
    if shares:
        body += figure(f"shares-{place}", "change of each share in percentage points, with its interval, by group")
    return section(f"changes-{place}", name, body)


def rows_section(result: Comparison, place: int) -> str:
    """All rows, to sort and search."""
    pair = result.pairs[place - 1]
    rows = [_row(row, f"pairs.{place - 1}.rows.{at}") for at, row in enumerate(pair.rows)]
    identity, box = f"rows-table-{place}", f"rows-search-{place}"
    search = (
        f'<p class="search"><label for="{box}">Search numbers</label> <input id="{box}" type="search" autocomplete="off" '
        f'data-search="{identity}"> <output for="{box}">{len(rows):,} of {len(rows):,} rows</output></p>'
    )
    body = search + table(_caption(pair), _HEADER, rows, classes="sortable rows", identity=identity)
    return section(f"rows-{place}", heading(result, place, "All numbers"), body)


def _caption(pair: Pair) -> str:
    return f"every number, change from base to candidate with its interval at {100 * pair.confidence:.4g} %"


def _row(row: Row, key: str) -> list[Cell | str]:
    mark = mark_of(row)
    word = f"{row.verdict} (gate)" if row.gated else row.verdict
    return [
        f'<th scope="row" title="{text(row.metric_id, 2000)}">{text(row.title, 110)}</th>',
        words(row.group),
        f"<td>{badge(mark, word)}</td>",
        *(
            figure_number(value, number_words(row, value), f"{key}.{name}")
            for name, value in (("base", row.base), ("cand", row.cand))
        ),
        *(
            figure_number(value, change_words(row, value), f"{key}.{name}")
            for name, value in (("change", row.change), ("low", row.low), ("high", row.high))
        ),
        number(row.n_base, f"{key}.n_base"),
        number(row.n_cand, f"{key}.n_cand"),
        words(_how(row), 400),
    ]


def _how(row: Row) -> str:
    """What the noise was told from and what it is made of; why there is no verdict."""
    if row.reason is not None:
        return row.reason
    parts = [row.method or DASH]
    if (row.passes_base or 0) > 1 or (row.passes_cand or 0) > 1:
        parts.append(f"{row.passes_base} and {row.passes_cand} passes")
    noise = (("sampling", row.sampling), ("allowed for drift", row.drift))
    parts += [f"± {change_words(row, value).lstrip('+')} {name}" for name, value in noise if value]
    return "; ".join([*parts, *([row.note] if row.note else [])])
