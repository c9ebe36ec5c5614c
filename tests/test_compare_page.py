"""The page of a comparison: its numbers are those of --json, what came of a recording is text, a browser draws it without asking anyone."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browser as chromium
import pytest
from compare_plant import KERNELS, Pass, RunPlant
from engine_harness import COMMAND
from report_plant import HOSTILE
from test_compare import CONFIG
from test_report import Element, figure_data, parsed, texts
from test_sample_traces import B200, H100, SGLANG_DECODE, VLLM_DECODE

from analyzers.compare import Question, compare
from analyzers.report.figures_compare import MOST_ROWS, comparison_figures
from analyzers.report.page_compare import SECTIONS, comparison_page
from analyzers.report.page_html import LONGEST_TEXT
from analyzers.report.palette import VERDICT

Database = Callable[..., Path]
Run = Callable[..., tuple[int, str, str]]
PICTURES = Path(__file__).resolve().parents[1] / "build" / "compare"
NUMBERS = ("base", "cand", "change", "low", "high", "n_base", "n_cand")


def planted(folder: Path, name: str, *passes: Pass, word: str = "", **rest: Any) -> Path:
    """A run database. `word` is in every text that a recording can bring."""
    config = CONFIG | {
        "engine_args": [f"flag-{name}{word}={name}{word}"],
        "workload": {"spec": f"agent{word}:turns={len(name)}"},
    }
    facts = {"engine_version": f"0.32.{name}{word}", "model": f"model{word}"}
    kernels = tuple((f"{kernel}{word}", f"{kind}{word}", f"{op}{word}", share) for kernel, kind, op, share in KERNELS)
    plant = RunPlant(path=folder / f"{name}.duckdb", seed=sum(map(ord, name)), config=config, facts=facts)
    return plant.write(*passes, kernels=kernels, **rest)


def pair_of_runs(folder: Path, word: str = "") -> tuple[Path, Path]:
    """A base, and a candidate that is worse in much, better and changed in something."""
    folder.mkdir(exist_ok=True)
    base = planted(folder, "one", Pass(), word=word, recorded=Pass(), steps=600, clock_mhz=1980.0)
    slower = Pass(slow=2.5, cached=128)
    cand = planted(folder, "two", slower, word=word, recorded=slower, steps=600, idle_ms=20.0, cause="host_launch")
    return base, cand


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return pair_of_runs(tmp_path_factory.mktemp("compared"))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same runs with markup in every name."""
    return pair_of_runs(tmp_path_factory.mktemp("hostile"), HOSTILE)


@pytest.fixture
def compared(run: Run) -> Run:
    """`compare` with these arguments."""
    return lambda *arguments: run("compare", *arguments)


def page_of(base: Path, *candidates: Path, gate: float | None = None) -> str:
    return comparison_page(compare(str(base), [str(item) for item in candidates], Question(gate=gate)))


def by_id(content: str, name: str) -> Element:
    return next(item for item in parsed(content).elements if item.attributes.get("id") == name)


def check_numbers(content: str, answer: dict[str, Any]) -> None:
    """Each number of the answer's rows and differences is on the page, exactly, and no other is; the figures draw the same."""
    expected: dict[str, Any] = {}
    for at, pair in enumerate(answer["pairs"]):
        for place, row in enumerate(pair["rows"]):
            expected |= {f"pairs.{at}.rows.{place}.{name}": row[name] for name in NUMBERS}
        for place, item in enumerate(pair["differences"]):
            sides = {name: item[name] for name in ("base", "cand") if type(item[name]) in (int, float)}
            expected |= {f"pairs.{at}.differences.{place}.{name}": value for name, value in sides.items()}
    found = {
        item.attributes["data-key"]: item.attributes["value"]
        for item in parsed(content).elements
        if "data-key" in item.attributes
    }
    assert found == {key: "" if value is None else repr(value) for key, value in expected.items()}
    judged = [row for pair in answer["pairs"] for row in pair["rows"] if row["change"] is not None]
    traces = [trace for figure in figure_data(content)["figures"].values() for trace in figure["data"]]
    drawn = [tuple(ends) for trace in traces for ends in trace.get("customdata", [])]
    assert sorted(drawn) == sorted((row["change"], row["low"], row["high"]) for row in judged)


def test_two_recordings_and_the_page_has_the_numbers_of_json(
    sample_database: Database, compared: Run, tmp_path: Path
) -> None:
    code, out, err = compared(sample_database(B200), sample_database(H100), "--json", "-o", "page.html")
    assert code == 0 and re.fullmatch(r"page\.html: 2\.\d MB\n", err)
    content = (tmp_path / "page.html").read_text(encoding="utf-8")
    answer = json.loads(out)
    check_numbers(content, answer)
    words = " ".join(by_id(content, "differences-1").text.split())
    assert "NVIDIA B200" in words and "NVIDIA H100 80GB HBM3" in words
    for item in answer["pairs"][0]["differences"]:
        assert item["name"] in words and item["note"] in words
    cautions = by_id(content, "cautions-1").text.lower()
    assert all(item.lower() in cautions for item in answer["pairs"][0]["cautions"])


