"""Documents say what is so: generated parts are current, every command and every SQL in them runs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import duckdb
import pytest
from test_commands import served_run, small_trace
from trace_builder import DECODE, MIXED, MS, US, TraceBuilder

import cli
from traces.store import TraceStore, table_names

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN = [page for page in PAGES if page.name not in ("cli.md", "data-dictionary.md")]
NEEDS_AN_ENGINE = ("profile", "doctor", "attach", "calibrate", "prove")
A_RUN = ("RUN", "runs/…")  # what stands for any run


def commands(page: Path) -> list[str]:
    """Lines of code that call stepscope, without their comments."""
    found = []
    for line in page.read_text(encoding="utf-8").splitlines():
        code = line.removeprefix("    ")
        if code.startswith("stepscope "):
            found.append(
                re.sub(r"\[[^]]*\]", "", code.split("  #")[0]).strip()
            )  # a synopsis: without what may be left out
    return found


def statements(page: Path) -> list[str]:
    return re.findall(r"```sql\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


ALL_COMMANDS = [(page.name, line) for page in WRITTEN for line in commands(page)]
ALL_STATEMENTS = [(page.name, sql) for page in WRITTEN for sql in statements(page)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the documents speak of."""
    folder = tmp_path_factory.mktemp("desk")
    small_trace(folder / "trace.json.gz")
    TraceBuilder(rank=0).label(MS, 50 * US, MIXED).launched(MS + US, MS + 10 * US, 20 * US, 1).write(
        folder / "other.json.gz"
    )
    for rank in range(2):
        trace = TraceBuilder(rank=rank, world_size=2).label(MS, 50 * US, DECODE)
        trace.launched(MS + US, MS + 10 * US, (20 + rank) * US, 1).write(folder / "traces" / f"rank{rank}.json")
    served_run(folder / "runs" / "mine")
    served_run(folder / "served")
    (folder / "config.json").write_text(
        '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 1408, '
        '"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 1024, "torch_dtype": "bfloat16"}'
    )
    (folder / "power.csv").write_text("timestamp, index, power.draw [W]\n2024/01/31 12:34:56.789, 0, 123.45 W\n")
    (folder / "logs").mkdir()
    (folder / "logs" / "blocks.jsonl").write_text('{"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n')
    (folder / "logs" / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "?"}], "model": "m", "response": {"choices": [{"message": {"content": "!"}}], '
        '"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}}}\n'
    )
    for arguments in (["trace.json.gz"], ["runs/mine"], ["served", "-o", "run.duckdb"]):
        with contextlib.chdir(folder), pytest.raises(SystemExit) as stopped:
            cli.main(["ingest", *arguments, "--quiet"])
        assert stopped.value.code == 0
    (folder / "trace.csv").write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    with duckdb.connect(str(folder / "run.duckdb")) as con:  # as of a loop whose prompts were kept
        con.execute(
            "INSERT INTO reuse (run_id, request_id, piece, start_token, tokens) SELECT run_id, request_id, 'fresh', 0, prompt_tokens "
            "FROM requests"
        )
    (folder / "runs" / "agent").mkdir()
    shutil.copy(folder / "run.duckdb", folder / "runs" / "agent" / "run.duckdb")
    return folder


@pytest.mark.parametrize(("page", "line"), ALL_COMMANDS, ids=[f"{page}-{line[:50]}" for page, line in ALL_COMMANDS])
def test_a_command_of_the_documents_runs(
    page: str, line: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run.duckdb" if word in A_RUN else word for word in shlex.split(line)[1:]]
    if words[0] in NEEDS_AN_ENGINE:  # its options, at least
        root = cli.stepscope.make_context("stepscope", [words[0]])
        command = cli.stepscope.get_command(root, words[0])
        assert command is not None
        command.make_context(words[0], words[1:], parent=root)  # click keeps the help option it makes here
        return
    monkeypatch.chdir(desk)
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    found = capsys.readouterr()
    assert stopped.value.code == 0, found.err
    assert found.out.strip()


@pytest.mark.parametrize(("page", "sql"), ALL_STATEMENTS)
def test_sql_of_the_documents_runs(page: str, sql: str, desk: Path) -> None:
    with TraceStore.open(desk / "run.duckdb") as store:
        assert store.query(sql).columns


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def test_generated_documents_are_current() -> None:
    """`make docs` after a change of options or of schema.sql. A process of its own: click keeps parts of a command's help."""
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (0, "")


def test_every_table_and_column_is_explained() -> None:
    text = generator().data_dictionary()
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == table_names()
    rows = re.findall(r"^\| (\w+) \| ([A-Z]+) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 200
    assert [name for name, _, meaning in rows if not meaning.strip()] == []
    assert [name for name, _, meaning in rows if name.endswith("_ns") and "ns" not in meaning] == []


def test_the_documents_are_about_something() -> None:
    assert len(ALL_COMMANDS) > 20 and len(ALL_STATEMENTS) >= 4


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(("page", "sql"), ALL_STATEMENTS)
def test_sql_of_the_documents_runs_as_a_query(
    page: str, sql: str, desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(desk)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["query", "run.duckdb", sql, "--json"])
    found = capsys.readouterr()
    assert stopped.value.code == 0, found.err
    assert isinstance(json.loads(found.out), list)


INLINE = [
    (page.name, code) for page in WRITTEN for code in re.findall(r"`stepscope ([a-z][^`\n]*)`", page.read_text(encoding="utf-8"))
]  # fmt: skip


@pytest.mark.parametrize(("page", "code"), INLINE, ids=[f"{page}-{code[:40]}" for page, code in INLINE])
def test_commands_in_sentences_are_there_with_their_options(page: str, code: str) -> None:
    """Commands that stand in the text, in short: their names and options exist."""
    name, *words = code.split()
    assert name in cli.COMMANDS, code
    command = cli.stepscope.get_command(click.Context(cli.stepscope), name)
    assert command is not None
    known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)}
    assert [
        word for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words)) if word not in {*known, "--help"}
    ] == []
