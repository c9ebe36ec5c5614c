"""Request logs to planned requests: equal to a naive reading, and exact about what is wrong with a row."""

from __future__ import annotations

import csv
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.errors import UnreadableInput, UsageProblem
from traces.requestlogs.base import PLANNED_COLUMNS, LogOptions, RequestLogFrame, RowProblem
from traces.requestlogs.registry import read_request_log

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "workloads"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def shared(name: str) -> Path:
    path = DATA / name
    if not path.exists():
        pytest.skip(f"../shared/data/workloads/{name} is absent")
    return path


def azure(tmp_path: Path, *rows: str, **options: Any) -> RequestLogFrame:
    path = tmp_path / "azure.csv"
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return read_request_log(path, LogOptions(**options))


def mooncake(tmp_path: Path, *lines: str, **options: Any) -> RequestLogFrame:
    path = tmp_path / "mooncake.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return read_request_log(path, LogOptions(**options))


def row(timestamp: float = 0, tokens: int = 600, output: int = 5, ids: tuple[int, ...] = (1, 2)) -> str:
    return json.dumps({"timestamp": timestamp, "input_length": tokens, "output_length": output, "hash_ids": list(ids)})


def arrivals(log: RequestLogFrame) -> list[int]:
    return log.frame["arrival_ns"].to_list()


def naive_ns(text: str) -> int:
    """Nanoseconds of the 2023 spelling, without the product's parser."""
    whole, fraction = text.split(".")
    return (datetime.fromisoformat(whole) - datetime(1970, 1, 1)) // timedelta(seconds=1) * 10**9 + (  # noqa: DTZ001
        int(fraction.ljust(9, "0"))
    )


@pytest.mark.parametrize("name", ["AzureLLMInferenceTrace_code_2023.csv", "AzureLLMInferenceTrace_conv_2023.csv"])
def test_azure_equals_a_naive_reading(name: str) -> None:
    path = shared(name)
    log = read_request_log(path, LogOptions())
    with path.open(newline="") as source:
        rows = [(naive_ns(a), int(b), int(c)) for a, b, c in list(csv.reader(source))[1:]]
    assert log.format == "azure" and log.skipped == 0 and log.out_of_order == 0 and log.origin_ns == rows[0][0]
    assert log.frame.select("arrival_ns", "input_tokens", "output_tokens").rows() == [
        (ns - rows[0][0], context, generated) for ns, context, generated in rows
    ]
    assert log.frame["line"].to_list() == list(range(2, len(rows) + 2))
    assert dict(log.frame.schema) == PLANNED_COLUMNS


