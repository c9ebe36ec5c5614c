"""What every page has around its sections: policy, style, scripts, data of the figures. It reaches out to nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

_CDN = "https://cdn.plot.ly"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """A page's content, as HTML already: `title` and `subtitle`, `links` (id, words) to its sections, `body`; `data`: figures by
    name (and `detail`) for the page's script."""

    title: str
    subtitle: str
    skip: str  # what the first link of the page leads to
    links: Sequence[tuple[str, str]]
    body: str
    data: Mapping[str, Any]


def shell(sheet: Sheet, plotly: str = "inline") -> str:
    """The page as HTML. `plotly`: 'inline' carries the library compressed, 'cdn' loads it from plotly's server."""
    script, style = _asset("page.js"), _asset("page.css")
    library = plotly_library()
    url = f"{_CDN}/plotly-{plotly_version(library)}.min.js"
    allowed = f"'{_digest(script)}' " + (url if plotly == "cdn" else f"'{_digest(library)}'")
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    loader = (
        f'<script src="{url}" integrity="{_digest(library)}" crossorigin="anonymous"></script>' if plotly == "cdn"
        else f'<script type="application/octet-stream" id="plotly-gz">{_packed_library()}</script>'
    )  # fmt: skip
    links = "".join(f'<a href="#{key}">{words}</a>' for key, words in sheet.links)
    data = packed(json.dumps(finite(sheet.data), allow_nan=False))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">'
        f'<meta name="referrer" content="no-referrer"><title>{sheet.title} · stepscope</title><style>{style}</style></head><body>'
        f'<a class="skip" href="#{sheet.skip}">Skip to the report</a>'
        f'<header><h1>{sheet.title}</h1><p class="sub">{sheet.subtitle}</p></header>'
        f'<nav aria-label="sections">{links}</nav><main>{sheet.body}</main><div id="tip" role="tooltip" hidden></div>'
        f'<script type="application/octet-stream" id="figures-gz">{data}</script>'
        f"{loader}<script>{script}</script></body></html>\n"
    )  # fmt: skip


def finite(value: Any) -> Any:
    """The value with NaN and infinities as None: JSON has none of them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def packed(content: str) -> str:
    """Text as base64 of its gzip form: no character in it means anything to HTML."""
    return base64.b64encode(gzip.compress(content.encode("utf-8", "replace"), 9, mtime=0)).decode("ascii")


@cache
def plotly_library() -> str:
    """plotly.js as the installed package carries it."""
    return resources.files("plotly").joinpath("package_data", "plotly.min.js").read_text(encoding="utf-8")


@cache
def _packed_library() -> str:
    return packed(plotly_library())


def plotly_version(library: str) -> str:
    """Its version, as its first lines state it."""
    found = re.search(r"plotly\.js v([0-9]+\.[0-9]+\.[0-9]+)", library[:400])
    if found is None:
        raise RuntimeError("the installed plotly.js does not state its version")
    return found.group(1)


@cache
def _asset(name: str) -> str:
    return resources.files("analyzers").joinpath("report", name).read_text(encoding="utf-8")


def _digest(content: str) -> str:
    """What a content security policy and an integrity attribute know a text by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
