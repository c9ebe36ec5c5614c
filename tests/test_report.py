"""The report of a run as values and as text: parts sum, numbers are those of `summary --json`, nothing of a recording becomes markup."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import duckdb
import pytest
from energy_plant import RUN, Plant
from hypothesis import given
from hypothesis import strategies as st
from report_plant import HOSTILE, STEPS, planted
from test_commands import served_run
from test_sample_traces import SAMPLES, short

import cli
from analyzers.idle_reading import HIDING
from analyzers.report.page import SECTIONS, figures, page
from analyzers.report.page_file import write_page
from analyzers.report.page_html import unbroken
from analyzers.report.page_shell import finite, packed, plotly_library
from analyzers.report.page_sql import sql_of, statement_names
from analyzers.report.palette import cause_fill
from analyzers.report.text import percent
from analyzers.report_budget import Budget, Part
from analyzers.report_model import Report, read_report
from analyzers.summary import summarize
from traces.errors import UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore

Database = Callable[..., Path]
LIMIT_BYTES = 6_000_000
_VOID = {"meta", "input", "path", "circle", "rect"}


@dataclass
class Element:
    """An element of a page with the text directly or deeper inside it."""

    tag: str
    attributes: dict[str, str | None]
    text: str = ""
    parents: tuple[str, ...] = ()


@dataclass
class Markup(HTMLParser):
    """Elements of a page, as a browser without scripts would see them."""

    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs), parents=tuple(item.attributes.get("id") or item.tag for item in self.open))
        self.elements.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data.replace("\u00a0", " ")  # which a reader does not see


def parsed(content: str) -> Markup:
    markup = Markup()
    markup.feed(content)
    markup.close()
    assert markup.open == []
    return markup


def report_of(path: Path | str) -> Report:
    with TraceStore.open(path) as store:
        return read_report(store)


def figure_data(content: str) -> Any:
    """What the page's script draws from."""
    (raw,) = re.findall(r'id="figures-gz">([A-Za-z0-9+/=]+)</script>', content)
    return json.loads(gzip.decompress(base64.b64decode(raw)))


