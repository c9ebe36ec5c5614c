"""Step labels: every form met in the samples and in public code, and what each cannot tell."""

from __future__ import annotations

import gzip
import json
from dataclasses import asdict
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.labels import CAVEATS, StepLabel, is_step_label, parse, parse_labels, prefer

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def stated(label: str) -> dict[str, object]:
    """The fields a label states, without the form."""
    read = parse(label)
    assert read is not None
    return {k: v for k, v in asdict(read).items() if v is not None and k != "form"}


def test_vllm_detailed_label_states_every_sum() -> None:
    read = parse("execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489sqsq37sqsk34489)")
    assert read == StepLabel(
        form="vllm_detailed", kind="mixed", engine="vllm", total_tokens=8192,
        prefill_reqs=9, prefill_tokens=8155, prefill_kv_tokens=8430, prefill_qq=7475785, prefill_qk=7671310,
        decode_reqs=37, decode_tokens=37, decode_kv_tokens=34489, decode_qq=37, decode_qk=34489,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("execute_772_context_1(sq772sk772sqsq595984sqsk595984)_generation_0(sq0sk0sqsq0sqsk0)", "prefill"),
        ("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)", "decode"),
        ("execute_0_context_0(sq0sk0sqsq0sqsk0)_generation_0(sq0sk0sqsq0sqsk0)", "other"),
        ("execute_context_1(100)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_3(3)", "decode"),
        ("execute_context_2(64)_generation_1(1)", "mixed"),
        ("execute_context_1(888_788544)_generation_0(0)", "prefill"),
        ("execute_context_0(0)_generation_0(0)", "other"),
        ("execute_new_2_cached_0", "prefill"),
        ("execute_new_0_cached_16", "decode"),
        ("execute_new_1_cached_16", "mixed"),
        ("step[EXTEND bs=4 toks=256]", "prefill"),
        ("step[ EXTEND bs=4 toks=512 ]", "prefill"),
        ("step[DECODE bs=8]", "decode"),
        ("step[DECODE smc-head-eager bs=4 toks=8]", "decode"),
        ("step[MIXED bs=2]", "mixed"),
        ("step[TARGET_VERIFY bs=23]", "decode"),
        ("step[VERIFY bs=4]", "decode"),
        ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", "decode"),
        ("step[DRAFT_EXTEND_V2 bs=4]", "decode"),
        ("step[IDLE bs=0]", "other"),
        ("step[SOMETHING_NEW bs=3]", "other"),
        ("ProfilerStep#6", "other"),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "prefill"),
        ("decode[bs=117/128 tok=117 d=117]", "decode"),
    ],
)
def test_kind_of_every_form(label: str, kind: str) -> None:
    read = parse(label)
    assert read is not None
    assert read.kind == kind
    assert read.form != "unknown"
    assert set(read.caveats) <= set(CAVEATS)


def test_plain_vllm_label_leaves_contexts_unknown() -> None:
    assert stated("execute_context_2(64)_generation_1(1)") == {
        "kind": "mixed", "engine": "vllm", "total_tokens": 65, "prefill_reqs": 2, "prefill_tokens": 64,
        "decode_reqs": 1, "decode_tokens": 1, "decode_qq": 1, "caveats": (),
    }  # fmt: skip


def test_square_in_the_b200_label_is_sum_of_squares() -> None:
    read = parse("execute_context_1(888_788544)_generation_0(0)")
    assert read is not None
    assert (read.form, read.prefill_tokens, read.prefill_qq) == ("vllm_squares", 888, 888**2)
    assert (read.prefill_kv_tokens, read.decode_kv_tokens) == (None, 0)