def test_recordings_of_which_no_number_can_be_judged(sample_database: Database) -> None:
    content = page_of(sample_database(SGLANG_DECODE), sample_database(VLLM_DECODE))
    assert re.search(r"None of \d+ numbers could be judged", by_id(content, "verdict-1").text)
    assert "Not recorded on a side, so not compared: environment, workload" in by_id(content, "differences-1").text
    assert "No data: no number could be judged" in by_id(content, "changes-1").text
    assert "blocks of steps: 1, and 6 are needed to tell a spread" in by_id(content, "rows-1").text
    assert figure_data(content)["figures"] == {}


def test_sections_come_in_their_order_and_the_largest_change_first(runs: tuple[Path, Path]) -> None:
    base, cand = runs
    result = compare(str(base), [str(cand)], Question(gate=0.05))
    content = comparison_page(result)
    check_numbers(content, json.loads(json.dumps(result.to_dict())))
    names = [item.attributes["id"] for item in parsed(content).elements if item.tag == "section"]
    assert names == [*(f"{name}-1" for name, _, _ in SECTIONS), "methods"]
    verdict = by_id(content, "verdict-1").text
    (pair,) = result.pairs
    worse = [
        row for row in pair.rows if row.verdict == "worse" and row.group in ("latency", "throughput", "steps", "phases")
    ]
    order = sorted(worse, key=lambda row: -(row.change or 0))[:3]
    places = [verdict.index(f"{row.title}: +{100 * (row.change or 0):.0f}%") for row in order]
    assert places == sorted(places)
    assert (
        verdict.index("gate tripped")
        < verdict.index("Worse")
        < verdict.index("Better")
        < verdict.index("No difference found")
    )
    assert "trips the gate" in verdict and "the chance of any verdict is 5 %" in verdict
    assert f"Of {pair.judged} numbers judged" in verdict


def test_a_verdict_has_a_shape_as_well_as_a_colour(runs: tuple[Path, Path]) -> None:
    import plotly.graph_objects as go

    base, cand = runs
    result = compare(str(base), [str(cand)], Question(gate=0.05))
    figures = comparison_figures(result)
    assert set(figures) == {"changes-1", "shares-1"}
    marks = {}
    for made in figures.values():
        go.Figure(data=made["data"], layout=made["layout"])  # raises for an unknown property
        marks |= {
            trace["name"].split(" (")[0]: trace["marker"]["symbol"] for trace in made["data"] if "marker" in trace
        }
    assert set(marks) == {"worse", "worse, trips the gate", "better", "changed", "no difference"}
    assert len(set(marks.values())) == len(marks)
    assert len({glyph for _, _, glyph in VERDICT.values()}) == len(VERDICT)


def test_the_gate_is_drawn_where_it_reads_and_on_the_side_that_is_worse(runs: tuple[Path, Path]) -> None:
    base, cand = runs
    result = compare(str(base), [str(cand)], Question(gate=0.05))
    figure = comparison_figures(result)["changes-1"]
    gate, names = figure["data"][0], figure["layout"]["yaxis"]["ticktext"]
    ends = {names[round(y + 0.5)]: x for x, y in zip(gate["x"][::3], gate["y"][::3], strict=True)}
    rows = [
        row for row in result.pairs[0].rows if row.better and row.group in ("latency", "throughput", "steps", "phases")
    ]
    assert ends == {row.title: 0.95 if row.better == "higher" else 1.05 for row in rows if row.change is not None}
    assert ends["output tokens per second"] == 0.95
    without = comparison_figures(compare(str(base), [str(cand)], Question()))["changes-1"]
    assert {trace["mode"] for trace in without["data"]} == {"markers"}


def test_each_candidate_has_its_sections(runs: tuple[Path, Path]) -> None:
    base, cand = runs
    content = page_of(base, cand, base, gate=0.05)
    markup = parsed(content)
    names = [item.attributes["id"] for item in markup.elements if item.tag == "section"]
    assert names == ["candidates", *(f"{name}-{place}" for place in (1, 2) for name, _, _ in SECTIONS), "methods"]
    ids = [item.attributes["id"] for item in markup.elements if "id" in item.attributes]
    assert len(ids) == len(set(ids))
    targets = [str(item.attributes["href"]) for item in markup.elements if item.tag == "a"]
    assert {target.removeprefix("#") for target in targets} <= set(ids)
    assert "not tripped" in by_id(content, "candidates").text and "97.5 %" in by_id(content, "methods").text