def test_azure_code_is_as_bursty_as_published_figures_say() -> None:
    log = read_request_log(shared("AzureLLMInferenceTrace_code_2023.csv"), LogOptions())
    seconds = [0] * (log.frame["arrival_ns"][-1] // 10**9 + 1)
    for ns in arrivals(log):
        seconds[ns // 10**9] += 1
    mean = sum(seconds) / len(seconds)
    dispersion = sum((count - mean) ** 2 for count in seconds) / len(seconds) / mean
    assert round(seconds.count(0) / len(seconds), 2) == 0.73
    assert round(dispersion, 1) == 13.2


@pytest.mark.parametrize(
    "name", ["mooncake_fast25_conversation_first400.jsonl", "mooncake_fast25_synthetic_trace.jsonl"]
)
def test_mooncake_equals_a_naive_reading(name: str) -> None:
    path = shared(name)
    log = read_request_log(path, LogOptions())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert log.format == "mooncake" and log.skipped == 0 and log.origin_ns is None and log.block_tokens == 512
    assert log.frame.select("arrival_ns", "input_tokens", "output_tokens", "hash_ids").rows() == [
        (item["timestamp"] * 10**6, item["input_length"], item["output_length"], item["hash_ids"]) for item in rows
    ]


def test_mooncake_prefix_structure_survives() -> None:
    log = read_request_log(shared("mooncake_fast25_synthetic_trace.jsonl"), LogOptions())
    seen: set[int] = set()
    reusable = 0
    for tokens, ids in log.frame.select("input_tokens", "hash_ids").iter_rows():
        leading = next((n for n, block in enumerate(ids) if block not in seen), len(ids))
        reusable += min(leading * 512, tokens)
        seen.update(ids)
    assert round(reusable / log.frame["input_tokens"].sum() * 100, 1) == 65.1


def test_azure_both_spellings_of_the_time_and_offsets(tmp_path: Path) -> None:
    log = azure(
        tmp_path,
        "2024-05-10 00:00:00.009930+00:00,1,2",
        "2024-05-10 00:00:00.0099301,1,2",
        "2024-05-10T00:00:00.009930200Z,1,2",
        "2024-05-10 02:00:01+02:00,1,2",
        "2024-05-09 22:30:02.5-0130,1,2",
        '"2024-05-10 00:00:03", 1 ,2',
    )
    assert arrivals(log) == [0, 100, 200, 990_070_000, 2_490_070_000, 2_990_070_000]
    assert log.origin_ns == 1_715_299_200_009_930_000 and log.skipped == 0


def test_azure_columns_go_by_name(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes("\ufeffModel,generatedtokens,ContextTokens,TIMESTAMP\r\nm,7,9,2023-01-01 00:00:00\r\n".encode())
    log = read_request_log(path, LogOptions())
    assert log.frame.select("input_tokens", "output_tokens").rows() == [(9, 7)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("2023-11-16 18:17:03.9,4808", "2 fields where the header names 3"),
        ("2023-11-16 18:17:03.9,4808,10,11", "4 fields where the header names 3"),
        ("yesterday,1,2", "TIMESTAMP is not a date and time"),
        ("2023-13-16 18:17:03,1,2", "TIMESTAMP is not a date and time"),
        ("2023-11-31 18:17:03,1,2", "TIMESTAMP is not a date and time"),
        ("9999-11-16 18:17:03,1,2", "TIMESTAMP is not a date and time"),
        ("2023-11-16 18:17:03,0,2", "ContextTokens is not a whole number from 1"),
        ("2023-11-16 18:17:03,1.5,2", "ContextTokens is not a whole number from 1"),
        ("2023-11-16 18:17:03,1,-2", "GeneratedTokens is not a whole number from 0"),
        ("2023-11-16 18:17:03,1,", "GeneratedTokens is not a whole number from 0"),
        ("2023-11-16 18:17:03,99999999999999999999,2", "ContextTokens is not a whole number from 1"),
        ("2023-11-16 18:17:03,4611686018427387904,2", "ContextTokens is not a whole number from 1"),
        ("\x00\x01\x02", "1 fields where the header names 3"),
    ],
)
def test_azure_bad_rows(bad: str, message: str, tmp_path: Path) -> None:
    good = "2023-11-16 18:17:03,1,2"
    log = azure(tmp_path, good, "", bad, good)
    assert log.frame["line"].to_list() == [2, 5]
    assert log.skipped == 1 and log.problems == (RowProblem(line=4, message=message),)
    with pytest.raises(UnreadableInput) as caught:
        azure(tmp_path, good, "", bad, good, bad_rows="stop")
    assert caught.value.message == f"{tmp_path / 'azure.csv'}:4: {message}"


def test_rows_out_of_order_are_put_in_order_and_counted(tmp_path: Path) -> None:
    log = azure(tmp_path, "2023-01-01 00:00:02,1,1", "2023-01-01 00:00:01,2,1", "2023-01-01 00:00:02,3,1")
    assert log.frame.select("index", "line", "arrival_ns", "input_tokens").rows() == [
        (0, 3, 0, 2), (1, 2, 10**9, 1), (2, 4, 10**9, 3),
    ]  # fmt: skip
    assert log.out_of_order == 1


def test_only_the_first_requests(tmp_path: Path) -> None:
    log = azure(tmp_path, "2023-01-01 00:00:02,1,1", "2023-01-01 00:00:01,2,1", first=1)
    assert log.frame.select("index", "input_tokens").rows() == [(0, 2)]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row(-1), "timestamp is not a number of milliseconds from 0"),
        (row().replace("0,", "NaN,", 1), "timestamp is not a number of milliseconds from 0"),
        (row().replace('"timestamp"', '"time"'), "timestamp is not a number of milliseconds from 0"),
        (row(1e30), "timestamp is not a number of milliseconds from 0"),
        (row(tokens=0, ids=()), "input_length is not a whole number from 1"),
        (row().replace("600", '"600"'), "input_length is not a whole number from 1"),
        (row(output=-1), "output_length is not a whole number from 0"),
        (row(ids=(1,)), "1 hash ids for 600 tokens in blocks of 512"),
        (row(ids=(1, 2, 3)), "3 hash ids for 600 tokens in blocks of 512"),
        (row().replace("[1, 2]", "[1, null]"), "hash_ids is not a list of whole numbers"),
        (row().replace("[1, 2]", '"1 2"'), "hash_ids is not a list of whole numbers"),
        (row()[:-5], "not JSON, or cut off"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "not JSON, or cut off"),
        ("nonsense", "not JSON, or cut off"),
    ],
)
def test_mooncake_bad_rows(bad: str, message: str, tmp_path: Path) -> None:
    log = mooncake(tmp_path, row(3000), "", bad, row(6000.5, output=0))
    assert log.frame.select("line", "arrival_ns", "output_tokens").rows() == [(1, 0, 5), (4, 3_000_500_000, 0)]
    assert log.skipped == 1 and log.problems == (RowProblem(line=3, message=message),)
    with pytest.raises(UnreadableInput, match=r"mooncake\.jsonl:3: "):
        mooncake(tmp_path, row(), "", bad, bad_rows="stop")