def test_sglang_detailed_extension() -> None:
    label = "step[EXTEND bs=7 toks=256 c_sq=256 c_sqsq=12256 c_sqsk=37856 c_sk=956 forward_id=9]"
    assert stated(label) == {
        "kind": "prefill", "engine": "sglang", "total_tokens": 256, "forward_id": 9,
        "prefill_reqs": 7, "prefill_tokens": 256, "prefill_kv_tokens": 956, "prefill_qq": 12256, "prefill_qk": 37856,
        "decode_reqs": 0, "decode_tokens": 0, "decode_kv_tokens": 0, "decode_qq": 0, "decode_qk": 0, "caveats": (),
    }  # fmt: skip


def test_sglang_mixed_files_one_token_extensions_under_decode() -> None:
    label = "step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=1 g_sk=12 g_sqsq=1 g_sqsk=12]"
    read = parse(label)
    assert read is not None
    assert (read.total_tokens, read.prefill_reqs, read.prefill_tokens, read.prefill_qk) == (6, 1, 5, 40)
    assert (read.decode_reqs, read.decode_tokens, read.decode_kv_tokens) == (1, 1, 12)
    assert read.caveats == ("filed_under_extend", "one_token_is_decode")


def test_sglang_decode_without_sums_does_not_invent_tokens() -> None:
    plain = parse("step[DECODE bs=8]")
    older = parse("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]")
    assert plain is not None
    assert older is not None
    assert (plain.decode_reqs, plain.decode_tokens, plain.caveats) == (8, None, ("tokens_not_stated",))
    # Σq² = 2 over two requests leaves one token each.
    assert (older.decode_tokens, older.caveats) == (2, ())


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("execute_12_context_0(sq0sk0sqsq0sqsk0)_generation_3(sq12sk300sqsq48sqsk1200)", ["generation_multi_token"]),
        (
            "execute_201_context_0(sq0sk0sqsq0sqsk0)_generation_2(sq201sk400sqsq40001sqsk40200)",
            ["generation_multi_token", "generation_long_query"],
        ),
        ("execute_context_0(0)_generation_32(128)", ["generation_multi_token"]),
        ("execute_context_0(0)_generation_2(500)", ["generation_multi_token", "generation_long_query"]),
        ("step[DECODE bs=64 g_sq=128 g_sqsq=256 g_sqsk=262144 g_sk=131072]", ["generation_multi_token"]),
        ("execute_9_context_1(sq4sk4sqsq16sqsk16)_generation_1(sq1sk9sqsq1sqsk9)", ["totals_disagree"]),
        ("execute_new_0_cached_3", ["new_request_is_context", "tokens_not_stated"]),
        ("step[TARGET_VERIFY bs=4]", ["tokens_not_stated", "verification", "filed_under_extend"]),
        ("step[MIXED bs=2]", ["filed_under_extend", "mixed_unsplit"]),
        ("decode[bs=117/128 tok=117 d=117]", ["padded_batch"]),
    ],
)
def test_what_a_label_cannot_tell_is_said(label: str, expected: list[str]) -> None:
    read = parse(label)
    assert read is not None
    assert list(read.caveats) == expected


@pytest.mark.parametrize(
    "name",
    [
        "scheduler.run_batch", "capture_32_FULL", "capture_32_DECODE", "nccl:_all_gather_base", "",
        "## Call CompiledFxGraph fud64jsrx ##", "execute_model", "step", "step[]", "copy_result_to_cpu",
        "execute_context_menu", "draft_extend",
    ],
)  # fmt: skip
def test_other_ranges_are_no_steps(name: str) -> None:
    assert not is_step_label(name)
    assert parse(name) is None


@pytest.mark.parametrize(
    "label",
    ["execute_context_1(9", "step[DECODE bs=1", "execute_context_0(0)_generation_" + "9" * 40 + "(1)",
     "step[DECODE " + "bs=1 " * 10_000 + "]"],
)  # fmt: skip
def test_damaged_labels_stay_steps_of_kind_other(label: str) -> None:
    assert parse(label) == StepLabel(form="unknown", kind="other", caveats=("unparsed",))


