"""Pieces of a page: escaped text, cells that keep their exact value, tables that need no script."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

from analyzers.report.text import DASH, count, duration, percent, shown
from traces.printable import printable

_CODE = re.compile(r"`([^`]+)`")
# What follows one of these tags is read in lines: neither a table's cell nor code, whose spaces are to be copied as they are.
_READ = re.compile(r"(<(?:p|li|dd|b|strong)\b[^>]*>|</(?:b|strong|span|code)>)([^<]*)")
_UNIT = re.compile(r"(?<=\d) (?=(?:%|(?:[nµm]?s|min|[mkMG]?[JW]|[kMGTPE]?(?:B|FLOP))\b))")
LONGEST_TEXT = 400
_LONG = 60  # a cell for texts of this many characters may be broken anywhere


def text(value: object, limit: int = LONGEST_TEXT) -> str:
    """Any text, a recording's included, as HTML that shows it."""
    return html.escape(shown(str(value), limit), quote=True)


def plain(value: object, limit: int = 120) -> str:
    """Text for a figure, whose labels take a few HTML tags: none of a recording's gets there."""
    return html.escape(shown(str(value), limit), quote=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A table's cell. `value`: the exact number behind the text, in the unit of its name; `key`: where `summary --json` has it."""

    shown: str
    value: float | None = None
    key: str | None = None
    number: bool = False
    long: bool = False
    tip: str | None = None

    def __str__(self) -> str:
        body = text(self.shown)
        if self.value is not None or self.key is not None:
            value = "" if self.value is None else repr(self.value)
            key = "" if self.key is None else f' data-key="{html.escape(self.key)}"'
            body = f'<data value="{value}"{key}>{body}</data>'
        tip = "" if self.tip is None else f' title="{text(self.tip, 2000)}"'
        kind = ' class="n"' if self.number else ' class="l"' if self.long else ""
        return f"<td{kind}{tip}>{body}</td>"


def words(value: object, limit: int = 50) -> Cell:
    """A text; what is longer than `limit` is shortened in the middle, and whole in the tip."""
    if value is None:
        return Cell(shown=DASH)
    whole = str(value)
    return Cell(
        shown=shown(whole, limit), long=limit >= _LONG, tip=printable(whole[:2000]) if len(whole) > limit else None
    )


def ns(value: float | None, key: str | None = None) -> Cell:
    """A duration in ns."""
    return Cell(shown=duration(value), value=value, key=key, number=True)


def number(value: float | None, key: str | None = None) -> Cell:
    """A count."""
    return Cell(shown=count(value), value=value, key=key, number=True)


def part(value: float | None, key: str | None = None, digits: int = 1) -> Cell:
    """A share of 1."""
    return Cell(shown=percent(value, digits), value=value, key=key, number=True)


def figure_number(value: float | None, label: str, key: str | None = None) -> Cell:
    """A number whose text is made elsewhere."""
    return Cell(shown=label, value=value, key=key, number=True)


def row_head(value: str, swatch: str | None = None) -> str:
    """The first cell of a row, with the colour and pattern its bar has."""
    return f'<th scope="row">{swatch or ""}{value}</th>'


def table(
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[Cell | str]],
    *,
    sql: str = "",
    classes: str = "",
    identity: str = "",
) -> str:
    """A table; strings among the cells are HTML already. `sql`: the statement that shows the rows behind it."""
    if not rows:
        return ""
    numeric = [isinstance(cell, Cell) and cell.number for cell in rows[0]]
    head = "".join(
        f'<th scope="col"{" class=n" if is_number else ""}>{text(name)}</th>'
        for name, is_number in zip(header, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(str(cell) for cell in row)}</tr>" for row in rows)
    name = f' id="{identity}"' if identity else ""
    tip = f' data-tip="SQL: {text(sql, 2000)}"' if sql else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}"><table{name} class="{classes}">'
        f"<caption{tip}>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        + (sql_note(sql) if sql else "")
    )  # fmt: skip


def sql_note(sql: str) -> str:
    """The statement behind numbers, folded."""
    return f'<details class="sql"><summary>SQL</summary><code>{text(sql, 2000)}</code></details>'


def prose(sentence: str) -> str:
    """A sentence; what stands between backquotes is code."""
    return _CODE.sub(r"<code>\1</code>", text(sentence, 4000))


def paragraph(sentence: str, classes: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{f' class={classes}' if classes else ''}>{prose(sentence)}</p>"


def bullets(lines: Sequence[str]) -> str:
    """A list of plain texts."""
    return f"<ul>{''.join(f'<li>{prose(line)}</li>' for line in lines)}</ul>" if lines else ""


def figure(name: str, label: str) -> str:
    """The place of a figure; the page's script draws it, and says so where it cannot."""
    return (
        f'<figure class="plot" id="plot-{name}" data-figure="{name}" tabindex="0" role="img" aria-label="{text(label, 600)}">'
        f'<p class="wait">{text(label, 600)}: drawn by a script; the tables hold the same numbers.</p></figure>'
    )


def section(name: str, title: str, body: str, *, why: str | None = None) -> str:
    """A section; `why` says for what reason it has no data."""
    note = "" if why is None else f'<p class="missing">No data: {prose(why)}.</p>'
    return f'<section id="{name}" aria-labelledby="h-{name}"><h2 id="h-{name}">{text(title)}</h2>{unbroken(note + body)}</section>'


def unbroken(body: str) -> str:
    """HTML whose sentences keep a number and its unit on one line."""
    return _READ.sub(lambda found: found[1] + _UNIT.sub("\u00a0", found[2]), body)


def left_out(total: int, limit: int, what: str) -> str:
    """Says that a list or figure shows only a part; nothing where it shows all."""
    return paragraph(f"{limit:,} of {total:,} {what}; --json of the command has all.") if total > limit else ""