def test_files_that_are_no_log(tmp_path: Path) -> None:
    for text, message in (
        ("", "looks like none of the request logs known: azure, burstgpt, tracelab, coding_agent, bailian"),
        ("a,b\n1,2\n", "looks like none of the request logs known: azure, burstgpt, tracelab, coding_agent, bailian"),
        (HEADER, "holds no request"),
        (HEADER + "x,y,z\n", ":2: TIMESTAMP is not a date and time"),
    ):
        path = tmp_path / "log"
        path.write_text(text)
        with pytest.raises(UnreadableInput) as caught:
            read_request_log(path, LogOptions())
        assert message in caught.value.message
    with pytest.raises(UnreadableInput, match="No such file"):
        read_request_log(tmp_path / "none", LogOptions())
    path.write_text("1,2,3\n")
    with pytest.raises(UnreadableInput, match="are not named"):
        read_request_log(path, LogOptions(), name="azure")
    with pytest.raises(
        UsageProblem,
        match="unknown request-log format 'burst'; known: azure, burstgpt, tracelab, coding_agent, bailian",
    ):
        read_request_log(path, LogOptions(), name="burst")


@settings(max_examples=50, deadline=None)
@given(
    moment=st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)),  # noqa: DTZ001
    digits=st.integers(0, 9),
    offset_minutes=st.integers(-12 * 60, 14 * 60),
)
def test_any_time_is_read_to_the_nanosecond(
    tmp_path_factory: pytest.TempPathFactory, moment: datetime, digits: int, offset_minutes: int
) -> None:
    whole = moment.replace(microsecond=0)
    fraction = f"{moment.microsecond:06d}789"[:digits]
    sign, size = "-" if offset_minutes < 0 else "+", abs(offset_minutes)
    text = f"{whole:%Y-%m-%d %H:%M:%S}{'.' + fraction if digits else ''}{sign}{size // 60:02d}:{size % 60:02d}"
    expected = (whole - datetime(1970, 1, 1)) // timedelta(seconds=1) * 10**9 + int(fraction.ljust(9, "0"))  # noqa: DTZ001
    log = azure(tmp_path_factory.mktemp("azure"), f"{text},1,1")
    assert log.origin_ns == expected - offset_minutes * 60 * 10**9