def test_nested_labels_of_one_step_become_one() -> None:
    outer = parse("step[DECODE bs=32]")
    inner = parse("execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)")
    assert outer is not None
    assert inner is not None
    both = prefer(outer, inner)
    assert both == prefer(inner, outer)
    assert (both.engine, both.form, both.decode_reqs, both.decode_kv_tokens) == ("sglang", "vllm_detailed", 32, 32785)
    assert both.caveats == ()


def test_nested_labels_that_disagree_say_so() -> None:
    one, two = parse("step[DECODE bs=4 g_sq=4 g_sqsq=4 g_sqsk=9 g_sk=9]"), parse("step[DECODE bs=5]")
    assert one is not None
    assert two is not None
    assert "nested_disagree" in prefer(one, two).caveats
    assert prefer(one, two).decode_reqs == 4


def test_profiler_step_yields_to_the_engine_label() -> None:
    engine, profiler = parse("execute_context_1(9)_generation_0(0)"), parse("ProfilerStep#3")
    assert engine is not None
    assert profiler is not None
    both = prefer(profiler, engine)
    assert (both.kind, both.prefill_tokens, both.forward_id, both.caveats) == ("prefill", 9, 3, ())


def test_frame_has_one_row_per_distinct_step_label() -> None:
    names = pl.Series(
        ["step[DECODE bs=8]", "aten::mm", None, "step[DECODE bs=8]", "execute_context_1(9)_generation_0(0)"]
    )
    frame = parse_labels(names)
    assert frame["label"].to_list() == ["step[DECODE bs=8]", "execute_context_1(9)_generation_0(0)"]
    assert frame["decode_tokens"].to_list() == [None, 0]
    assert frame["caveats"].to_list() == [["tokens_not_stated"], []]
    assert frame["prefill_tokens"].dtype == pl.Int64
    assert parse_labels(pl.Series([], dtype=pl.String)).schema == frame.schema


@settings(deadline=None)
@given(st.text(alphabet="executcontx_gra01289()sqk[]= #STEPDO", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    read = parse(text)
    assert (read is not None) == is_step_label(text)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=10, max_size=10))
def test_detailed_label_round_trips(sums: list[int]) -> None:
    creq, cq, ck, cqq, cqk, greq, gq, gk, gqq, gqk = sums
    text = (
        f"execute_{cq + gq}_context_{creq}(sq{cq}sk{ck}sqsq{cqq}sqsk{cqk})"
        f"_generation_{greq}(sq{gq}sk{gk}sqsq{gqq}sqsk{gqk})"
    )
    read = parse(text)
    assert read is not None
    prefill = [read.prefill_reqs, read.prefill_tokens, read.prefill_kv_tokens, read.prefill_qq, read.prefill_qk]
    decode = [read.decode_reqs, read.decode_tokens, read.decode_kv_tokens, read.decode_qq, read.decode_qk]
    assert prefill + decode == sums
    assert "totals_disagree" not in read.caveats


def annotations(path: Path) -> set[str]:
    data = json.loads(gzip.decompress(path.read_bytes()))
    events = data if isinstance(data, list) else data["traceEvents"]
    return {event["name"] for event in events if event.get("cat") == "user_annotation"}


@pytest.mark.skipif(not DATA.exists(), reason="sample recordings are not here")
@pytest.mark.parametrize("folder", ["engine-traces", "gpu-traces"])
def test_every_annotation_of_the_samples_is_understood(folder: str) -> None:
    names = set().union(*(annotations(path) for path in (DATA / folder).rglob("*.json.gz")))
    labels = {name for name in names if is_step_label(name)}
    assert labels
    assert {name for name in labels if (read := parse(name)) is None or read.form == "unknown"} == set()
    rest = {name for name in names - labels if not name.startswith(("scheduler.", "## Call", "nccl:", "capture_"))}
    assert rest <= {"copy_result_to_cpu"}