def test_of_many_numbers_the_figure_shows_those_that_differ(tmp_path: Path) -> None:
    kernels = tuple((f"kernel{i}", f"category{i}", f"op{i}", 0.01) for i in range(100))
    paths = [
        RunPlant(path=tmp_path / f"{name}.duckdb", seed=seed).write(recorded=Pass(), steps=100, kernels=kernels)
        for seed, name in enumerate("ab")
    ]
    result = compare(str(paths[0]), [str(paths[1])], Question())
    content = comparison_page(result)
    assert result.pairs[0].judged > MOST_ROWS
    drawn = sum(len(trace["x"]) for figure in comparison_figures(result).values() for trace in figure["data"])
    assert drawn == MOST_ROWS
    assert f"{MOST_ROWS} of {result.pairs[0].judged} numbers" in by_id(content, "changes-1").text
    assert by_id(content, "rows-table-1").text.count("category") > MOST_ROWS


# ---- text of a recording


def test_text_of_a_recording_never_becomes_markup(runs: tuple[Path, Path], hostile: tuple[Path, Path]) -> None:
    content, plain = page_of(*hostile), page_of(*runs)
    markup = parsed(content)
    assert [item.tag for item in markup.elements] == [item.tag for item in parsed(plain).elements]
    assert content.count("<script") == content.count("</script") == 3
    assert not [name for item in markup.elements for name in item.attributes if name.startswith("on")]
    assert "</script></title><script>" in by_id(content, "rows-table-1").text, "a name is shown as it is"
    assert "</script></title><script>" in by_id(content, "differences-1").text
    assert "\x1b" not in content and "\u2028" not in content
    assert max(len(item.text) for item in markup.elements if item.tag in ("td", "th")) <= LONGEST_TEXT
    for text in texts(figure_data(content)):
        assert "<" not in re.sub(r"</?(?:b|br|extra)>", "", text), text
    addresses = [value for item in markup.elements for name in ("src", "href") if (value := item.attributes.get(name))]
    assert all(value.startswith("#") for value in addresses)


def test_a_path_with_markup_in_it_is_text(runs: tuple[Path, Path], tmp_path: Path) -> None:
    named = tmp_path / "<script>alert(1)<&script>.duckdb"
    named.write_bytes(runs[1].read_bytes())
    content = page_of(runs[0], named, runs[1])
    assert content.count("<script") == 3
    assert "<script>alert(1)<&script>" in by_id(content, "verdict-1").text


# ---- the file


def test_a_page_is_written_before_the_gate_ends_the_command(
    runs: tuple[Path, Path], compared: Run, tmp_path: Path
) -> None:
    target = tmp_path / "deep" / "page.html"
    code, out, err = compared(*runs, "--gate", "5%", "-o", target)
    assert (
        code == 6 and out.startswith("base ") and re.search(r"page\.html: 2\.\d MB\nerror: the gate of 5% tripped", err)
    )
    assert "gate tripped" in by_id(target.read_text(encoding="utf-8"), "verdict-1").text
    assert [item.name for item in target.parent.iterdir()] == ["page.html"]
    target.write_text("old")
    code, _, err = compared(*runs, "-o", target, "--plotly", "cdn")
    assert code == 0 and re.fullmatch(r".*page\.html: 0\.\d MB\n", err)
    (script,) = (item for item in parsed(target.read_text(encoding="utf-8")).elements if item.attributes.get("src"))
    assert str(script.attributes["integrity"]).startswith("sha256-")


