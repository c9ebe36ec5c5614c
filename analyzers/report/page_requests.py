"""Sections with long lists: requests and kernels."""

from __future__ import annotations

from typing import Any

from analyzers.report.figures_load import MOST_WATERFALL, distribution_figure, requests_figure
from analyzers.report.page_html import (
    Cell,
    bullets,
    figure,
    figure_number,
    left_out,
    ns,
    number,
    paragraph,
    part,
    section,
    table,
    words,
)
from analyzers.report.page_sql import sql_of
from analyzers.report.roofline_text import scaled
from analyzers.report.text import DASH, share
from analyzers.report_model import MOST_KERNELS, Report
from analyzers.requests import PARTS

Rows = list[list[Cell | str]]


def requests_section(report: Report) -> str:
    """Latency, passes, the waterfall, and the slowest requests with their parts."""
    data, summary = report.requests, report.summary
    if data is None:
        return section("requests", "Requests", "", why=report.missing.get("requests"))
    latency = _requests_latency(summary)
    counts = ("requests", "ok", "failed", "sessions", "prompt_tokens", "cached_tokens", "output_tokens")
    passes = _requests_passes(counts, summary)
    slowest = _requests_slowest(data)
    sql, rows = sql_of("requests", report.run_id), report.request_rows
    shown = f"{data.pass_name} pass" if data.pass_name else "all requests"
    body = paragraph(
        f"{rows.height:,} requests ({shown}). Bars are wall time: waiting, to the first token, to the last."
    )
    body += bullets([f"Parts are not known for {n:,} of them: {why}." for why, n in data.unknown.items()])
    body += left_out(rows.height, MOST_WATERFALL, "requests drawn at most, evenly chosen")
    body += _charts(report)
    body += table(
        "latency at the client",
        ["pass", "term", "n", "p50", "p90", "p99"],
        latency,
        sql=f"{sql_of('latency', report.run_id)}; {sql_of('tokens', report.run_id)}",
    )
    body += table(
        "passes",
        [
            "pass",
            "requests (n)",
            "ok",
            "failed",
            "sessions",
            "prompt tokens",
            "cached",
            "output tokens",
            "hit ratio",
            "output tokens/s",
            "preemptions",
            "sent late p99",
        ],
        passes,
        sql=sql,
    )
    body += table(
        "the slowest, with the parts of their wall time",
        ["request", "status", "prompt", "output", "TTFT", "TPOT", "E2E", *PARTS],
        slowest,
        sql=sql,
    )
    return section("requests", "Requests", body)


def _charts(report: Report) -> str:
    rows, places = report.request_rows, ""
    if requests_figure(rows, report.run_id) is not None:
        places += figure("requests", "requests over time: waiting, to the first token, to the last token")
    if distribution_figure(rows, report.run_id) is not None:
        places += figure("latency", "share of requests at or below a TTFT and a TPOT")
    return places


def _requests_slowest(data: Any) -> Rows:
    return [
        [
            words(row["client_request_id"] or row["request_id"], 40),
            words(row["status"] or DASH),
            number(row["prompt_tokens"]),
            number(row["output_tokens"]),
            ns(row["ttft_ns"]),
            ns(row["tpot_ns"]),
            ns(row["e2e_ns"]),
            *(ns(row[f"{name}_ns"]) for name in PARTS),
        ]
        for row in data.requests
    ]


def _requests_passes(counts: Any, summary: Any) -> Rows:
    return [
        [
            words(row["pass"] or "all"),
            *(number(row[name], f"requests.{i}.{name}") for name in counts),
            part(row["hit_ratio"], f"requests.{i}.hit_ratio"),
            figure_number(
                row["output_tokens_per_s"],
                DASH if row["output_tokens_per_s"] is None else f"{row['output_tokens_per_s']:.1f}",
                f"requests.{i}.output_tokens_per_s",
            ),
            number(row["preemptions"], f"requests.{i}.preemptions"),
            ns(row["lateness_p99_ns"], f"requests.{i}.lateness_p99_ns"),
        ]
        for i, row in enumerate(summary.requests)
    ]


def _requests_latency(summary: Any) -> Rows:
    return [
        [
            words(row["pass"] or "all"),
            words(row["term"].upper() if row["term"] != "queue" else "queue"),
            number(row["n"], f"latency.{i}.n"),
            *(ns(row[f"p{at}_ns"], f"latency.{i}.p{at}_ns") for at in (50, 90, 99)),
        ]
        for i, row in enumerate(summary.latency)
    ]


def kernels_section(report: Report) -> str:
    """Categories as `summary` has them; every kernel name, to sort and search."""
    busy = sum(row["busy_ns"] or 0 for row in report.summary.categories)
    categories = _kernels_categories(busy, report)
    rows = _kernels_rows(report)
    search = (
        (
            f'<p class="search"><label for="kernel-search">Search kernels</label> <input id="kernel-search" type="search" '
            'autocomplete="off" data-search="kernels-table"> '
            f'<output for="kernel-search" id="kernel-count">{len(rows):,} of {len(rows):,} rows</output></p>'
        )
        if rows
        else ""
    )
    header = [
        "kernel",
        "category",
        "n",
        "busy",
        "share",
        "prefill",
        "decode",
        "p50",
        "p99",
        "bound",
        "of the roof",
        "FLOP/s",
    ]
    sql = sql_of("kernels", report.run_id)
    body = table(
        "device time by category",
        ["category", "activities (n)", "busy", "share"],
        categories,
        sql=sql_of("categories", report.run_id),
    )
    body += search + table(
        "kernels by name"
        + (
            f", the {MOST_KERNELS:,} with the most time"
            if len(rows) > MOST_KERNELS
            else ", those with the most time first"
        ),
        header,
        rows,
        sql=sql,
        classes="sortable",
        identity="kernels-table",
    )
    return section("kernels", "Kernels", body, why=report.missing.get("kernels"))


def _kernels_rows(report: Report) -> Rows:
    return [
        [
            words(row["name"] if row["name"] is not None else "(no name)", 110),
            words(row["category"] or ""),
            number(row["activities"]),
            ns(row["busy_ns"]),
            part(row["share"]),
            ns(row["prefill_ns"]),
            ns(row["decode_ns"]),
            ns(row["p50_ns"]),
            ns(row["p99_ns"]),
            words(row["bound"] or DASH),
            part(row["roof_fraction"], digits=0),
            figure_number(row["flops_per_s"], scaled(row["flops_per_s"], "FLOP/s")),
        ]
        for row in report.kernels
    ]


def _kernels_categories(busy: Any, report: Report) -> Rows:
    return [
        [
            words(row["category"] or "not analyzed"),
            number(row["activities"], f"categories.{i}.activities"),
            ns(row["busy_ns"], f"categories.{i}.busy_ns"),
            part(share(row["busy_ns"], busy)),
        ]
        for i, row in enumerate(report.summary.categories)
    ]
