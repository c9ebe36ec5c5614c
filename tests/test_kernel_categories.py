"""Kernel categories: names of every library, the sample traces, and names made to be slow."""

from __future__ import annotations

import gzip
import json
import time
from collections import defaultdict
from pathlib import Path

import duckdb
import polars as pl
import pytest

from analyzers.kernels import CATEGORIES, apply_categories, categorize, mark_logits, rules

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"

# name, category, phase
KERNELS = [
    # compiler-generated: the fused operators' names mean nothing
    ("triton_poi_fused_all_reduce_add_rms_norm_0", "elementwise", None),
    ("triton_poi_fused_constant_pad_nd_moe_forward_0", "elementwise", None),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_2", "norm", None),
    ("triton_red_fused_all_reduce_sum_1", "reduce", None),
    ("triton_poi_fused_mul_silu_1", "activation", None),
    ("triton_tem_fused_mm_3", "gemm", None),
    # collectives
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "comm", None),
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "comm", None),
    ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "comm", None),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()", "comm", None),
    ("quickreduce::allreduce_prototype_twoshot<half>", "comm", None),
    # matrix products
    ("nvjet_sm103_tst_32x64_64x16_4x1_v_bz_splitK_TNN", "gemm", None),
    ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "gemm", None),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasLt::cublasSplitKParams<float>)", "gemm", None),
    ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1", "gemm", None),
    ("void marlin::Marlin<1125899906843648l, 256, 4, 8, 8, 4>(int4 const*)", "gemm", None),
    ("void cutlass::device_kernel<machete::MacheteKernelTemplate<cutlass::bfloat16_t>>", "gemm", None),
    ("void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0>", "gemm", None),
    ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int>>>", "gemm", None),
    ("void wvSplitK_hf_sml_<__hip_bfloat16, 64, 2>", "gemm", None),
    # experts
    ("void marlin_moe_wna16::Marlin<1125899906843648l>(int4 const*)", "moe", None),
    ("bmm_Bfloat16_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_dynBatch_sm100f", "moe", None),
    ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "moe", None),
    ("fused_moe_kernel", "moe", None),
    ("void vllm::moe::topkGatingSoftmax<4, 128, 4, 16, 32, int>(float const*)", "moe", None),
    ("void deep_gemm::sm90_fp8_m_grouped_gemm_contiguous", "moe", None),
    # attention: one phase only, or either
    ("fmhaSm100fKernel_QkvBfloat16OBfloat16H128PagedKvCausalP64StaticSwapsAbForGen", "attention", "decode"),
    ("fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext", "attention", "prefill"),
    ("void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0>", "attention", "decode"),
    ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<flashinfer::KernelTraits>", "attention", "prefill"),
    ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<flashinfer::KernelTraits>", "attention", None),
    ("void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16, ck_tile::Composed>", "attention", "decode"),
    ("kernel_unified_attention_2d", "attention", None),
    ("kernel_unified_attention_3d", "attention", "decode"),
    ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", "attention", None),
    ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>", "attention", None),
    ("_ZN7ck_tile6kentryILi2ENS_38FmhaBatchPrefillWithPagedKVCacheKernelINS_40", "attention", None),
    ("_fwd_grouped_kernel_stage1", "attention", "decode"),
    ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64>>", "attention", None),
    # the rest of a layer
    ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>", "kv_cache", None),
    ("void (anonymous namespace)::store_kvcache<2048l, 4, false, long>", "kv_cache", None),
    ("create_flashinfer_kv_indices_triton", "kv_cache", None),
    ("_compute_slot_mappings_kernel", "kv_cache", None),
    ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1E", "norm", None),
    ("kernel_cutlass_kernel_flashinfernormkernelsfused_add_rmsnormFusedAddRMSNorm", "norm", None),
    ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", "rope", None),
    ("_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16", "activation", None),
    ("void vllm::act_and_mul_kernel<c10::BFloat16, &(vllm::silu_kernel)>", "activation", None),
    ("void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>", "quantize", None),
    ("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", "sampling", None),
    ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>", "reduce", None),
    ("void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*)", "embedding", None),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", "elementwise", None),
    ("void rocprim::ROCPRIM_400200_NS::detail::trampoline_kernel<wrapped_scan_config<>>", "reduce", None),
    ("my_private_thing", "other", None),
]  # fmt: skip

OPERATORS = [
    ("_C::onednn_mm", "gemm"),
    ("aten::addmm", "gemm"),
    ("_C::cpu_attention_with_kv_cache", "attention"),
    ("vllm::unified_attention_with_output", "attention"),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
    ("_C::cpu_attn_reshape_and_cache", "kv_cache"),
    ("vllm::unified_kv_cache_update", "kv_cache"),
    ("_C::fused_gumbel_argmax", "sampling"),
    ("_C::rotary_embedding", "rope"),
    ("aten::native_layer_norm", "norm"),
    ("aten::silu", "activation"),
    ("aten::index_select", "embedding"),
    ("aten::mean", "reduce"),
    ("aten::mul", "elementwise"),
    ("aten::as_strided", "elementwise"),
    ("c10d::allreduce_", "comm"),
    ("vllm::something_new", "other"),
]


@pytest.mark.parametrize(("name", "category", "phase"), KERNELS)
def test_kernel(name: str, category: str, phase: str | None) -> None:
    assert categorize([name], "kernel").rows() == [(name, None, category, phase)]


@pytest.mark.parametrize(("name", "category"), OPERATORS)
def test_operator(name: str, category: str) -> None:
    assert categorize([name], "cpu_op")["category"].to_list() == [category]