def test_places_that_cannot_be_written_end_before_anything_is_printed(
    runs: tuple[Path, Path], compared: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("kept")
    full = [("/dev/full", "cannot write /dev/full: No space left on device")] if Path("/dev/full").exists() else []
    for target, words in ((tmp_path, "is a directory"), (tmp_path / "file" / "x.html", "cannot write"), *full):
        code, out, err = compared(*runs, "--gate", "5%", "--json", "-o", target)
        assert (code, out) == (2, "") and words in err, "and not the gate's 6: there is no page"
    assert [item.name for item in tmp_path.iterdir()] == ["file"]


def test_nothing_to_compare_writes_no_page(compared: Run, tmp_path: Path) -> None:
    paths = [RunPlant(path=tmp_path / f"{name}.duckdb").write() for name in "ab"]
    assert compared(*paths, "-o", "page.html")[0] == 5
    assert not (tmp_path / "page.html").exists()


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="no /dev/stdout on this system")
def test_a_page_on_stdout_is_alone_there(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with (tmp_path / "page.html").open("w") as file:
        subprocess.run(
            [*COMMAND, "compare", *map(str, runs), "-o", "/dev/stdout", "--plotly", "cdn"], stdout=file, check=True
        )
    content = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert content.startswith("<!DOCTYPE html>") and content.endswith("</html>\n")


# ---- a browser


def check_drawn(tab: chromium.Page) -> None:
    """Both figures drawn and as high as they say, nothing wider than the window, no complaint, no request, no name run as markup."""
    assert tab.run("document.documentElement.dataset.ready") == "yes"
    assert tab.run("[...document.querySelectorAll('.plot.drawn')].map((item) => item.id)") == [
        "plot-changes-1",
        "plot-shares-1",
    ]
    assert tab.run("[...document.querySelectorAll('.plot')].every((item) => item.clientHeight > 200)")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    assert tab.run("document.documentElement.dataset.hacked") is None
    assert tab.run("document.querySelectorAll('main img, main b b, .plot b, .plot img, section script').length") == 0
    assert tab.complaints() == []
    assert tab.requests() == []


@pytest.mark.slow
def test_the_page_in_a_browser(hostile: tuple[Path, Path], tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text(page_of(*hostile, gate=0.05), encoding="utf-8")
    with chromium.browser() as running:
        tab = running.open(target)
        check_drawn(tab)
        tab.picture(PICTURES / "light.png")
        check_hover(tab)
        check_table(tab)
        check_resized(tab)
        assert tab.paper(PICTURES / "page.pdf").read_bytes().startswith(b"%PDF")
        check_drawn(tab)
        tab.close()
        for name, options in (("dark", {"dark": True}), ("phone", {"width": 390, "height": 844})):
            tab = running.open(target, **options)
            check_drawn(tab)
            ticks = tab.run("[...document.querySelectorAll('#plot-changes-1 .xtick')].map((item) => item.textContent)")
            assert "0" in ticks and len(ticks) >= 3, "the line at zero has its mark on a phone too"
            tab.picture(PICTURES / f"{name}.png")
            tab.close()
        check_without_scripts(running, target)


def check_hover(tab: chromium.Page) -> None:
    """Pointing at a mark tells the number, its sides, its interval."""
    tab.point(*tab.centre("#plot-changes-1 .scatterlayer .trace .point"))
    shown = "document.querySelector('#plot-changes-1 .hoverlayer')?.textContent"
    tab.wait(f"{shown}?.includes('between')")
    assert "n = " in tab.run(shown) and "→" in tab.run(shown)
    tab.point(*tab.centre("#rows-table-1 td.n data"))
    tab.wait("!document.getElementById('tip').hidden")
    assert tab.run("document.getElementById('tip').textContent").startswith("exactly ")


def check_table(tab: chromium.Page) -> None:
    """Searched by words, sorted by a heading, all by keyboard."""
    rows = "[...document.querySelectorAll('#rows-table-1 tbody tr')].filter((row) => !row.hidden)"
    total = tab.run(f"{rows}.length")
    tab.run("document.getElementById('rows-search-1').focus()")
    tab.type("WORSE latency ttft")
    assert tab.run(f"{rows}.map((row) => row.cells[0].textContent)") == ["TTFT mean"]
    assert tab.run("document.querySelector('output').textContent") == f"1 of {total} rows"
    tab.run(
        "(() => { const box = document.getElementById('rows-search-1'); box.value = ''; box.dispatchEvent(new Event('input')); })()"
    )
    head = "[...document.querySelectorAll('#rows-table-1 th button')].find((item) => item.textContent === 'change')"
    tab.run(f"{head}.focus(); {head}.click()")
    values = tab.run(f"{rows}.map((row) => row.cells[5].querySelector('data').value).filter(Boolean).map(Number)")
    assert values == sorted(values, reverse=True) and len(values) > 10
    reached = "[...document.querySelectorAll('a, button, input, summary, .plot, .scroll')].every((item) => item.tabIndex >= 0)"
    assert tab.run(reached)


def check_resized(tab: chromium.Page) -> None:
    """A window of another width: the figures follow, and keep their height."""
    tab.call("Emulation.setDeviceMetricsOverride", width=900, height=800, deviceScaleFactor=1, mobile=False)
    tab.wait("document.querySelector('#plot-changes-1 .main-svg').clientWidth < 880")
    time.sleep(0.3)  # plotly draws once more when the size has settled
    check_drawn(tab)


def check_without_scripts(running: chromium.Browser, target: Path) -> None:
    tab = running.open(target, scripts=False)
    tab.call("Emulation.setScriptExecutionDisabled", value=False)  # to look at it; the page's own did not run
    assert tab.run("document.querySelectorAll('.plot.drawn').length") == 0
    assert tab.run("document.querySelectorAll('#rows-table-1 tbody tr').length") > 10
    assert tab.run("document.querySelector('.plot .wait').textContent").endswith("the tables hold the same numbers.")
    tab.close()