def texts(value: Any) -> list[str]:
    """Every string in decoded JSON."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in texts(item)]
    return [text for item in value for text in texts(item)] if isinstance(value, list) else []


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with something in every section."""
    return planted(tmp_path_factory.mktemp("full") / "run.duckdb")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with ledger, requests and a CPU trace, ingested and analyzed."""
    folder = served_run(tmp_path_factory.mktemp("served") / "run")
    ingest_once([str(folder)], folder / "run.duckdb", IngestOptions(finish=cli.Composition().analysis()))
    return folder


@pytest.mark.parametrize("name", SAMPLES, ids=short)
def test_the_page_of_a_sample_trace(name: str, sample_database: Database) -> None:
    path = sample_database(name)
    report = report_of(path)
    content = page(report)
    assert len(content.encode()) < LIMIT_BYTES
    check_sections(content, report)
    check_budget(path, report, content)
    check_summary(path, content)


def test_the_page_of_a_run_directory_and_of_a_planted_run(served: Path, full: Path) -> None:
    for path in (served, full):
        report = report_of(path)
        content = page(report)
        check_sections(content, report)
        check_budget(path, report, content)
        check_summary(path, content)
    assert report.missing == {}, "the planted run has something everywhere"


def check_sections(content: str, report: Report) -> None:
    """Every section in its order; what has no data says why; a place for each figure that there is."""
    markup = parsed(content)
    names = [item.attributes["id"] for item in markup.elements if item.tag == "section"]
    assert names == [name for name, _, _ in SECTIONS]
    for item in markup.elements:
        if item.tag == "section" and item.attributes["id"] in report.missing:
            assert " ".join(report.missing[str(item.attributes["id"])].replace("`", "").split()) in " ".join(
                item.text.split()
            )
    places = {item.attributes["data-figure"] for item in markup.elements if "data-figure" in item.attributes}
    assert set(figures(report)) == places
    assert set(figure_data(content)["figures"]) == places
    ids = [item.attributes["id"] for item in markup.elements if "id" in item.attributes]
    assert len(ids) == len(set(ids))


def check_budget(path: Path, report: Report, content: str) -> None:
    """The bar's parts sum to the windows of the devices, exactly; its phases are those of `phases`."""
    budget = report.budget
    assert budget is not None
    with TraceStore.open(path) as store:
        (row,) = store.query(
            "SELECT sum(window_end_ns - window_start_ns) AS ns, sum(busy_ns) AS busy FROM devices"
        ).to_dicts()
    assert sum(part.ns for part in budget.parts) == budget.window_ns == row["ns"]
    assert [part.share for part in budget.parts] == [part.ns / budget.window_ns for part in budget.parts]
    assert budget.window_ns - budget.group_ns("idle", "unrecorded", "withheld") == row["busy"]
    for total in report.phases["totals"]:
        assert budget.group_ns(total["phase"]) == total["busy_ns"]
    markup = parsed(content)
    drawn = [int(item.attributes["data-ns"] or 0) for item in markup.elements if "data-ns" in item.attributes]
    assert drawn == [part.ns for part in budget.parts]
    widths = [float(found) for found in re.findall(r'width="([0-9.]+)%" height="64" fill="#', content)]
    assert widths == pytest.approx([100 * part.share for part in budget.parts], abs=5e-5)
    assert sum(widths) == pytest.approx(100, abs=5e-5 * len(widths))
    cells = [
        item
        for item in markup.elements
        if item.tag == "data" and "budget-parts" in item.parents and item.text.endswith("%")
    ]
    assert [float(str(item.attributes["value"])) for item in cells] == [*(part.share for part in budget.parts), 1.0]
    assert [item.text for item in cells] == [*(percent(part.share) for part in budget.parts), "100.0 %"]
    printed = sum(round(float(item.text.removesuffix(" %")) * 10) for item in cells[:-1])
    said = re.findall(r"as printed they add up to ([0-9.]+) %", budget_text(markup))
    assert said == ([] if printed == 1000 else [f"{printed / 10:.1f}"])


def budget_text(markup: Markup) -> str:
    """What the section of the time budget says."""
    return next(item.text for item in markup.elements if item.attributes.get("id") == "budget")


def check_summary(path: Path, content: str) -> None:
    """Each number that names a place in `summary --json` equals it, and each number there is on the page."""
    with TraceStore.open(path) as store:
        summary = json.loads(json.dumps(summarize(store).to_dict(), default=str))
    found: dict[str, str] = {}
    for item in parsed(content).elements:
        if item.tag == "data" and (key := item.attributes.get("data-key")) is not None:
            found[key] = str(item.attributes["value"])
    expected = {}
    for table in ("devices", "steps", "categories", "latency", "requests"):
        for i, row in enumerate(summary[table]):
            for name, value in row.items():
                if not isinstance(value, str) and name not in (
                    "rank",
                    "device",
                    "window_start_ns",
                    "window_end_ns",
                    "span_ns",
                    "kind",
                    "pass",
                    "name",
                    "vendor",
                    "category",
                ):
                    expected[f"{table}.{i}.{name}"] = value
    if summary["requests"] == []:
        expected = {key: value for key, value in expected.items() if not key.startswith("latency")}
    expected |= {f"overhead.{name}": value for name, value in (summary["overhead"] or {}).items()}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key] == ("" if value is None else repr(value)), key


def test_withheld_times_are_not_on_the_page(sample_database: Database) -> None:
    """A slice whose idle time is withheld: the bar keeps idle and unrecorded time together, and says why."""
    path = sample_database("gpu-traces/sglang_decode/sglang_Qwen3-8B_decode.json.gz")
    report = report_of(path)
    assert report.budget is not None
    groups = {part.group for part in report.budget.parts}
    assert "withheld" in groups and not groups & {"idle", "unrecorded"}
    assert report.summary.devices[0]["idle_ns"] is None
    verdict = next(item.text for item in parsed(page(report)).elements if item.attributes.get("id") == "verdict")
    assert "97.9 % cannot be divided: 97.8 % of the window is not recorded" in verdict


