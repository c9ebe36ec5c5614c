"""The time budget as a bar that needs no script, and the swatches that name its parts."""

from __future__ import annotations

from analyzers.report.page_html import text
from analyzers.report.palette import BOUND_PATTERN, DARK, LIGHT, PHASE, Fill, cause_fill
from analyzers.report.text import duration, percent
from analyzers.report_budget import Budget, Part

_HEIGHT = 64
_LEAST_LABEL, _LEAST_ON_PHONE = 7.0, 16.0  # percent of the width that a label needs
_SHAPES = {
    "\\": '<path d="M-2,8 l4,4 M0,0 l10,10 M8,-2 l4,4"/>',
    "/": '<path d="M-2,2 l4,-4 M0,10 l10,-10 M8,12 l4,-4"/>',
    ".": '<circle cx="5" cy="5" r="1.6"/>',
    "x": '<path d="M0,0 L10,10 M10,0 L0,10"/>',
    "|": '<path d="M5,0 V10"/>',
    "-": '<path d="M0,5 H10"/>',
    "+": '<path d="M5,0 V10 M0,5 H10"/>',
}
_PATTERN_NAME = {"\\": "backslash", "/": "slash", ".": "dot", "x": "cross", "|": "bar", "-": "dash", "+": "plus"}
_INK_NAME = {LIGHT: "light", DARK: "dark"}


def part_name(part: Part) -> str:
    """A part in words."""
    if part.group == "idle":
        return f"idle: {part.name or 'cause not known'}"
    if part.group == "unrecorded":
        return "not recorded"
    if part.group == "withheld":
        return f"{part.name} (withheld)"
    return f"{part.group}: {f'{part.name}-bound' if part.name in ('compute', 'memory', 'latency') else part.name or 'bound not known'}"


def fill_of(part: Part) -> Fill:
    """How a part is drawn: busy time by its bound, idle time by its cause."""
    if part.group == "idle":
        return cause_fill(part.name)
    if part.group in ("unrecorded", "withheld"):
        return Fill(color=PHASE[part.group], shape="-")
    return Fill(color=PHASE[part.group], shape=BOUND_PATTERN.get(part.name, "+"))


def patterns() -> str:
    """Definitions that bars and swatches share."""
    shapes = "".join(
        f'<pattern id="{_pattern_id(key, ink)}" width="10" height="10" patternUnits="userSpaceOnUse">'
        f'<g fill="{ink}" stroke="{ink}" stroke-width="1.6" opacity=".75">{shape}</g></pattern>'
        for ink in _INK_NAME
        for key, shape in _SHAPES.items()
    )
    return f'<svg width="0" height="0" aria-hidden="true" class="defs"><defs>{shapes}</defs></svg>'


def swatch(fill: Fill) -> str:
    """A small square as the bar has it, with room for a whole tile of its pattern."""
    return f'<svg class="swatch" width="20" height="14" aria-hidden="true">{_rect("0", "20", 14, fill)}</svg>'


def budget_bar(budget: Budget, sql: str) -> str:
    """The bar: every part as wide as its exact share, in the order of the table beneath."""
    pieces, at = [], 0.0
    for part in budget.parts:
        width = 100 * part.share
        label = f"{part_name(part)}: {percent(part.share)} ({duration(part.ns)})"
        tip = f"{label}{'' if part.n is None else f', n = {part.n:,}'}\n{part.why or ''}\nSQL: {sql}"
        inner = _rect(f"{at:.4f}%", f"{width:.4f}%", _HEIGHT, fill_of(part))
        if width >= _LEAST_LABEL:
            inner += (
                f'<text x="{at + width / 2:.4f}%" y="{_HEIGHT / 2 + 5}" text-anchor="middle" '
                f'class="onbar{"" if width >= _LEAST_ON_PHONE else " wide"}">'
                f"{percent(part.share)}</text>"
            )
        pieces.append(
            f'<g class="piece" tabindex="0" role="img" data-ns="{part.ns}" aria-label="{text(label)}" '
            f'data-tip="{text(tip, 2000)}">{inner}</g>'
        )  # fmt: skip
        at += width
    return (
        f'<svg class="bar" width="100%" height="{_HEIGHT}" role="group" aria-label="time budget, parts sum to 100 %">'
        f"{''.join(pieces)}</svg>"
    )


def _rect(x: str, width: str, height: int, fill: Fill) -> str:
    size = f'x="{x}" y="0" width="{width}" height="{height}"'
    over = f'<rect {size} fill="url(#{_pattern_id(fill.shape, fill.ink)})"/>' if fill.shape else ""
    return f'<rect {size} fill="{fill.color}"/>{over}'


def _pattern_id(shape: str, ink: str) -> str:
    return f"p-{_PATTERN_NAME[shape]}-{_INK_NAME[ink]}"
