"""The changes of a comparison with their intervals, as plotly's plain values: of times and rates in percent, of shares in points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from analyzers.compare import Comparison, Pair
from analyzers.comparison.judge import SAME, UNJUDGED, Row
from analyzers.comparison.metric import GROUPS, HEADLINE, HIGHER, NEITHER
from analyzers.report.compare_words import TITLES, change_words, mark_of, number_words
from analyzers.report.figures import axis, layout
from analyzers.report.page_html import plain
from analyzers.report.palette import GREY, PURPLE, VERDICT
from analyzers.report.text import count, percent

Figure = dict[str, Any]
MOST_ROWS = 80
_EDGE = 64.0  # the figure ends at this factor, and at one over it
_LABEL = 46  # characters of a title beside its interval
# marks of the axis in percent, for axes that end within this factor of the base
_TICKS = (
    (1.08, (-6, -4, -2, 0, 2, 4, 6)), (1.3, (-20, -15, -10, -5, 0, 5, 10, 15, 20, 25)),
    (2.2, (-50, -40, -30, -20, -10, 0, 10, 20, 30, 50, 75, 100)), (10.0, (-90, -80, -65, -50, -30, 0, 50, 100, 200, 400, 800)),
    (math.inf, (-98, -95, -90, -75, -50, 0, 100, 300, 900, 1900, 4900)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Places on the axis. `low`, `high`: its ends."""

    low: float
    high: float
    log: bool

    def at(self, change: float) -> float:
        """A factor of the base, or percentage points."""
        return 1 + change if self.log else 100 * change

    def within(self, value: float, slack: float = 1.0) -> float:
        """At the edge where it is outside; with `slack`, as far outside as is drawn."""
        if self.log:
            return min(max(value, self.low / slack), self.high * slack)
        return min(max(value, self.low * slack), self.high * slack)


def comparison_figures(result: Comparison) -> dict[str, Figure]:
    """`changes-N` and `shares-N` of the Nth candidate, where there is something to show."""
    made = {}
    for place, pair in enumerate(result.pairs, start=1):
        for name, rows, log in (("changes", drawn(pair)[0], True), ("shares", drawn(pair)[1], False)):
            if rows:
                made[f"{name}-{place}"] = _forest(rows, result.gate, log=log)
    return made


def drawn(pair: Pair) -> tuple[list[Row], list[Row]]:
    """Rows of the two figures: changes in percent, and of shares in points. Of many, all that differ and the first others."""
    judged = [row for row in pair.rows if row.verdict != UNJUDGED and row.change is not None]
    kept = {row.metric_id for row in sorted(judged, key=lambda row: row.verdict == SAME)[:MOST_ROWS]}
    rows = [row for row in judged if row.metric_id in kept]
    return [row for row in rows if row.unit != "share"], [row for row in rows if row.unit == "share"]