@pytest.mark.parametrize(
    ("affects", "groups"),
    [
        (["devices.busy_ns"], {"withheld"}),
        (["devices.idle_ns"], {"prefill", "decode", "withheld"}),
        (["gaps.cause"], {"prefill", "decode", "idle"}),
        (["steps.prefill_ns"], {"busy", "idle"}),
    ],
)
def test_what_health_withholds_leaves_the_bar_whole(affects: list[str], groups: set[str], tmp_path: Path) -> None:
    path = planted(tmp_path / "run.duckdb", steps=10)
    with duckdb.connect(str(path)) as con:
        con.execute(
            "INSERT INTO health (run_id, check_id, status, affects, message) VALUES (?, 'x', 'withheld', ?, 'because')",
            [RUN, json.dumps(affects)],
        )
    report = report_of(path)
    assert report.budget is not None
    assert {part.group for part in report.budget.parts} == groups
    assert sum(part.share for part in report.budget.parts) == pytest.approx(1, abs=1e-12)
    assert sum(part.ns for part in report.budget.parts) == report.budget.window_ns
    causes = [part for part in report.budget.parts if part.group == "idle"]
    assert len(causes) == (1 if affects == ["gaps.cause"] else 2 if "idle" in groups else 0)
    assert "because" in page(report)


def test_tables_that_contradict_each_other_show_no_bar(tmp_path: Path) -> None:
    path = planted(tmp_path / "run.duckdb", steps=10)
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE devices SET busy_ns = busy_ns + 1")
    report = report_of(path)
    assert report.budget is None
    assert "contradict each other" in page(report)


def part_of(ns: int, window_ns: int, group: str = "idle", name: str | None = "scheduler") -> Part:
    """A part of a budget."""
    return Part(group=group, name=name, ns=ns, n=1, share=ns / window_ns)


@given(st.integers(0, 10**18), st.integers(1, 10**18))
def test_shares_are_rounded_one_by_one(ns: int, more: int) -> None:
    part = part_of(ns, ns + more)
    assert f"{part.tenths / 10:.1f} %" == percent(part.share), "as every other percentage of the page"
    assert abs(part.tenths - 1000 * part.share) <= 0.5 + 1e-9


def test_printed_shares_that_miss_the_whole_are_said_to_be_rounded(full: Path) -> None:
    report = report_of(full)
    thirds = Budget(
        window_ns=3, devices=1, parts=[part_of(1, 3, name=name) for name in ("scheduler", "sync", "no_work")]
    )
    text = budget_text(parsed(page(replace(report, budget=thirds))))
    assert text.count("33.3 %") == 6, "in the bar and in the table"
    assert text.count("rounded") == 1 and "as printed they add up to 99.9 %" in text
    halves = Budget(window_ns=2, devices=1, parts=[part_of(1, 2, name=name) for name in ("scheduler", "sync")])
    assert "rounded" not in budget_text(parsed(page(replace(report, budget=halves))))


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG counts it: from 3 on an area can be told from what it lies on."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_causes_of_idleness_are_told_apart_without_colour(full: Path) -> None:
    fills = {cause: cause_fill(cause) for cause in HIDING}
    assert len({(fill.shape, fill.ink) for fill in fills.values()}) == len(HIDING), "any two can be neighbours"
    hues: dict[str, set[str]] = {}
    for cause, (who, _) in HIDING.items():
        hues.setdefault(who, set()).add(fills[cause].color)
    assert sum(len(colors) for colors in hues.values()) == len(set.union(*hues.values())), "a hue is of one owner"
    cards = re.findall(r"--card: (#[0-9a-f]{6});", page(report_of(full)))
    assert len(cards) == 2, "a light one and a dark one"
    for fill in fills.values():
        assert all(contrast(fill.color, card) >= 3 for card in cards), fill
        assert not fill.shape or contrast(fill.color, fill.ink) >= 3, fill


