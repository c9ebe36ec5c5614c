"""The grammar of step labels: what an engine wrote on one iteration of its scheduler, read without guessing.

Symbols: q is the number of tokens a request computes in the step, k its context including those. A label may give,
per phase, Σq (`*_tokens`), Σk (`*_kv_tokens`), Σq² (`*_qq`) and Σq·k (`*_qk`). What it does not give is None.

Labels cannot tell everything; what one cannot tell, or only seems to, is listed in `caveats` (see CAVEATS).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

CAVEATS: dict[str, str] = {
    "generation_multi_token": "generation computes more tokens than it has requests: speculation, or a preempted "
    "request's recompute filed under generation",
    "generation_long_query": "a generation request computes more tokens than any speculation drafts: a preempted "
    "request's recompute filed under generation",
    "new_request_is_context": "requests are filed by first scheduling, not by progress: a cached request may still be "
    "in prefill",
    "one_token_is_decode": "every one-token request is filed under decode: a last chunk of one token is counted there",
    "mixed_unsplit": "the label does not say which part of the mixed step is prefill",
    "tokens_not_stated": "the label names requests but not how many tokens they compute",
    "verification": "verifies drafted tokens: several tokens per request, counted as decode",
    "draft_forward": "a forward of the draft model, part of the iteration around it",
    "filed_under_extend": "profiling by stage puts this step into the EXTEND file",
    "padded_batch": "the batch was padded to a graph size; the counts are without padding",
    "empty": "nothing was scheduled",
    "totals_disagree": "the label's total is not the sum of its phases",
    "nested_disagree": "two labels of one step contradict each other",
    "unknown_mode": "a mode this version does not know",
    "unparsed": "looks like a step label, but has no known form",
}

# With these a label's prefill and decode may not be the truth (method §3); the others leave counts open, not phases.
PHASE_CAVEATS = frozenset(
    {
        "generation_multi_token", "generation_long_query", "new_request_is_context", "one_token_is_decode",
        "mixed_unsplit", "totals_disagree", "nested_disagree", "unknown_mode", "unparsed",
    }
)  # fmt: skip

# The longest common speculation depth is well below this; a query that long is a recomputed prompt.
LONG_GENERATION_QUERY_TOKENS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLabel:
    """One label, read. Counts are tokens or requests; None where the label does not say."""

    form: str
    kind: str  # 'prefill' | 'decode' | 'mixed' | 'other'
    engine: str | None = None  # 'vllm' | 'sglang'; None where the form is no evidence of either
    total_tokens: int | None = None
    prefill_reqs: int | None = None
    prefill_tokens: int | None = None
    prefill_kv_tokens: int | None = None
    prefill_qq: int | None = None
    prefill_qk: int | None = None
    decode_reqs: int | None = None
    decode_tokens: int | None = None
    decode_kv_tokens: int | None = None
    decode_qq: int | None = None
    decode_qk: int | None = None
    forward_id: int | None = None  # the iteration number the label states (SGLang's forward_id, ProfilerStep's number)
    caveats: tuple[str, ...] = ()

    @property
    def known_fields(self) -> int:
        """How many quantities the label states."""
        return sum(getattr(self, name) is not None for name in _QUANTITIES)


TEXT_FIELDS = ("form", "kind", "engine")
_QUANTITIES = tuple(item.name for item in fields(StepLabel) if item.name not in {*TEXT_FIELDS, "caveats"})

_N = r"(\d{1,18})"
_SUMS = rf"\(sq{_N}sk{_N}sqsq{_N}sqsk{_N}\)"
_VLLM_DETAILED = re.compile(rf"execute_{_N}_context_{_N}{_SUMS}_generation_{_N}{_SUMS}")
_VLLM_PLAIN = re.compile(rf"execute_context_{_N}\({_N}(?:_{_N})?\)_generation_{_N}\({_N}(?:_{_N})?\)")
_VLLM_NEW_CACHED = re.compile(rf"execute_new_{_N}_cached_{_N}")
_SGLANG = re.compile(r"step\[\s*([A-Z][A-Z0-9_]*)([^\[\]]*)\]")
_PROFILER_STEP = re.compile(rf"ProfilerStep#{_N}\*?")
_ATOM = re.compile(r"(prefill|decode)\[(bs=.*)\]")
_PAIR = re.compile(r"(?<!\S)([a-z_]+)=(\d{1,18})(?:/(\d{1,18}))?(?!\S)")
_LOOKS_LIKE_STEP = re.compile(
    r"execute_(?:context_\d|\d+_context_\d|new_\d)|step\[\s*[A-Z]|ProfilerStep#\d|(?:prefill|decode)\[bs="
)
_MAX_LABEL_CHARS = 1_000


def is_step_label(name: str) -> bool:
    """Whether `name` marks a step, of a form known here or not. Graph-capture marks (`capture_32_FULL`) do not."""
    return _LOOKS_LIKE_STEP.match(name) is not None


def parse(label: str) -> StepLabel | None:
    """What `label` says; None where it is no step label. A step label of no known form is of kind 'other'."""
    if not is_step_label(label):
        return None
    if len(label) <= _MAX_LABEL_CHARS:
        for pattern, read in _FORMS:
            match = pattern.fullmatch(label.strip())
            if match is not None:
                return read(match)
    return StepLabel(form="unknown", kind="other", caveats=("unparsed",))


def prefer(first: StepLabel, second: StepLabel) -> StepLabel:
    """Two nested labels of one step as one: the richer leads, the other fills what it leaves open.

    `step[...]` proves SGLang even where a vLLM-like label was added beside it. Where both state a quantity and differ,
    the richer one stands and the caveat `nested_disagree` is added.
    """
    rich, poor = (first, second) if first.known_fields >= second.known_fields else (second, first)
    known = {name: getattr(rich, name) for name in _QUANTITIES}
    other = {name: getattr(poor, name) for name in _QUANTITIES}
    merged = {name: other[name] if value is None else value for name, value in known.items()}
    clash = any(None not in (known[n], other[n]) and known[n] != other[n] for n in _QUANTITIES if n != "forward_id")
    kinds = {rich.kind, poor.kind} - {"other"}
    caveats = dict.fromkeys(rich.caveats + poor.caveats)
    for stated, caveat in (("decode_tokens", "tokens_not_stated"), ("prefill_tokens", "mixed_unsplit")):
        if merged[stated] is not None:
            caveats.pop(caveat, None)
    if clash or len(kinds) > 1:
        caveats["nested_disagree"] = None
    engine = "sglang" if "sglang" in (rich.engine, poor.engine) else rich.engine or poor.engine
    kind = rich.kind if rich.kind != "other" else poor.kind
    return replace(rich, kind=kind, engine=engine, caveats=tuple(caveats), **merged)


def label_columns(parsed: Sequence[StepLabel]) -> dict[str, list[object]]:
    """The fields of StepLabel, one list each: TEXT_FIELDS are text, `caveats` a list of ids, the others whole numbers."""
    names = (*TEXT_FIELDS, *_QUANTITIES)
    columns: dict[str, list[object]] = {name: [getattr(label, name) for label in parsed] for name in names}
    columns["caveats"] = [list(label.caveats) for label in parsed]
    return columns


def label_frame(parsed: Sequence[StepLabel]) -> pl.DataFrame:
    """One row per label with the fields of StepLabel; `caveats` is a list of ids."""
    import polars as pl  # an ingest does without

    schema: dict[str, pl.DataType] = {name: pl.String() for name in TEXT_FIELDS}
    schema |= {name: pl.Int64() for name in _QUANTITIES}
    return pl.DataFrame(label_columns(parsed), schema=schema | {"caveats": pl.List(pl.String())})


def parse_labels(names: pl.Series) -> pl.DataFrame:
    """One row per distinct step label in `names`: `label` and the fields of StepLabel. Other names give no row."""
    import polars as pl

    texts = names.drop_nulls().unique(maintain_order=True).to_list()
    read = [(text, label) for text in texts if (label := parse(text)) is not None]
    data = label_frame([label for _, label in read])
    return data.select(pl.Series("label", [text for text, _ in read], dtype=pl.String), pl.all())


def _kind(prefill_reqs: int, decode_reqs: int) -> str:
    if prefill_reqs and decode_reqs:
        return "mixed"
    return "prefill" if prefill_reqs else "decode" if decode_reqs else "other"


_SEVERAL_TOKENS = frozenset({"generation_multi_token", "generation_long_query"})


def _generation_caveats(reqs: int | None, tokens: int | None, qq: int | None) -> list[str]:
    """Speculation or recompute shows as more tokens than requests (method §3)."""
    found = []
    if reqs is not None and tokens is not None and tokens > reqs:
        found.append("generation_multi_token")
        # Σq²/Σq is a token-weighted mean of q, hence at most the longest query.
        longest_at_least = tokens / reqs if qq is None else qq / tokens
        if longest_at_least > LONG_GENERATION_QUERY_TOKENS:
            found.append("generation_long_query")
    return found


def _read_vllm_detailed(match: re.Match[str]) -> StepLabel:
    total, c_reqs, c_q, c_k, c_qq, c_qk, g_reqs, g_q, g_k, g_qq, g_qk = (int(text) for text in match.groups())
    caveats = _generation_caveats(g_reqs, g_q, g_qq)
    if total != c_q + g_q:
        caveats.append("totals_disagree")
    if not c_reqs and not g_reqs:
        caveats.append("empty")
    return StepLabel(
        form="vllm_detailed", kind=_kind(c_reqs, g_reqs), engine="vllm", total_tokens=total,
        prefill_reqs=c_reqs, prefill_tokens=c_q, prefill_kv_tokens=c_k, prefill_qq=c_qq, prefill_qk=c_qk,
        decode_reqs=g_reqs, decode_tokens=g_q, decode_kv_tokens=g_k, decode_qq=g_qq, decode_qk=g_qk,
        caveats=tuple(caveats),
    )  # fmt: skip


def _read_vllm_plain(match: re.Match[str]) -> StepLabel:
    c_reqs, c_q, c_qq, g_reqs, g_q, g_qq = (None if text is None else int(text) for text in match.groups())
    if c_reqs is None or c_q is None or g_reqs is None or g_q is None:
        raise AssertionError(match.re.pattern)
    caveats = _generation_caveats(g_reqs, g_q, g_qq)
    if not c_reqs and not g_reqs:
        caveats.append("empty")
    squares = c_qq is not None or g_qq is not None
    c_none, g_none = (0 if c_reqs == 0 else None), (0 if g_reqs == 0 else None)  # sums over nobody are known
    return StepLabel(
        form="vllm_squares" if squares else "vllm_plain", kind=_kind(c_reqs, g_reqs), engine="vllm",
        total_tokens=c_q + g_q,
        prefill_reqs=c_reqs, prefill_tokens=c_q, prefill_kv_tokens=c_none, prefill_qk=c_none,
        prefill_qq=c_reqs if c_q == c_reqs else c_qq,  # q ≥ 1: as many tokens as requests leave only q = 1
        decode_reqs=g_reqs, decode_tokens=g_q, decode_kv_tokens=g_none, decode_qk=g_none,
        decode_qq=g_reqs if g_q == g_reqs else g_qq,
        caveats=tuple(caveats),
    )  # fmt: skip


def _read_vllm_new_cached(match: re.Match[str]) -> StepLabel:
    """vLLM of late 2025: requests scheduled for the first time, and the others. Tokens are not stated."""
    new, cached = (int(text) for text in match.groups())
    caveats = ["new_request_is_context", "tokens_not_stated"] if cached or new else ["empty"]
    # A cached request may be a prefill's later chunk, so the counts hold only where there is none.
    return StepLabel(
        form="vllm_new_cached", kind=_kind(new, cached), engine="vllm",
        prefill_reqs=new if cached == 0 else None, decode_reqs=0 if cached == 0 else None,
        caveats=tuple(caveats),
    )  # fmt: skip


_PREFILL_MODES = frozenset({"EXTEND", "SPLIT_PREFILL", "DLLM_EXTEND", "PREFILL"})
_VERIFY_MODES = frozenset({"TARGET_VERIFY", "VERIFY"})
_DRAFT_MODES = frozenset({"DRAFT", "DRAFT_EXTEND", "DRAFT_EXTEND_V2", "DRAFT_LOOP"})


def _read_sglang(match: re.Match[str]) -> StepLabel:
    mode, rest = match.groups()
    pairs = _pairs(rest)
    forward_id = pairs.get("forward_id")
    reqs, tokens = pairs.get("raw_bs", pairs.get("bs")), pairs.get("toks")
    form = "sglang_detailed" if any(key.endswith("sk") for key in pairs) else "sglang_plain"
    base = StepLabel(form=form, kind="other", engine="sglang", total_tokens=tokens, forward_id=forward_id)
    if mode in _PREFILL_MODES:
        return _sglang_prefill(base, pairs, reqs, tokens)
    if mode == "MIXED":
        return _sglang_mixed(base, pairs, tokens)
    if mode == "DECODE" or mode in _VERIFY_MODES or mode in _DRAFT_MODES:
        label = _sglang_decode(base, pairs, reqs, tokens)
        if mode == "DECODE":
            return label
        extra = ("verification", "filed_under_extend") if mode in _VERIFY_MODES else ("draft_forward",)
        # The mode says why there are several tokens; what is recomputed comes as an extension.
        plain = tuple(caveat for caveat in label.caveats if caveat not in _SEVERAL_TOKENS)
        return replace(label, caveats=plain + extra)
    return replace(base, caveats=("empty",) if mode == "IDLE" else ("unknown_mode",))


def _sglang_prefill(base: StepLabel, pairs: dict[str, int], reqs: int | None, tokens: int | None) -> StepLabel:
    return replace(
        base, kind="prefill", total_tokens=pairs.get("c_sq", tokens),
        prefill_reqs=reqs, prefill_tokens=pairs.get("c_sq", tokens), prefill_kv_tokens=pairs.get("c_sk"),
        prefill_qq=pairs.get("c_sqsq"), prefill_qk=pairs.get("c_sqsk"),
        decode_reqs=0, decode_tokens=0, decode_kv_tokens=0, decode_qq=0, decode_qk=0,
    )  # fmt: skip


def _sglang_decode(base: StepLabel, pairs: dict[str, int], reqs: int | None, tokens: int | None) -> StepLabel:
    # A verification's sums stand under c_ in some versions: it is built like an extension.
    side = "g" if any(key.startswith("g_") for key in pairs) else "c"
    qq = pairs.get(f"{side}_sqsq")
    new_tokens = pairs.get(f"{side}_sq", tokens)
    if new_tokens is None and qq is not None and qq == reqs:
        new_tokens = reqs  # Σq² = n with q ≥ 1 leaves only q = 1
    caveats = _generation_caveats(reqs, new_tokens, qq)
    if new_tokens is None:
        caveats.append("tokens_not_stated")
    return replace(
        base, kind="decode", total_tokens=new_tokens,
        prefill_reqs=0, prefill_tokens=0, prefill_kv_tokens=0, prefill_qq=0, prefill_qk=0,
        decode_reqs=reqs, decode_tokens=new_tokens, decode_kv_tokens=pairs.get(f"{side}_sk"),
        decode_qq=qq, decode_qk=pairs.get(f"{side}_sqsk"), caveats=tuple(caveats),
    )  # fmt: skip


def _sglang_mixed(base: StepLabel, pairs: dict[str, int], tokens: int | None) -> StepLabel:
    c_q, g_q = pairs.get("c_sq"), pairs.get("g_sq")
    total = tokens if c_q is None or g_q is None else c_q + g_q
    stated = {
        f"{phase}_{field}": pairs.get(f"{side}{key}")
        for phase, side in (("prefill", "c"), ("decode", "g"))
        for field, key in (("reqs", ""), ("tokens", "_sq"), ("kv_tokens", "_sk"), ("qq", "_sqsq"), ("qk", "_sqsk"))
    }
    caveats = ["filed_under_extend", "one_token_is_decode" if c_q is not None else "mixed_unsplit"]
    return replace(base, kind="mixed", total_tokens=total, caveats=tuple(caveats), **stated)  # type: ignore[arg-type]


def _read_profiler_step(match: re.Match[str]) -> StepLabel:
    return StepLabel(form="profiler_step", kind="other", forward_id=int(match.group(1)))


def _read_atom(match: re.Match[str]) -> StepLabel:
    """ATOM's labels: `prefill[bs=2 tok=9 ctx=[…]]`, `decode[bs=117/128 tok=117 d=117]` (real batch / padded batch)."""
    kind, rest = match.groups()
    pairs = _pairs(rest)
    reqs, tokens = pairs.get("bs"), pairs.get("tok")
    sums = {"kv_tokens": pairs.get("sk"), "qq": pairs.get("sqsq"), "qk": pairs.get("sqsk")}
    caveats = [] if kind == "prefill" else _generation_caveats(reqs, tokens, sums["qq"])
    if re.search(r"bs=\d+/\d+", rest):
        caveats.append("padded_batch")
    idle = "decode" if kind == "prefill" else "prefill"
    stated: dict[str, int | None] = {f"{idle}_{key}": 0 for key in ("reqs", "tokens", "kv_tokens", "qq", "qk")}
    stated |= {f"{kind}_reqs": reqs, f"{kind}_tokens": tokens} | {f"{kind}_{k}": v for k, v in sums.items()}
    base = StepLabel(form="atom", kind=kind, total_tokens=tokens, caveats=tuple(caveats))
    return replace(base, **stated)  # type: ignore[arg-type]


def _pairs(text: str) -> dict[str, int]:
    return {key: int(value) for key, value, _padded in _PAIR.findall(text)}


_FORMS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], StepLabel]], ...] = (
    (_VLLM_DETAILED, _read_vllm_detailed),
    (_VLLM_PLAIN, _read_vllm_plain),
    (_VLLM_NEW_CACHED, _read_vllm_new_cached),
    (_SGLANG, _read_sglang),
    (_PROFILER_STEP, _read_profiler_step),
    (_ATOM, _read_atom),
)
