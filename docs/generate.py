"""Makes the generated parts of docs/: the data dictionary, the commands, the glossary. `--check` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import click  # noqa: E402

import cli  # noqa: E402
from analyzers.explain import glossary  # noqa: E402
from traces.store import schema_sql  # noqa: E402

_COLUMN = re.compile(r"    (\w+) ([A-Z]+)( NOT NULL)?,?\s*(?:-- (.*))?")


def data_dictionary() -> str:
    """Every table with its columns, types and units."""
    lines = [
        "# Data dictionary",
        "",
        "Made by `make docs` from `traces/schema.sql`. Times are nanoseconds, since the epoch or since the recording's own",
        "origin (`runs.clock`). Unknown is NULL, never 0. Every table has `run_id`.",
    ]
    comment: list[str] = []
    for line in schema_sql().splitlines():
        if line.startswith("--"):
            comment.append(line.removeprefix("--").strip())
        elif line.startswith("CREATE TABLE "):
            name = line.split()[2]
            lines += ["", f"## {name}", "", " ".join(comment), "", "| column | type | meaning |", "|---|---|---|"]
        elif (match := _COLUMN.fullmatch(line)) and match.group(1) != "run_id":
            text = (match.group(4) or "").replace("|", "\\|")
            lines.append(f"| {match.group(1)} | {match.group(2)} | {text} |")
        if not line.startswith("--"):
            comment = []
    return "\n".join(lines) + "\n"


def command_line() -> str:
    """The help text of every command."""
    lines = [
        "# Commands",
        "",
        "Made by `make docs` from the help texts.",
        "",
        "RUN is a `.duckdb` file or a run directory; `#run_id` behind it picks one of several runs (default: the newest).",
        "Data goes to stdout; progress, `error:` and `hint:` lines go to stderr.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 2 | usage: an option, a path that cannot be used, a query that fails, a full disk |",
        "| 3 | input that cannot be read at all |",
        "| 4 | the engine failed |",
        "| 5 | readable, but nothing to analyze; or numbers withheld under `--strict` |",
        "| 6 | a `--gate` tripped |",
        "| 130 | interrupted |",
        "| 143 | terminated |",
    ]
    shape = {"terminal_width": 100, "max_content_width": 100, "help_option_names": ["-h", "--help"]}
    root = click.Context(cli.stepscope, info_name="stepscope", **shape)
    for name in cli.COMMANDS:
        command = cli.stepscope.get_command(root, name)
        if command is None:  # listed, so it is there
            raise LookupError(name)
        context = click.Context(command, info_name=name, parent=root, **shape)
        text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
        lines += ["", f"## stepscope {name}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def glossary_page() -> str:
    """Every term of the glossary, by group."""
    lines = [
        "# Glossary",
        "",
        "Made by `make docs` from `analyzers/glossary.toml`; `stepscope explain TERM` prints the same. Tables and columns are in the",
        "[data dictionary](data-dictionary.md).",
    ]
    title = ""
    for item in glossary():
        if item.title != title:
            title = item.title
            lines += ["", f"## {title}", "", "| term | meaning |", "|---|---|"]
        more = f" To do: {item.todo}." if item.todo else ""
        spelled = f" ({', '.join(item.also)})" if item.also else ""
        lines.append(f"| {item.name}{spelled} | {item.text}{more} |".replace("\n", " "))
    return "\n".join(lines) + "\n"


DOCUMENTS = {"data-dictionary.md": data_dictionary, "cli.md": command_line, "glossary.md": glossary_page}


def stale() -> list[str]:
    """Names of the documents that are not what would be made now."""
    return [
        name
        for name, make in DOCUMENTS.items()
        if not (HERE / name).exists() or (HERE / name).read_text(encoding="utf-8") != make()
    ]


def main() -> int:
    """Write the documents, or with `--check` say which are out of date."""
    found = stale()
    if "--check" in sys.argv[1:]:
        sys.stderr.write("".join(f"docs/{name} is out of date: make docs\n" for name in found))
        return 1 if found else 0
    for name in found:
        scratch = HERE / f".{name}.part"
        scratch.write_text(DOCUMENTS[name](), encoding="utf-8")
        scratch.replace(HERE / name)
        sys.stdout.write(f"wrote docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
