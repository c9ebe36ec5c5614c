"""The report in a real browser: nothing asked for, nothing complained of, every figure drawn; pointing, sorting, searching, zooming.

Pictures and a print are kept under build/report/.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import browser as chromium
import duckdb
import pytest
from report_plant import HOSTILE, planted
from test_report import figure_data, report_of, served_run
from test_sample_traces import SAMPLES, short

import cli
from analyzers.report.page import SECTIONS, page
from analyzers.report_timeline import BINS, EXACT, binned
from traces.ingest import IngestOptions, ingest_once

Database = Callable[..., Path]
PICTURES = Path(__file__).resolve().parents[1] / "build" / "report"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running() -> Iterator[chromium.Browser]:
    """One browser for all tests here."""
    with chromium.browser() as found:
        yield found


def written(run: Path | str, target: Path) -> Path:
    target.write_text(page(report_of(run)), encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a run with something in every section."""
    folder = tmp_path_factory.mktemp("full")
    return written(planted(folder / "run.duckdb"), folder / "report.html")


@pytest.fixture(scope="module")
def opened(running: chromium.Browser, full: Path) -> Iterator[chromium.Page]:
    """That page, open."""
    tab = running.open(full)
    yield tab
    tab.close()


def check(tab: chromium.Page) -> None:
    """All figures drawn, every section there, no complaint, no request."""
    assert tab.run("document.documentElement.dataset.ready") == "yes"
    assert tab.run("[...document.querySelectorAll('section')].map((item) => item.id)") == [
        name for name, _, _ in SECTIONS
    ]
    assert tab.run("[...document.querySelectorAll('section')].every((item) => item.textContent.trim().length > 40)")
    assert tab.run("document.querySelectorAll('.plot').length === document.querySelectorAll('.plot.drawn').length")
    assert tab.run("document.querySelectorAll('.plot.drawn .main-svg').length > 0")
    assert tab.complaints() == []
    assert tab.requests() == []


