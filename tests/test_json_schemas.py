"""`--json` of every command keeps its schema in docs/schemas, whatever the run; the schemas refuse what is wrong."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import json_schemas
import jsonschema
import pytest
from ledger_run import Run as LedgerRun
from ledger_run import alone
from reading_runs import ingested, served, traced
from shell import stepscope
from test_calibrate import calibration
from test_commands import broken_graphs

import cli
from profiler.doctor import Check, render

LOG = (
    '{"messages": [{"role": "user", "content": "?"}], "model": "m", "response": {"choices": [{"message": {"content": "!"}}], '
    '"usage": {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}}}}\n'
)
# command: its arguments; RUN stands for every run of `runs`. An answer of exit code 5 is none.
LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "summary": (("RUN",),),
    "steps": (("RUN",), ("RUN", "--kind", "decode")),
    "phases": (("RUN",),),
    "kernels": tuple(("RUN", "--by", by) for by in ("name", "category", "op", "step-kind")),
    "roofline": tuple(("RUN", "--by", by) for by in ("kernel", "category", "step", "phase")),
    "idle": (*(("RUN", "--by", by) for by in ("cause", "step-kind", "size")),),
    "idle-simulate": (("--simulate", "poisson:rate=2,n=20", "--model", "llama-3.1-8b", "--gpu", "H100-SXM"),),
    "requests": (("RUN",), ("RUN", "--pass", "all"), ("RUN", "--id", "c", "--pass", "all")),
    "energy": (("RUN",), ("RUN", "--price", "0.3")),
    "agents": (("RUN",), ("RUN", "--by", "turn")),
    "findings": (("RUN",),),
    "health": (("RUN",),),
    "compare": (("served", "served"), ("served", "traced"), ("alone", "alone")),
    "predict": (
        ("--model", "llama-3.1-8b", "--gpu", "H100-SXM"),
        ("--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--turns", "2", "--price", "3", "--tp", "2", "--add-prefill", "64",
         "--train-tokens", "1B", "--pp", "2"),
        ("--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--convention", "textbook"),
    ),
    "agentlog": (("chat.jsonl",), ("chat.jsonl", "--by", "turn"), ("chat.jsonl", "--model", "llama-3.1-8b", "--gpu", "H100-SXM")),
    "workload": (("poisson:rate=2,n=5",), ("agent:sessions=2,turns=2",)),
    "workload-describe": (("poisson:rate=2,n=20", "--describe"), ("agent:sessions=2,turns=2", "--describe")),
    "info": (("RUN",),),
    "query": (("RUN", "select * from steps"), ("RUN", "select 1 as a where false")),
    "explain": (("TTFT",), ("busy_ns",), (), ("graph_kernels", "RUN"), ("kernels.gemm", "RUN")),
}  # fmt: skip
# What measures this machine or starts an engine is answered from values.
CHECKS = [
    Check(name="engine", status="ok", found="vllm 0.32.0"),
    Check(name="gpu", status="warn", found="none", remedy="?"),
]
CALCULATED = {
    "doctor": [json.loads(render(CHECKS, as_json=True))],
    "calibrate": [json.loads(json.dumps(asdict(calibration())))],
}
NO_JSON = {
    "ingest",
    "analyze",
    "export",
    "report",
    "profile",
    "prove",
}  # profile --json is the summary; prove has docs/findings.md


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that differ in what is known of them."""
    folder = tmp_path_factory.mktemp("answers")
    for name in ("s", "t"):
        (folder / name).mkdir()
    return {
        "served": served(folder / "s"), "traced": traced(folder / "t"),
        "broken": ingested([broken_graphs(folder / "broken.json")], folder / "broken.duckdb"),
        "alone": alone(LedgerRun(folder / "alone")).ingest(),
    }  # fmt: skip


@pytest.fixture(scope="module")
def answers(runs: dict[str, Path]) -> dict[str, list[Any]]:
    """Every answer of every command."""
    (runs["alone"].parent / "chat.jsonl").write_text(LOG)
    found = {command: [stepscope_json(*line) for line in _lines(command, runs)] for command in LINES}
    found = {command: [item for item in given if item is not None] for command, given in found.items()}
    return {**found, **CALCULATED}