def _forest(rows: Sequence[Row], gate: float | None, *, log: bool) -> Figure:
    slots = list(_slots(rows))
    scale = _scale(rows, gate, log=log)
    points = [(row, place) for place, (_, row) in enumerate(slots) if row is not None]
    marks = [(word, [item for item in points if mark_of(item[0]) == word]) for word in VERDICT]
    traces = [_points(word, mine, scale) for word, mine in marks if mine]
    return {
        "data": [*_gate(points, gate, scale), *traces],
        "layout": layout(
            height=24 * len(slots) + 130,
            margin={"l": 20, "r": 20, "t": 10, "b": 50},
            xaxis=_changes_axis(scale),
            yaxis=axis(
                "", tickmode="array", tickvals=list(range(len(slots))), ticktext=[label for label, _ in slots],
                range=[len(slots) - 0.4, -0.7], showgrid=False, fixedrange=True, ticks="",
            ),
            shapes=[{"type": "line", "xref": "x", "yref": "paper", "x0": scale.at(0), "x1": scale.at(0), "y0": 0, "y1": 1,
                     "line": {"color": GREY, "width": 2}, "layer": "below"}],
            hovermode="closest",
            showlegend=True,
            legend={"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0},
        ),
        "narrow": _narrow([label for label, _ in slots], scale),
    }  # fmt: skip


def _narrow(labels: Sequence[str], scale: _Scale) -> dict[str, Any]:
    """On a phone the names stand above their intervals, not beside them."""
    above = [
        {"xref": "paper", "yref": "y", "x": 0, "y": place, "text": label, "xanchor": "left", "yanchor": "bottom", "yshift": 5,
         "showarrow": False, "font": {"size": 11}}
        for place, label in enumerate(labels)
    ]  # fmt: skip
    return {
        "height": 38 * len(labels) + 170, "annotations": above, "yaxis.showticklabels": False, "margin.l": 8, "margin.r": 8,
        "yaxis.range": [len(labels) - 0.4, -0.9], "xaxis.tickangle": 0, "xaxis.tickfont": {"size": 10},
        "xaxis.title.text": "change, % of base" if scale.log else "change, percentage points", **_fewer_ticks(scale),
    }  # fmt: skip


def _slots(rows: Sequence[Row]) -> Iterator[tuple[str, Row | None]]:
    """Lines of the figure from above: each group's name, then its rows."""
    for group in GROUPS:
        mine = [row for row in rows if row.group == group]
        if mine:
            yield f"<b>{TITLES[group]}</b>", None
        for row in mine:
            yield plain(row.title, _LABEL), row


def _scale(rows: Sequence[Row], gate: float | None, *, log: bool) -> _Scale:
    """As wide as the intervals are, zero and the gate in it, up to the edge."""
    ends = [value for row in rows for value in (row.low, row.change, row.high) if value is not None]
    ends.append(0.0)
    if gate is not None and log:
        ends += [gate, *(-gate for row in rows if row.better == HIGHER and gate < 1)]
    if log:
        low, high = (min(max(1 + value, 1 / _EDGE), _EDGE) for value in (min(ends), max(ends)))
        return _Scale(low=low / 1.06, high=high * 1.06, log=True)
    widest = min(max(abs(value) for value in ends), 1.0)  # no share changes by more than all of it
    return _Scale(low=-100 * max(widest, 0.01) * 1.04, high=100 * max(widest, 0.01) * 1.04, log=False)


def _changes_axis(scale: _Scale) -> dict[str, Any]:
    if not scale.log:
        return axis("change, percentage points of the whole", range=[scale.low, scale.high], fixedrange=True, nticks=7)
    return axis(
        "change, % of base (equal factors are equally wide)", log=True, tickmode="array", **_ticks(scale),
        range=[math.log10(scale.low), math.log10(scale.high)], fixedrange=True,
    )  # fmt: skip


def _ticks(scale: _Scale, every: int = 1) -> dict[str, Any]:
    """Marks of an axis of factors, in percent; `every` second, third … of them, zero always."""
    widest = max(scale.high, 1 / scale.low)
    ticks = next(ticks for factor, ticks in _TICKS if widest <= factor)
    zero = ticks.index(0)
    seen = [
        tick for at, tick in enumerate(ticks)
        if (at - zero) % every == 0 and scale.low <= 1 + tick / 100 <= scale.high
    ]  # fmt: skip
    return {
        "tickvals": [1 + tick / 100 for tick in seen],
        "ticktext": [f"{tick:+,} %" if tick else "0" for tick in seen],
    }


def _fewer_ticks(scale: _Scale) -> dict[str, Any]:
    return {f"xaxis.{name}": values for name, values in _ticks(scale, every=2).items()} if scale.log else {}


def _points(word: str, points: Sequence[tuple[Row, int]], scale: _Scale) -> dict[str, Any]:
    """The changes of one verdict; what lies outside is drawn at the edge, and exact in the hover."""
    color, symbol, _ = VERDICT[word]
    exact = [[row.change, row.low, row.high] for row, _ in points]
    middle, low, high = ([scale.at(ends[i] or 0.0) for ends in exact] for i in range(3))
    x = [scale.within(value) for value in middle]
    return {
        "type": "scatter", "mode": "markers", "name": f"{mark_name(word)} (n = {len(points):,})",
        "x": x, "y": [place for _, place in points], "customdata": exact, "text": [_hover(row) for row, _ in points],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"symbol": symbol, "color": color, "size": 11, "line": {"width": 2, "color": color}},
        "error_x": {
            "type": "data", "symmetric": False, "color": color, "thickness": 2, "width": 4,
            "array": [scale.within(end, 10) - at for end, at in zip(high, x, strict=True)],
            "arrayminus": [at - scale.within(end, 10) for end, at in zip(low, x, strict=True)],
        },
    }  # fmt: skip


def mark_name(word: str) -> str:
    """What a mark says, in words."""
    return "worse, trips the gate" if word == "gate" else word


def _hover(row: Row) -> str:
    lines = [
        f"<b>{plain(row.title, 90)}</b> ({TITLES[row.group]})",
        f"{number_words(row, row.base)} → {number_words(row, row.cand)}",
        f"{change_words(row, row.change)}, between {change_words(row, row.low)} and {change_words(row, row.high)}",
        f"{mark_name(mark_of(row))}; n = {count(row.n_base)} and {count(row.n_cand)}; {plain(row.method or '')}",
    ]
    return "<br>".join(lines)


def _gate(points: Sequence[tuple[Row, int]], gate: float | None, scale: _Scale) -> list[dict[str, Any]]:
    """How much worse a number may be, beside each that the gate reads."""
    if gate is None or not scale.log:
        return []
    x: list[float | None] = []
    y: list[float | None] = []
    for row, place in points:
        allowed = 1 - gate if row.better == HIGHER else 1 + gate
        if row.group in HEADLINE and row.better is not NEITHER and allowed > 0:
            x += [allowed, allowed, None]
            y += [place - 0.5, place + 0.5, None]
    name = f"gate: worse by {percent(gate)}"
    return [{
        "type": "scatter", "mode": "lines", "name": name, "x": x, "y": y, "line": {"color": PURPLE, "width": 2, "dash": "dash"},
        "hovertemplate": f"{name}<extra></extra>",
    }] if x else []  # fmt: skip
