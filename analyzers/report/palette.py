"""Colours of a page: Okabe and Ito's, told apart with every kind of colour vision; patterns carry the same meaning."""

from __future__ import annotations

from dataclasses import dataclass

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C",
)  # fmt: skip
PHASE = {
    "prefill": BLUE, "decode": ORANGE, "mixed": PURPLE, "other": GREY, "not split": GREY, "unattributed": GREY, "busy": GREEN,
    "idle": SKY, "unrecorded": "#B8B8B8", "withheld": "#B8B8B8",
}  # fmt: skip
# As plotly names them; the same shapes are drawn by page_bar.py.
BOUND_PATTERN = {"compute": "", "memory": "/", "latency": ".", "inefficient": "x", "comm": "|", "host": "-", None: "+"}
LIGHT, DARK = "#ffffff", "#000000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fill:
    """How an area is drawn: a pattern (as plotly names it, '' is plain) in `ink` over `color`."""

    color: str
    shape: str = ""
    ink: str = LIGHT


# A hue per who has to do less (host, device, load, unknown), in tones that stand out of a light and of a dark page. Shape and
# ink differ between any two causes: any two can be neighbours in a bar, and colour may not be seen.
_HOST, _HOST_DEEP, _DEVICE, _DEVICE_DEEP, _LOAD = "#E8702A", "#BA5200", GREEN, "#00805D", "#3F9AD0"
_CAUSE = {
    "scheduler": Fill(color=_HOST, shape="\\"), "host_launch": Fill(color=_HOST_DEEP, shape="-"),
    "sampling_output": Fill(color=_HOST, shape="x"), "host_prepare": Fill(color=_HOST_DEEP, shape="/"),
    "frontend": Fill(color=_HOST, shape="."), "sync": Fill(color=_HOST_DEEP, shape="|"), "memcpy": Fill(color=_HOST, shape="+"),
    "host_other": Fill(color=_HOST_DEEP),
    "launch_latency": Fill(color=_DEVICE, shape="/", ink=DARK), "dependency": Fill(color=_DEVICE_DEEP, shape="\\", ink=DARK),
    "comm_wait": Fill(color=_DEVICE, shape="|", ink=DARK),
    "no_work": Fill(color=_LOAD, shape=".", ink=DARK), "tool_wait": Fill(color=_LOAD, shape="-", ink=DARK),
    "unknown": Fill(color=GREY, shape="+", ink=DARK), "not analyzed": Fill(color=GREY, shape="x", ink=DARK),
}  # fmt: skip


def cause_fill(cause: str | None) -> Fill:
    """Of a cause of idleness; None and a cause that is new here are drawn as one that was not looked for."""
    return _CAUSE.get(cause or "", _CAUSE["not analyzed"])


PIECE = {"cached": GREEN, "fresh": BLUE, "resent_output": ORANGE, "lost": VERMILION}
SYMBOL = {"prefill": "circle", "decode": "square", "mixed": "diamond", "other": "x"}
# Verdicts of a comparison: colour, symbol as plotly names it, the same as a character; "gate" is a worse one that trips it.
VERDICT = {
    "worse": (VERMILION, "triangle-up", "▲"), "gate": (VERMILION, "star", "★"), "better": (GREEN, "circle", "●"),
    "changed": (BLUE, "square", "■"), "no difference": (GREY, "circle-open", "○"), "not judged": (GREY, "line-ew-open", "–"),
}  # fmt: skip
