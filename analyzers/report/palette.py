"""Colours of a page: Okabe and Ito's, told apart with every kind of colour vision; patterns carry the same meaning."""

from __future__ import annotations

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, GREY = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#8C8C8C",
)  # fmt: skip
PHASE = {
    "prefill": BLUE, "decode": ORANGE, "mixed": PURPLE, "other": GREY, "not split": GREY, "unattributed": GREY, "busy": GREEN,
    "idle": SKY, "unrecorded": "#B8B8B8", "withheld": "#B8B8B8",
}  # fmt: skip
# As plotly names them; the same shapes are drawn by page_bar.py.
BOUND_PATTERN = {"compute": "", "memory": "/", "latency": ".", "inefficient": "x", "comm": "|", "host": "-", None: "+"}
WHO_COLOR = {"host": VERMILION, "device": GREEN, "load": SKY, "unknown": GREY}
PIECE = {"cached": GREEN, "fresh": BLUE, "resent_output": ORANGE, "lost": VERMILION}
SYMBOL = {"prefill": "circle", "decode": "square", "mixed": "diamond", "other": "x"}
# Verdicts of a comparison: colour, symbol as plotly names it, the same as a character; "gate" is a worse one that trips it.
VERDICT = {
    "worse": (VERMILION, "triangle-up", "▲"), "gate": (VERMILION, "star", "★"), "better": (GREEN, "circle", "●"),
    "changed": (BLUE, "square", "■"), "no difference": (GREY, "circle-open", "○"), "not judged": (GREY, "line-ew-open", "–"),
}  # fmt: skip
