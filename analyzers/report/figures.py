"""What figures share: axes, layout, the hover's first line. Colours of text and grid are the page's, which knows the theme."""

from __future__ import annotations

from typing import Any

from analyzers.report.palette import LIGHT, Fill

_MARGIN = {"l": 70, "r": 20, "t": 30, "b": 55}


def axis(title: str, *, log: bool = False, **more: Any) -> dict[str, Any]:
    """An axis with its unit in the title."""
    shape: dict[str, Any] = {"title": {"text": title}, "automargin": True, "zeroline": False, **more}
    if not log:
        shape |= {"exponentformat": "none", "separatethousands": True}
    else:
        shape |= {"type": "log", "exponentformat": "power"} | ({} if "tickvals" in more else {"dtick": 1})
    return shape


def layout(**more: Any) -> dict[str, Any]:
    """A layout without colours of its own."""
    shape: dict[str, Any] = {"margin": _MARGIN, "font": {"size": 12}, "hoverlabel": {"align": "left", "namelength": -1}}
    return {**shape, **more}


def pattern(shape: str, size: int = 8) -> dict[str, Any]:
    """A pattern over the colour of a bar, so that meaning does not rest on colour alone; '' is plain colour."""
    return {"shape": shape, "size": size, "fillmode": "overlay", "fgcolor": LIGHT, "fgopacity": 0.75}


def filled(fill: Fill) -> dict[str, Any]:
    """The marker of a bar; one for each trace, as plotly takes the ink of a pattern from an array's colours, not from us."""
    return {"color": fill.color, "pattern": {**pattern(fill.shape), "fgcolor": fill.ink}}


def hover_number(line: str) -> str:
    """A number and the steps that it is of."""
    return f"{line}<br>steps %{{customdata[0]}} to %{{customdata[1]}}, n = %{{customdata[2]}}"
