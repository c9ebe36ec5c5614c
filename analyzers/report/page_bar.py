"""The time budget as a bar that needs no script, and the swatches that name its parts."""

from __future__ import annotations

from analyzers.report.page_html import text
from analyzers.report.palette import BOUND_PATTERN, PHASE, WHO_COLOR
from analyzers.report.text import duration
from analyzers.report_budget import Budget, Part

_HEIGHT = 64
_LEAST_LABEL = 7.0  # percent of the width that a label needs
_WHO_PATTERN = {"host": "", "device": "/", "load": ".", "unknown": "+"}
_SHAPES = {
    "/": '<path d="M-2,2 l4,-4 M0,10 l10,-10 M8,12 l4,-4"/>',
    ".": '<circle cx="5" cy="5" r="1.6"/>',
    "x": '<path d="M0,0 L10,10 M10,0 L0,10"/>',
    "|": '<path d="M5,0 V10"/>',
    "-": '<path d="M0,5 H10"/>',
    "+": '<path d="M5,0 V10 M0,5 H10"/>',
}
_PATTERN_NAME = {"/": "slash", ".": "dot", "x": "cross", "|": "bar", "-": "dash", "+": "plus"}


def part_name(part: Part) -> str:
    """A part in words."""
    if part.group == "idle":
        return f"idle: {part.name or 'cause not known'}"
    if part.group == "unrecorded":
        return "not recorded"
    if part.group == "withheld":
        return f"{part.name} (withheld)"
    return f"{part.group}: {f'{part.name}-bound' if part.name in ('compute', 'memory', 'latency') else part.name or 'bound not known'}"


def style_of(part: Part, who: dict[str, str]) -> tuple[str, str]:
    """Colour and pattern of a part; `who` has to do less, per cause of idleness."""
    if part.group == "idle":
        owner = who.get(part.name or "", "unknown")
        return WHO_COLOR[owner], _WHO_PATTERN[owner]
    if part.group in ("unrecorded", "withheld"):
        return PHASE[part.group], "-"
    return PHASE[part.group], BOUND_PATTERN.get(part.name, "+")


def patterns() -> str:
    """Definitions that bars and swatches share."""
    shapes = "".join(
        f'<pattern id="p-{_PATTERN_NAME[key]}" width="10" height="10" patternUnits="userSpaceOnUse">'
        f'<g fill="#fff" stroke="#fff" stroke-width="1.6" opacity=".75">{shape}</g></pattern>'
        for key, shape in _SHAPES.items()
    )
    return f'<svg width="0" height="0" aria-hidden="true" class="defs"><defs>{shapes}</defs></svg>'


def swatch(color: str, pattern: str) -> str:
    """A small square as the bar has it."""
    return f'<svg class="swatch" width="14" height="14" aria-hidden="true">{_rect("0", "14", 14, color, pattern)}</svg>'


def budget_bar(budget: Budget, who: dict[str, str], sql: str) -> str:
    """The bar: every part as wide as its share, in the order of the table beneath."""
    pieces, at = [], 0.0
    for part in budget.parts:
        width = 100 * part.share
        color, pattern = style_of(part, who)
        label = f"{part_name(part)}: {part.tenths / 10:.1f} % ({duration(part.ns)})"
        tip = f"{label}{'' if part.n is None else f', n = {part.n:,}'}\n{part.why or ''}\nSQL: {sql}"
        inner = _rect(f"{at:.4f}%", f"{width:.4f}%", _HEIGHT, color, pattern)
        if width >= _LEAST_LABEL:
            inner += (
                f'<text x="{at + width / 2:.4f}%" y="{_HEIGHT / 2 + 5}" text-anchor="middle" class="onbar">'
                f"{part.tenths / 10:.1f} %</text>"
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


def _rect(x: str, width: str, height: int, color: str, pattern: str) -> str:
    size = f'x="{x}" y="0" width="{width}" height="{height}"'
    over = f'<rect {size} fill="url(#p-{_PATTERN_NAME[pattern]})"/>' if pattern else ""
    return f'<rect {size} fill="{color}"/>{over}'