def tip(tab: chromium.Page) -> str:
    """What the page's own tip says; '' where it is not shown."""
    return str(tab.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"))


@pytest.mark.parametrize("name", SAMPLES, ids=short)
def test_the_page_of_a_sample_trace(
    name: str, sample_database: Database, running: chromium.Browser, tmp_path: Path
) -> None:
    chromium.needed()
    tab = running.open(written(sample_database(name), tmp_path / "report.html"))
    check(tab)
    tab.point(*tab.centre(".bar .piece"))
    tab.wait("!document.getElementById('tip').hidden")
    assert "SQL: SELECT bound" in tip(tab)
    tab.run("scrollTo(0, 0)")
    tab.picture(PICTURES / f"{short(name)}.png")
    tab.close()


def test_the_page_of_a_run_directory(running: chromium.Browser, tmp_path: Path) -> None:
    folder = served_run(tmp_path / "run")
    ingest_once([str(folder)], folder / "run.duckdb", IngestOptions(finish=cli.Composition().analysis()))
    tab = running.open(written(folder, tmp_path / "report.html"))
    check(tab)
    assert "requests" in tab.run("[...document.querySelectorAll('.plot.drawn')].map((item) => item.dataset.figure)")
    tab.picture(PICTURES / "run_directory.png")
    tab.close()


def test_all_sections_with_data_in_light_and_dark_and_on_paper(
    running: chromium.Browser, opened: chromium.Page, full: Path
) -> None:
    check(opened)
    names = {"roofline", "timeline", "phases", "idle", "energy", "agents", "requests", "latency"}
    assert set(opened.run("[...document.querySelectorAll('.plot.drawn')].map((item) => item.dataset.figure)")) == names
    opened.picture(PICTURES / "full_light.png")
    dark = running.open(full, dark=True)
    check(dark)
    dark.picture(PICTURES / "full_dark.png")
    colours = [
        tab.run("getComputedStyle(document.querySelector('#timeline .xtick text')).fill") for tab in (opened, dark)
    ]
    assert colours[0] != colours[1], "figures follow the theme"
    assert dark.paper(PICTURES / "full.pdf").read_bytes().startswith(b"%PDF")
    assert dark.complaints() == []
    dark.close()


def test_pointing_at_figures_and_numbers_names_the_statement(opened: chromium.Page) -> None:
    for name, words in (("timeline", "FROM steps"), ("idle", "FROM gaps"), ("roofline", "FROM kernels")):
        mark = f"#plot-{name} .point path" if name != "timeline" else "#plot-timeline .bars .point path"
        x, y = opened.centre(
            mark if name != "roofline" else "#plot-roofline .scatterlayer .trace:nth-last-child(2) .point"
        )
        opened.point(x, y)
        opened.wait(f"document.querySelector('#plot-{name} .hoverlayer')?.textContent.includes('{words}')")
        assert "n = " in opened.run(f"document.querySelector('#plot-{name} .hoverlayer').textContent")
    opened.point(*opened.centre("#kernels-table td.n data"))
    opened.wait("!document.getElementById('tip').hidden")
    assert tip(opened).startswith("exactly 20\n") and "SQL: SELECT name, category" in tip(opened)
    opened.press("Escape", 27)
    assert tip(opened) == ""


def test_the_kernels_table_is_searched_and_sorted_by_keyboard(opened: chromium.Page) -> None:
    rows = "[...document.querySelectorAll('#kernels-table tbody tr')].filter((row) => !row.hidden).map((row) => row.cells[0].textContent)"
    before = opened.run(rows)
    assert sorted(before) == ["k0", "k1", "k2", "k3"]
    opened.run("document.getElementById('kernel-search').focus()")
    opened.type("NORM k")
    assert opened.run(rows) == ["k2"]
    assert opened.run("document.getElementById('kernel-count').textContent") == "1 of 4 rows"
    opened.run(
        "(() => { const box = document.getElementById('kernel-search'); box.value = ''; box.dispatchEvent(new Event('input')); })()"
    )
    opened.press("Tab", 9)
    assert opened.run("document.activeElement.closest('.scroll') !== null")
    opened.press("Tab", 9)
    assert opened.run("document.activeElement.textContent") == "kernel"
    for order in (sorted(before), sorted(before, reverse=True)):
        opened.run("document.activeElement.click()")
        assert opened.run(rows) == order
    assert opened.run("document.querySelector('#kernels-table th').getAttribute('aria-sort')") == "descending"


def test_the_bar_answers_the_keyboard(opened: chromium.Page) -> None:
    opened.run("document.querySelector('.bar .piece').focus()")
    assert "SQL: SELECT bound" in tip(opened)
    reached = "[...document.querySelectorAll('a, button, input, summary, .piece, .plot, .scroll')].every((item) => item.tabIndex >= 0)"
    assert opened.run(reached)


def test_text_of_a_recording_stays_text(running: chromium.Browser, tmp_path: Path) -> None:
    tab = running.open(written(planted(tmp_path / "run.duckdb", HOSTILE), tmp_path / "report.html"))
    check(tab)
    assert tab.run("document.documentElement.dataset.hacked") is None
    assert tab.run("document.querySelectorAll('main img, main b b, .plot b, .plot img, section script').length") == 0
    assert "<b>bold</b>" in tab.run("document.getElementById('kernels-table').textContent")
    x, y = tab.centre("#plot-requests .bars .point path")
    tab.point(x, y)
    tab.wait("document.querySelector('#plot-requests .hoverlayer')?.textContent.includes('</script>')")
    tab.point(*tab.centre("#kernels-table td.l"))
    assert tab.run("document.documentElement.dataset.hacked") is None
    assert tab.complaints() == [] and tab.requests() == []
    tab.picture(PICTURES / "hostile.png")
    tab.close()


def test_without_scripts_the_tables_are_there(running: chromium.Browser, full: Path) -> None:
    tab = running.open(full, scripts=False)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)  # to look at it; the page's own did not run
    assert tab.run("document.querySelectorAll('.plot.drawn').length") == 0
    assert tab.run("document.querySelectorAll('table').length") > 20
    assert tab.run("document.querySelector('.plot .wait').textContent").endswith("the tables hold the same numbers.")
    assert tab.run("document.querySelector('.bar .piece rect').getBoundingClientRect().width") > 10
    tab.picture(PICTURES / "without_scripts.png")
    tab.close()


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 4,000 steps."""
    path = planted(tmp_path_factory.mktemp("long") / "run.duckdb", steps=10)
    with duckdb.connect(str(path)) as con:
        con.execute(
            "INSERT INTO steps BY NAME SELECT s.* REPLACE (s.seq + 10 * i AS seq, s.step_id + 10 * i AS step_id, "
            "s.device_start_ns + i * 5000000000 "
            "AS device_start_ns, s.device_end_ns + i * 5000000000 + (i * 7919) % 50000000 AS device_end_ns) "
            "FROM steps AS s, range(1, 400) AS t(i)"
        )
    return path


def test_zooming_shows_steps_that_bins_hide(running: chromium.Browser, long_run: Path, tmp_path: Path) -> None:
    report = report_of(long_run)
    assert report.timeline is not None
    rows = report.timeline.rows
    tab = running.open(written(long_run, tmp_path / "report.html"))
    check(tab)
    node = "document.getElementById('plot-timeline')"
    first = tab.run(f"{node}.data.map((trace) => trace.y)")
    tab.run(f"Plotly.relayout({node}, {{'xaxis.range': [500000, 600000], 'xaxis.autorange': false}}).then(() => 0)")
    tab.wait(f"{node}.dataset.view?.startsWith('steps')")
    inside = rows.filter((rows["start_ns"] <= 600 * 10**9) & (rows["start_ns"] + rows["dur_ns"] >= 500 * 10**9))
    assert 0 < inside.height <= EXACT
    assert tab.run(f"{node}.dataset.view") == f"steps {inside.height}"
    shown = tab.run(f"{node}.data[1].y.filter((value) => value !== null)")
    expected = (inside.filter(inside["kind"] == "decode")["dur_ns"] / 1e6).to_list()
    assert shown == pytest.approx(expected, rel=1e-6)
    tab.picture(PICTURES / "zoomed.png", "#timeline")
    tab.run("document.querySelector('button[data-zoom=all]').click()")
    tab.wait(f"{node}.dataset.view?.startsWith('bins')")
    again = tab.run(f"{node}.data.map((trace) => trace.y)")
    assert tab.run(f"{node}.dataset.view") == f"bins {binned(rows).height}" and binned(rows).height <= BINS
    for python, script in zip(first, again, strict=True):
        assert numbers(python) == pytest.approx(numbers(script), rel=1e-5), "the page's bins are those of the model"
    for action in ("in", "left", "right", "out"):
        tab.run(f"document.querySelector('button[data-zoom={action}]').click()")
    assert tab.complaints() == []
    tab.close()


def numbers(values: list[Any]) -> list[float]:
    """None and 0 are drawn alike: not at all."""
    return [value or 0.0 for value in values]


def test_zooming_a_timeline_with_panels_left_out(running: chromium.Browser, long_run: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.duckdb"
    shutil.copy(long_run, path)
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE steps SET prefill_reqs = NULL, busy_ns = NULL, prefill_ns = NULL, decode_ns = NULL")
        con.execute("UPDATE steps SET other_ns = NULL, idle_ns = NULL, unrecorded_ns = NULL")
        con.execute("DELETE FROM ledger_steps")
    tab = running.open(written(path, tmp_path / "report.html"))
    check(tab)
    titles = "[...document.querySelectorAll('#plot-timeline :is(.xtitle, .ytitle, .y2title, .y3title, .y4title)')]"
    assert set(tab.run(f"{titles}.map((item) => item.textContent)")) == {
        "time since the start of the window, msnot recorded: device time, requests in prefill, requests that wait",
        "device span, ms",
        "requests",
        "KV, tokens",
    }
    node = "document.getElementById('plot-timeline')"
    tab.run(f"Plotly.relayout({node}, {{'xaxis.range': [500000, 600000], 'xaxis.autorange': false}}).then(() => 0)")
    tab.wait(f"{node}.dataset.view?.startsWith('steps')")
    values = tab.run(f"Object.fromEntries({node}.data.map((trace) => [trace.name, [...new Set(trace.y)]]))")
    assert values["requests in decode"] == [0, 4] or values["requests in decode"] == [4, 0]
    assert min(value for value in values["KV cache"] if value) >= 64, "tokens, not a share"
    assert tab.complaints() == []
    tab.close()


def test_paper_takes_few_bytes_and_leaves_the_page_as_it_was(
    running: chromium.Browser, long_run: Path, tmp_path: Path
) -> None:
    """A PDF keeps a picture for every shape with a pattern: bars that look alike are printed as one."""
    tab = running.open(written(long_run, tmp_path / "report.html"))
    state = (
        "[...document.querySelectorAll('.plot.drawn')].map((item) => ['.legend', '.xtitle', '.trace.bars .point > path']"
        ".map((part) => [...item.querySelectorAll(part)].map((node) => [node.getAttribute('d'), "
        "Math.round(node.getBoundingClientRect().top - item.getBoundingClientRect().top)])))"
    )
    bars = (
        "[...document.querySelectorAll('#plot-timeline .trace.bars .point > path')]"
        ".filter((item) => item.getAttribute('d') && item.style.fill.startsWith('url')).length"
    )
    before, many = tab.run(state), tab.run(bars)
    tab.run("window.addEventListener('beforeprint', () => { window.printed = " + bars + "; })")
    paper = tab.paper(PICTURES / "long.pdf")
    assert tab.run("window.printed") < 10 and many > 200
    assert paper.stat().st_size < 2_000_000
    assert tab.run(state) == before
    assert tab.complaints() == []
    tab.close()


LONG = (
    "void at::native::elementwise_kernel<128,4,at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    * 2
)


@pytest.fixture(scope="module")
def long_names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with a name that has no place to break in every text that a recording can bring, and numbers of many digits."""
    folder = tmp_path_factory.mktemp("names")
    path = planted(folder / "run.duckdb", LONG.replace(" ", "_"))
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE kernels SET category = 'elementwise', bound = 'inefficient', flops = 8.53e10")
        con.execute("UPDATE requests SET prompt_tokens = 131072, output_tokens = 16384, request_id = 'r' || request_id")
        con.execute("UPDATE requests SET client_request_id = 'conversation-000123 turn-000456 attempt-1'")
    return written(path, folder / "report.html")