def test_the_bar_its_legend_and_the_figures_draw_a_cause_alike(full: Path) -> None:
    report = report_of(full)
    causes = list(HIDING)
    budget = Budget(window_ns=len(causes), devices=1, parts=[part_of(1, len(causes), name=cause) for cause in causes])
    content = page(replace(report, budget=budget))
    look = r' fill="(#\w+)"/>(?:<rect [^>]*fill="url\(#([\w-]+)\)"/>)?'
    bar, legend = (re.findall(pattern, content) for pattern in (f'height="64"{look}', f"{look}</svg>idle: "))
    assert bar == legend and len(bar) == len(causes)
    assert [color for color, _ in legend] == [cause_fill(cause).color for cause in causes]
    assert {name for _, name in legend if name} <= set(re.findall(r'<pattern id="([\w-]+)"', content))
    assert len({name for _, name in legend}) == len(causes)
    made = figures(report)
    drawn = {trace["name"]: trace["marker"] for name in ("idle", "energy") for trace in made[name]["data"]}
    for cause in ("host_launch", "no_work"):
        fill = cause_fill(cause)
        for marker in (drawn[cause], drawn.get(f"idle: {cause}", drawn[cause])):
            assert (marker["color"], marker["pattern"]["shape"], marker["pattern"]["fgcolor"]) == (
                fill.color, fill.shape, fill.ink,
            )  # fmt: skip


def test_statements_that_hovers_name_run(full: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(full), read_only=True) as con:
        for name in statement_names():
            rows = con.execute(sql_of(name, RUN)).fetchall()
            assert rows, name
    with duckdb.connect(str(full), read_only=True) as con:
        assert con.execute(sql_of("steps", "it's'; DROP TABLE runs; --")).fetchall() == []
    content = page(report_of(full))
    assert f"SQL: SELECT * FROM gaps WHERE run_id = &#x27;{RUN}&#x27;" in content
    for name, figure in figure_data(content)["figures"].items():
        hovers = [trace["hovertemplate"] for trace in figure["data"]]
        assert all(
            "SQL: SELECT" in hover or trace["name"].startswith("roof")
            for hover, trace in zip(hovers, figure["data"], strict=True)
        ), name


def test_text_of_a_recording_never_becomes_markup(tmp_path: Path) -> None:
    clean, hostile = (planted(tmp_path / f"{word[:1] or 'x'}.duckdb".replace("<", "h"), word) for word in ("", HOSTILE))
    content, plain = page(report_of(hostile)), page(report_of(clean))
    markup = parsed(content)
    assert [item.tag for item in markup.elements] == [item.tag for item in parsed(plain).elements]
    assert content.count("<script") == plain.count("<script") == 3
    assert content.count("</script") == 3
    assert not [name for item in markup.elements for name in item.attributes if name.startswith("on")]
    assert "hacked" not in re.sub(r"&lt;[^<]*", "", content)
    shown = next(item.text for item in markup.elements if item.attributes.get("id") == "kernels-table")
    assert "k0</script></title><script>" in shown, "a name is shown as it is"
    assert "\x1b" not in content and "\u2028" not in content
    for text in texts(figure_data(content)):
        markup_in = re.sub(r"</?(?:b|br|span|extra)(?: style='font-size:10px')?>", "", text)
        assert "<" not in markup_in, text