def test_launching_operator_settles_a_generic_kernel() -> None:
    name = "void at::native::index_elementwise_kernel<128, 4>"
    both = categorize([name, name], "kernel", ["aten::embedding", None])
    assert both["category"].to_list() == ["embedding", "elementwise"]


def test_copies_and_sets_need_no_name() -> None:
    assert categorize(["Memcpy DtoD (Device -> Device)"], "memcpy")["category"].to_list() == ["memcpy"]
    assert categorize(["anything"], "memset")["category"].to_list() == ["memset"]


def test_order_and_repeats_are_kept() -> None:
    names = ["nvjet_x", "zzz", "nvjet_x"]
    assert categorize(names, "kernel").select("name", "category").rows() == [
        ("nvjet_x", "gemm"), ("zzz", "other"), ("nvjet_x", "gemm"),
    ]  # fmt: skip


def test_rules_name_known_categories_only() -> None:
    assert {rule.category for rule in rules()} <= set(CATEGORIES)
    assert {rule.phase for rule in rules()} <= {None, "prefill", "decode"}


def test_long_and_many_names_take_bounded_time() -> None:
    """1,000 names of 10 kB, as C++ templates make them, none of which a rule knows."""
    names = [f"void q<{'ab<c,' * 2_000}{i}>" for i in range(1_000)]
    start = time.process_time()
    assert categorize(names, "kernel")["category"].unique().to_list() == ["other"]
    assert time.process_time() - start < 5


def test_telling_end_of_a_long_name_is_seen() -> None:
    name = "void x<" + "y," * 5_000 + ">::paged_attention_v1"
    assert categorize([name], "kernel").row(0)[2:] == ("attention", "decode")


@pytest.fixture
def store() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(
        "create table kernels(run_id varchar, kernel_id bigint, kind varchar, name varchar, op_name varchar, "
        "category varchar, op_shapes json)"
    )
    con.executemany(
        "insert into kernels values (?, ?, ?, ?, ?, null, ?)",
        [
            ("r", 1, "kernel", "nvjet_a", "aten::mm", "[[16,4096],[4096,128256]]"),
            ("r", 2, "kernel", "nvjet_a", "aten::mm", "[[16,4096],[4096,4096]]"),
            ("r", 3, "kernel", "nvjet_b", None, None),
            ("r", 4, "memcpy", "Memcpy DtoH", None, None),
            ("r", 5, "cpu_op", "aten::mm", None, None),
            ("other", 6, "kernel", "nvjet_a", None, None),
        ],
    )
    return con


def test_categories_are_written_for_one_run(store: duckdb.DuckDBPyConnection) -> None:
    table = apply_categories(store, "r")
    rows = store.execute("select kernel_id, category from kernels order by 1").fetchall()
    assert rows == [(1, "gemm"), (2, "gemm"), (3, "gemm"), (4, "memcpy"), (5, "gemm"), (6, None)]
    assert table.columns == ["kind", "name", "op_name", "category", "phase"]
    assert table.height == 4
    assert apply_categories(store, "absent").is_empty()


def test_logits_are_gemms_as_wide_as_the_vocabulary(store: duckdb.DuckDBPyConnection) -> None:
    apply_categories(store, "r")
    assert mark_logits(store, "r", vocab_size=128_200) == 1
    assert mark_logits(store, "r", vocab_size=50_000) == 0
    rows = store.execute("select kernel_id from kernels where category = 'logits'").fetchall()
    assert rows == [(1,)]


def device_time(path: Path) -> pl.DataFrame:
    """kind, name, ns of a trace: kernels and copies, or operators' exclusive time where there is no device."""
    data = json.loads(gzip.decompress(path.read_bytes()))
    kinds = {"kernel": "kernel", "gpu_memcpy": "memcpy", "gpu_memset": "memset"}
    total: dict[tuple[str, str], float] = defaultdict(float)
    operators = []
    for event in data["traceEvents"]:
        if event.get("cat") in kinds:
            total[kinds[event["cat"]], event["name"]] += float(event["dur"])
        elif event.get("cat") == "cpu_op":
            operators.append((event["tid"], float(event["ts"]), -float(event["dur"]), event["name"]))
    if not total:
        stack: list[tuple[int, float, str]] = []
        for tid, ts, minus_dur, name in sorted(operators):
            while stack and (stack[-1][0] != tid or stack[-1][1] <= ts):
                stack.pop()
            if stack:
                total["cpu_op", stack[-1][2]] += minus_dur
            total["cpu_op", name] -= minus_dur
            stack.append((tid, ts - minus_dur, name))
    rows = [(kind, name, us) for (kind, name), us in total.items()]
    return pl.DataFrame(rows, schema=["kind", "name", "us"], orient="row")


TRACES = sorted(path for path in DATA.rglob("*.json.gz") if "traces" in str(path) and "capture" not in path.parts)


@pytest.mark.skipif(not DATA.exists(), reason="sample recordings are not here")
@pytest.mark.parametrize("path", TRACES, ids=lambda path: f"{path.parent.name}/{path.name[:20]}")
def test_little_of_a_sample_is_other(path: Path) -> None:
    times = device_time(path)
    other = 0.0
    for (kind,), part in times.group_by("kind"):
        categories = categorize(part["name"].to_list(), str(kind))["category"]
        other += float(part.filter(categories == "other")["us"].sum())
    assert other <= 0.02 * float(times["us"].sum())