def _lines(command: str, runs: dict[str, Path]) -> Iterator[tuple[str, ...]]:
    words = {**{name: str(path) for name, path in runs.items()}, "chat.jsonl": str(runs["alone"].parent / "chat.jsonl")}
    for line in LINES[command]:
        for run in runs.values() if "RUN" in line else [Path()]:
            given = [str(run) if word == "RUN" else words.get(word, word) for word in line]
            flags = ["--describe"] if command == "workload-describe" else []
            yield (command.split("-", maxsplit=1)[0], *[word for word in given if word not in flags], *flags)


def stepscope_json(*line: str) -> Any:
    """The answer, or None where a run has nothing to say."""
    done = stepscope(*line, "--json")
    must = not any(name in word for word in line for name in ("traced", "broken", "alone"))
    assert done.code == 0 or (not must and done.code in (2, 5)), (line, done.err)
    return done.json() if done.code == 0 else None


@pytest.mark.parametrize("command", [*LINES, *CALCULATED])
def test_answers_keep_their_schema(command: str, answers: dict[str, list[Any]]) -> None:
    assert answers[command]
    if os.environ.get("STEPSCOPE_SCHEMAS") == "write":
        json_schemas.write(command, answers[command])
    schema = json_schemas.stored(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    for answer in answers[command]:
        jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("command", [*LINES, *CALCULATED])
def test_a_schema_refuses_what_is_wrong(command: str, answers: dict[str, list[Any]]) -> None:
    if command == "query":
        return  # its rows are the user's
    validator = jsonschema.Draft202012Validator(json_schemas.stored(command))
    answer = next(item for item in answers[command] if item)
    assert not validator.is_valid("text") and not validator.is_valid(None)
    whole = answer[0] if isinstance(answer, list) else answer
    for key in (validator.schema.get("items") or validator.schema)["required"]:
        less = copy.deepcopy(whole)
        del less[key]
        assert not validator.is_valid([less] if isinstance(answer, list) else less), key
        other = {**whole, key: object}  # of no JSON type at all
        assert not validator.is_valid([other] if isinstance(answer, list) else other) or not _typed(
            validator.schema, key
        ), key


def _typed(schema: dict[str, Any], key: str) -> bool:
    return bool((schema.get("items") or schema)["properties"][key])


def test_every_command_with_json_is_documented() -> None:
    page = (json_schemas.FOLDER.parent / "json.md").read_text(encoding="utf-8")
    assert {path.stem for path in json_schemas.FOLDER.glob("*.json")} == {*LINES, *CALCULATED}
    for command in (*LINES, *CALCULATED):
        assert f"schemas/{command}.json" in page
    assert set(cli.COMMANDS) - NO_JSON <= {command.split("-")[0] for command in (*LINES, *CALCULATED)}


def test_versions_are_in_the_answers(answers: dict[str, list[Any]]) -> None:
    page = (json_schemas.FOLDER.parent / "json.md").read_text(encoding="utf-8")
    for command, given in answers.items():
        version = {answer["version"] for answer in given if isinstance(answer, dict) and "version" in answer}
        (row,) = (line for line in page.splitlines() if line.startswith("|") and f"schemas/{command}.json" in line)
        assert row.split("|")[2].strip() == (str(*version) if version else "–"), row


def test_a_schema_of_samples() -> None:
    samples = [
        {"version": 1, "a_ns": 1, "b": None, "c": [{"d": "x"}]},
        {"version": 1, "a_ns": None, "b": 2, "e": True, "c": []},
    ]
    assert json_schemas.schema_of(samples) == {
        "type": "object", "required": ["version", "a_ns", "b", "c"],
        "properties": {
            "version": {"const": 1}, "a_ns": {"type": ["null", "number"]}, "b": {"type": ["integer", "null"]},
            "c": {"type": "array", "items": {"type": "object", "required": ["d"], "properties": {"d": {"type": ["null", "string"]}}}},
            "e": {"type": ["boolean", "null"]},
        },
    }  # fmt: skip
    assert json_schemas.schema_of([{"x": "y"}], "withheld") == {
        "type": "object",
        "additionalProperties": {"type": ["null", "string"]},
    }