@pytest.mark.parametrize("scripts", [True, False])
def test_no_page_is_wider_than_a_phone(running: chromium.Browser, long_names: Path, scripts: bool) -> None:
    tab = running.open(long_names, width=390, scripts=scripts)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)
    tab.run("document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    assert tab.run("document.documentElement.scrollWidth") == 390
    cut = (
        "[...document.querySelectorAll('h1, p, li, dd, dt, summary, h2, h3')].filter((item) => !item.closest('.scroll, nav')"
        " && item.scrollWidth > item.clientWidth + 1 && item.clientWidth).map((item) => item.textContent.slice(0, 60))"
    )
    assert tab.run(cut) == [], "nothing runs out of its own box either"
    labels = "[...document.querySelectorAll('.bar .onbar')].map((item) => item.getBoundingClientRect()).filter((box) => box.width)"
    places = tab.run(f"{labels}.map((box) => [box.left, box.right])")
    assert places and all(end < start for (_, end), (start, _) in pairwise(places)), "no label on another"
    if scripts:
        tab.picture(PICTURES / "phone.png")
    tab.close()


def test_tables_fit_into_a_wide_window(running: chromium.Browser, long_names: Path, opened: chromium.Page) -> None:
    tab = running.open(long_names)
    wide = (
        "[...document.querySelectorAll('#requests .scroll, #kernels .scroll')].filter((item) => "
        "item.scrollWidth > item.clientWidth).map((item) => item.ariaLabel)"
    )
    assert [tab.run(wide), opened.run(wide)] == [[], []]
    tab.close()


def test_detail_is_in_the_file(long_run: Path, tmp_path: Path) -> None:
    content = written(long_run, tmp_path / "report.html").read_text(encoding="utf-8")
    assert set(figure_data(content)["detail"]["columns"]) >= {"start_ms", "dur_ms", "seq", "kind", "kv_usage"}