def test_the_policy_allows_the_pages_own_scripts_only(full: Path) -> None:
    content = page(report_of(full))
    (policy,) = (
        item.attributes["content"]
        for item in parsed(content).elements
        if item.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    scripts = re.findall(r"<script>(.*?)</script>", content, re.DOTALL)
    allowed = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (*scripts, plotly_library())
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["script-src"].split() == allowed
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    addresses = [
        value for item in parsed(content).elements for name in ("src", "href") if (value := item.attributes.get(name))
    ]
    assert all(value.startswith("#") for value in addresses)


def test_cdn_leaves_the_library_out_and_pins_it(full: Path) -> None:
    report = report_of(full)
    content = page(report, "cdn")
    assert len(content) < 400_000
    (script,) = (item for item in parsed(content).elements if item.attributes.get("src"))
    digest = base64.b64encode(hashlib.sha256(plotly_library().encode()).digest()).decode()
    assert script.attributes["integrity"] == f"sha256-{digest}"
    assert re.fullmatch(r"https://cdn\.plot\.ly/plotly-\d+\.\d+\.\d+\.min\.js", str(script.attributes["src"]))
    assert "script-src" in content and "https://cdn.plot.ly/plotly-" in content.partition("style-src")[0]


def test_figures_are_figures_of_plotly(full: Path) -> None:
    import plotly.graph_objects as go

    made = figures(report_of(full))
    assert set(made) == {"roofline", "timeline", "phases", "idle", "energy", "agents", "requests", "latency"}
    for figure in made.values():
        go.Figure(data=finite(figure["data"]), layout=finite(figure["layout"]))  # raises for an unknown property


def changed(path: Path, *statements: str) -> Report:
    """A report of a planted run after some statements."""
    with duckdb.connect(str(planted(path))) as con:
        for statement in statements:
            con.execute(statement)
    return report_of(path)


def test_panels_of_the_timeline_without_data_are_left_out(full: Path, tmp_path: Path) -> None:
    every = figures(report_of(full))["timeline"]
    assert {key for key in every["layout"] if key.startswith("yaxis")} == {"yaxis", "yaxis2", "yaxis3", "yaxis4"}
    assert "not recorded" not in every["layout"]["xaxis"]["title"]["text"]
    report = changed(
        tmp_path / "run.duckdb",
        "UPDATE steps SET prefill_reqs = NULL, decode_reqs = NULL, prefill_kv_tokens = NULL, decode_kv_tokens = NULL",
        "DELETE FROM ledger_steps",
    )
    figure = figures(report)["timeline"]
    assert {key for key in figure["layout"] if key.startswith("yaxis")} == {"yaxis", "yaxis2"}
    assert {trace["yaxis"] for trace in figure["data"]} == {"y", "y2"}, "an axis that is named is drawn"
    assert figure["layout"]["xaxis"]["anchor"] == "y2" and figure["layout"]["height"] < every["layout"]["height"]
    assert figure["layout"]["xaxis"]["title"]["text"].endswith("not recorded: requests in the step, KV cache")
    assert figure["lines"] == []
    report = changed(
        tmp_path / "other.duckdb",
        "UPDATE steps SET prefill_ns = NULL, decode_ns = NULL, other_ns = NULL, busy_ns = NULL, idle_ns = NULL, "
        "unrecorded_ns = NULL",
        "UPDATE ledger_steps SET waiting = NULL",
    )
    figure = figures(report)["timeline"]
    assert {trace["yaxis"] for trace in figure["data"]} == {"y", "y3", "y4"}
    assert figure["layout"]["xaxis"]["title"]["text"].endswith("not recorded: device time, requests that wait")
    assert figure["lines"] == ["prefill_reqs", "decode_reqs", "kv_usage"] and figure["stacked"] is False


def test_the_roofline_is_drawn_around_its_ridge(tmp_path: Path) -> None:
    report = changed(tmp_path / "run.duckdb", "UPDATE kernels SET flops = 1e-6 WHERE category = 'rope'")
    assert report.roofline is not None
    figure = figures(report)["roofline"]
    names = {trace["name"] for trace in figure["data"] if trace["mode"] == "markers"}
    assert names == {"steps (n = 20)", "kernels (n = 3)", "categories (n = 3)", "phases (n = 2)"}
    assert min(x for trace in figure["data"] for x in trace["x"]) > 1e-4
    marks = dict(zip(figure["layout"]["yaxis"]["tickvals"], figure["layout"]["yaxis"]["ticktext"], strict=True))
    assert marks[1e12] == "1 T" and marks[1e14] == "100 T" and marks[1e15] == "1 P"
    text = next(item.text for item in parsed(page(report)).elements if item.attributes.get("id") == "roofline")
    assert "Not drawn: 1 kernel (k3), 1 category (rope) below 0.0042 FLOP/byte, 5 powers of ten from the ridge" in text


def test_bytes_without_flop_are_a_known_cost_and_no_point(tmp_path: Path) -> None:
    report = changed(
        tmp_path / "run.duckdb",
        "UPDATE kernels SET flops = 0, intensity = 0",
        "UPDATE steps SET flops = 0, intensity = 0",
    )
    assert "roofline" not in figures(report)
    text = next(item.text for item in parsed(page(report)).elements if item.attributes.get("id") == "roofline")
    assert "Costs are known for 100.0 % of busy time." in text and "no cost is known" not in text
    assert "No point can be drawn: what the costs are known of (" in text
    assert "rope" in text and "moves bytes and computes nothing, and a point needs both." in text
    report = changed(
        tmp_path / "none.duckdb",
        "UPDATE kernels SET flops = NULL, bytes = NULL, intensity = NULL",
        "UPDATE steps SET flops = NULL, bytes = NULL, intensity = NULL",
    )
    text = next(item.text for item in parsed(page(report)).elements if item.attributes.get("id") == "roofline")
    assert "Costs are known for 0.0 % of busy time." in text and "No point can be drawn: no cost is known." in text


def test_the_caption_of_the_kernels_says_what_is_left_out_only_where_something_is(full: Path) -> None:
    report = report_of(full)
    assert "with the most time first" in page(report) and "the 500 with" not in page(report)
    many = replace(report, kernels=report.kernels * 200)
    assert "kernels by name, the 500 with the most time<" in page(many)


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    body = (
        '<p class="x">Of 1.4 %, 20.5 ms and 3 steps <b>5 J</b> 6 kB</p><td>1.4 %</td><li>2 s <code>a 5 % b</code> 7 min'
    )
    assert unbroken(body) == (
        '<p class="x">Of 1.4\u00a0%, 20.5\u00a0ms and 3 steps <b>5\u00a0J</b> 6\u00a0kB</p><td>1.4 %</td>'
        "<li>2\u00a0s <code>a 5 % b</code> 7\u00a0min"
    )


def test_findings_with_gain_confidence_and_fix(full: Path) -> None:
    verdict = next(item for item in parsed(page(report_of(full))).elements if item.attributes.get("id") == "verdict")
    assert "Predicted gain: 30.0 % of the engine's step time; confidence: between 20.0 % and 40.0 %." in verdict.text
    assert verdict.text.index("finding 1") < verdict.text.index("finding 2") < verdict.text.index("finding 3")
    assert "What to do: --flag" in verdict.text and "1 more" in verdict.text
    assert "No gain is predicted" in verdict.text.partition("1 more")[2]


def test_secrets_of_the_configuration_stay_out(tmp_path: Path) -> None:
    path = planted(tmp_path / "run.duckdb", steps=10)
    config = {
        "engine_env": {"HF_TOKEN": "s3cret"},
        "engine_facts": {"block_size": 16, "api_key": "s3cret"},
        "prompt": "s3cret",
    }
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE runs SET config = ?", [json.dumps(config)])
    content = page(report_of(path))
    assert "s3cret" not in content and "s3cret" not in json.dumps(figure_data(content))
    assert "block_size" in content


@pytest.mark.parametrize("config", ["[]", "null", '"text"', '{"engine_facts": [], "model_config": 3}'])
def test_odd_configurations_give_a_page(config: str, tmp_path: Path) -> None:
    path = planted(tmp_path / "run.duckdb", steps=5)
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE runs SET config = ?, created_ns = ?", [config, -(10**18)])
    parsed(page(report_of(path)))


def test_numbers_that_are_none_become_null(tmp_path: Path) -> None:
    path = planted(tmp_path / "run.duckdb", steps=5)
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE steps SET intensity = 'nan', flops = 'inf', interference_ns = NULL")
        con.execute("UPDATE health SET value = 'nan'")
    parsed(page(report_of(path)))
    assert finite({"a": [float("nan"), (float("inf"), 1.0)], "b": "x"}) == {"a": [None, [None, 1.0]], "b": "x"}


@given(st.text())
def test_packed_text_comes_back(content: str) -> None:
    raw = packed(content)
    assert re.fullmatch(r"[A-Za-z0-9+/=]+", raw)
    assert gzip.decompress(base64.b64decode(raw)).decode() == content.encode("utf-8", "replace").decode()


Run = Callable[..., tuple[int, str, str]]


def test_the_command_writes_a_page_and_says_so(run: Run, full: Path, tmp_path: Path) -> None:
    code, out, err = run("report", full)
    assert (code, out) == (0, "report.html\n")
    assert re.fullmatch(r"warning: message\n2\.\d MB\n", err)
    again = tmp_path / "deep" / "page.html"
    assert run("report", full, "-o", again, "--quiet", "--plotly", "cdn")[2] == "warning: message\n"
    assert again.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["deep", "report.html"]
    (tmp_path / "report.html").write_text("old")
    assert run("report", full)[0] == 0
    assert (tmp_path / "report.html").stat().st_size > 2_000_000


def test_places_that_cannot_be_written(run: Run, full: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    for target, words in ((tmp_path, "is a directory"), (tmp_path / "file" / "x.html", "cannot write")):
        code, out, err = run("report", full, "-o", target)
        assert (code, out) == (2, "") and words in err
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_a_page_replaces_another_whole(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert write_page(target, "é\ud800") == 3
    assert target.read_bytes() == "é?".encode()
    assert [item.name for item in tmp_path.iterdir()] == ["page.html"]
    link = tmp_path / "link.html"
    link.symlink_to(target)
    write_page(link, "through")
    assert link.is_symlink() and target.read_text() == "through", "such as /dev/stdout, which must stay"
    with pytest.raises(UsageProblem):
        write_page(tmp_path / ("x" * 300), "")


def test_a_run_with_nothing_in_it(run: Run, tmp_path: Path) -> None:
    Plant(tmp_path / "run.duckdb").con.close()
    code, _, err = run("report", tmp_path / "run.duckdb")
    assert code == 5 and "holds no kernels, steps, requests or sensor samples" in err
    assert not (tmp_path / "report.html").exists()


def test_requests_alone_give_a_page(tmp_path: Path) -> None:
    plant = Plant(tmp_path / "run.duckdb")
    plant.request("a", 0, 1, status="ok")
    plant.con.close()
    report = report_of(tmp_path / "run.duckdb")
    content = page(report)
    check_sections(content, report)
    assert set(report.missing) == {
        "agents",
        "budget",
        "timeline",
        "roofline",
        "idle",
        "energy",
        "phases",
        "kernels",
        "findings",
    }


def test_many_steps_are_kept_for_zooming(tmp_path: Path) -> None:
    path = planted(tmp_path / "run.duckdb", steps=5)
    with duckdb.connect(str(path)) as con:
        con.execute(
            "INSERT INTO steps BY NAME SELECT s.* REPLACE (s.seq + 5 * i AS seq, s.step_id + 5 * i AS step_id, "
            "s.device_start_ns + i * 2500000000 AS "
            "device_start_ns, s.device_end_ns + i * 2500000000 AS device_end_ns) "
            "FROM steps AS s, range(1, 200) AS t(i)"
        )
    content = page(report_of(path))
    detail = figure_data(content)["detail"]
    seq = memoryview(base64.b64decode(detail["columns"]["seq"]["data"])).cast("i")
    assert list(seq) == list(range(1000))
    assert len(content) < LIMIT_BYTES
    assert figure_data(page(report_of(planted(tmp_path / "few.duckdb", steps=STEPS))))["detail"] is None
