"""Work with known answers, done and recorded in PyTorch: a load, matrix products, a small transformer, planted sleeps.

Run by path with the interpreter that has torch (`python torch_work.py REQUEST`): it imports torch and nothing of ours.
REQUEST is JSON: {"out": folder, "device": "auto" | "cpu" | "cuda", "load_s": float, "rest_s": float, "decode_steps": int,
"sleep_s": float}. A line of work.jsonl in the folder is written when a section is done, so that what came before a
failure is kept; the recording is loop.pt.trace.json beside it. Times are ns since the epoch.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

TRACE = "loop.pt.trace.json"
PREFILLS = 3
SLEEPS = 4  # of each place
REPEATS = 5  # of each product
GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The transformer, its batch, and the products (M, K, N), of which the last is the large one."""

    layers: int
    width: int
    heads: int
    inner: int
    vocab: int
    context: int
    prompt: int
    batch: int
    products: tuple[tuple[int, int, int], ...]


SIZES = {
    "cpu": Sizes(layers=2, width=512, heads=8, inner=2048, vocab=1024, context=320, prompt=256, batch=2,
                 products=((1, 256, 256), (37, 64, 101), (384, 384, 384))),
    "small": Sizes(layers=4, width=2048, heads=16, inner=8192, vocab=32000, context=1280, prompt=1024, batch=4,
                   products=((1, 2048, 2048), (37, 512, 1003), (4096, 4096, 4096))),
    "cuda": Sizes(layers=8, width=4096, heads=32, inner=14336, vocab=32000, context=2304, prompt=2048, batch=8,
                  products=((1, 4096, 4096), (37, 512, 1003), (1000, 4096, 14336), (8192, 8192, 8192))),
}  # fmt: skip


class Place:
    """The device, and what is computed there."""

    def __init__(self, device: str) -> None:
        wanted = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
        self.kind = wanted
        self.dtype = torch.float32
        self.sizes = SIZES["cpu"]
        if wanted == "cpu":
            torch.set_num_threads(1)  # then the thread that calls operators is the one that computes
            return
        ampere = torch.cuda.get_device_capability(0)[0] >= 8 or getattr(torch.version, "hip", None)
        self.dtype = torch.bfloat16 if ampere else torch.float16
        self.sizes = SIZES["cuda" if torch.cuda.mem_get_info()[0] >= 14 * GIB else "small"]

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.kind == "cuda":
            torch.cuda.synchronize()

    def random(self, *shape: int) -> Any:
        """Values small enough that many layers do not overflow 16 bits."""
        return torch.randn(*shape, device=self.kind, dtype=torch.float32).mul_(0.02).to(self.dtype)

    def facts(self) -> dict[str, Any]:
        on_gpu = self.kind == "cuda"
        hip = getattr(torch.version, "hip", None)
        return {
            "device_kind": "hip" if on_gpu and hip else self.kind, "torch_version": torch.__version__,
            "device_name": torch.cuda.get_device_name(0) if on_gpu else None, "driver_cuda": torch.version.cuda,
            "dtype": str(self.dtype).removeprefix("torch."),
        }  # fmt: skip


def nothing() -> None:
    """What happens where no sleep is planted."""


class Decoder:
    """A transformer decoder without biases: every product is one aten::mm of operands known beforehand."""

    def __init__(self, place: Place) -> None:
        self.place, sizes = place, place.sizes
        self.half_way: Callable[[], None] = nothing  # called in the middle of every forward
        self.head = sizes.width // sizes.heads
        self.embedding, self.unembedding = (
            place.random(sizes.vocab, sizes.width),
            place.random(sizes.vocab, sizes.width),
        )
        shapes = ((3 * sizes.width, sizes.width), (sizes.width, sizes.width), (sizes.inner, sizes.width))
        self.layers = [
            [place.random(*shape) for shape in (*shapes, (sizes.width, sizes.inner))] for _ in range(sizes.layers)
        ]
        cache = (sizes.batch, sizes.heads, sizes.context, self.head)
        self.cache = [(place.random(*cache), place.random(*cache)) for _ in range(sizes.layers)]
        self.tokens = torch.zeros(sizes.batch, dtype=torch.long, device=place.kind)
        self.position = torch.full((1,), sizes.prompt, dtype=torch.long, device=place.kind)

    def prefill(self, slot: int, prompt: Any) -> Any:
        """The first output token of one prompt; its keys and values go to `slot` of the cache."""

        def attention(layer: int, query: Any, key: Any, value: Any) -> Any:
            for cached, new in zip(self.cache[layer], (key, value), strict=True):
                cached[slot, :, : len(prompt)].copy_(new[0])
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

        return self._forward(prompt, 1, attention)[-1:]

    def decode(self) -> Any:
        """One more token of every slot. Attends to the whole cache, so that the shapes never change."""

        def attention(layer: int, query: Any, key: Any, value: Any) -> Any:
            keys, values = self.cache[layer]
            keys.index_copy_(2, self.position, key)
            values.index_copy_(2, self.position, value)
            return functional.scaled_dot_product_attention(query, keys, values)

        return self._forward(self.tokens, self.place.sizes.batch, attention)

    def _forward(self, tokens: Any, sequences: int, attention: Callable[..., Any]) -> Any:
        sizes = self.place.sizes
        hidden = functional.embedding(tokens, self.embedding)
        for number, (qkv, out, up, down) in enumerate(self.layers):
            if number == sizes.layers // 2:
                self.half_way()
            normed = functional.layer_norm(hidden, (sizes.width,))
            joined = functional.linear(normed, qkv).view(sequences, -1, 3, sizes.heads, self.head)
            mixed = attention(number, *(each.transpose(1, 2) for each in joined.unbind(2)))
            hidden = hidden + functional.linear(mixed.transpose(1, 2).reshape(len(tokens), sizes.width), out)
            normed = functional.layer_norm(hidden, (sizes.width,))
            hidden = hidden + functional.linear(functional.gelu(functional.linear(normed, up)), down)
        sampled = hidden[-1:] if sequences == 1 else hidden
        return functional.linear(functional.layer_norm(sampled, (sizes.width,)), self.unembedding).argmax(-1)

    def flops(self, tokens: int, sampled: int) -> int:
        """2·M·K·N of every product of a step over `tokens` tokens."""
        sizes = self.place.sizes
        weights = 4 * sizes.width * sizes.width + 2 * sizes.width * sizes.inner
        return 2 * tokens * weights * sizes.layers + 2 * sampled * sizes.width * sizes.vocab

    def attention_flops(self, prompt_tokens: int) -> int:
        """Of a prefill over one prompt (causal: half the square), or of a decode (0 tokens) over the whole cache."""
        sizes = self.place.sizes
        pairs = prompt_tokens**2 // 2 if prompt_tokens else sizes.batch * sizes.context
        return 4 * sizes.width * pairs * sizes.layers


class Loop:
    """What is recorded: products outside every step, then steps without and with a graph, with sleeps in between."""

    def __init__(self, place: Place, decode_steps: int, sleep_s: float) -> None:
        self.place, self.sleep_s, self.decode_steps = place, sleep_s, max(decode_steps, 2 * SLEEPS + 1)
        self.model = Decoder(place)
        self.prompt = torch.arange(place.sizes.prompt, device=place.kind) % place.sizes.vocab
        self.steps: list[dict[str, Any]] = []
        self.sleeps: list[dict[str, Any]] = []
        self.graph: Any = None
        self.pairs = [(place.random(m, k), place.random(k, n)) for m, k, n in place.sizes.products]

    def prepare(self) -> str | None:
        """Everything once, so that nothing is planned or loaded while recording; the graph. Why there is no graph."""
        for left, right in self.pairs:
            torch.mm(left, right)
        self.model.prefill(0, self.prompt)
        problem = None if self.place.kind == "cuda" else "graphs need a GPU"
        if self.place.kind == "cuda":
            beside = torch.cuda.Stream()
            beside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(beside):
                for _ in range(3):
                    self.model.decode()
            torch.cuda.current_stream().wait_stream(beside)
            try:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self.result = self.model.decode()
                graph.replay()
                self.graph = graph
            except RuntimeError as error:
                problem = f"capture failed: {str(error).partition(chr(10))[0][:150]}"
        else:
            self.model.decode()
        self.place.wait()
        return problem

    def run(self) -> None:
        """All of it, in order."""
        for left, right in self.pairs:
            for _ in range(REPEATS):
                torch.mm(left, right)
        self.place.wait()
        for slot in range(PREFILLS):
            self._step(1, len(self.prompt), 0, partial(self._prefill, slot % self.place.sizes.batch))
        between = range(1, 2 * SLEEPS, 2)
        within = range(2, 2 * SLEEPS + 1, 2)
        for number in range(self.decode_steps):
            if number in between:
                self._sleep("between steps")
            self.model.half_way = partial(self._sleep, "within a step") if number in within else nothing
            self._step(0, 0, self.place.sizes.batch, self.model.decode)
        self.model.half_way = nothing
        for _ in range(self.decode_steps if self.graph is not None else 0):
            self._step(0, 0, self.place.sizes.batch, self._replay)

    def _prefill(self, slot: int) -> Any:
        return self.model.prefill(slot, self.prompt)

    def _replay(self) -> Any:
        self.graph.replay()
        return self.result

    def _step(self, prompts: int, prompt_tokens: int, decodes: int, work: Callable[[], Any]) -> None:
        label = f"execute_context_{prompts}({prompt_tokens})_generation_{decodes}({decodes})"
        with torch.profiler.record_function(label):
            result = work()
        result.tolist()  # outside the label, as an engine's sampler is
        tokens = prompt_tokens + decodes
        self.steps.append({
            "label": label, "kind": "prefill" if prompts else "decode", "graph": work == self._replay,
            "mm_flops": self.model.flops(tokens, prompts + decodes),
            "attention_flops": self.model.attention_flops(prompt_tokens),
        })  # fmt: skip

    def _sleep(self, where: str) -> None:
        self.place.wait()
        start_ns = time.time_ns()
        time.sleep(self.sleep_s)
        self.sleeps.append({"where": where, "start_ns": start_ns, "end_ns": time.time_ns()})


def load(place: Place, rest_s: float, load_s: float) -> dict[str, Any]:
    """Products without a pause for `load_s`, with a rest before and after in which the device is resident and idle."""
    side = {"cpu": 512, "cuda": 8192}[place.kind] if place.sizes is not SIZES["small"] else 4096
    left, right = place.random(side, side), place.random(side, side)
    torch.mm(left, right)
    place.wait()
    time.sleep(rest_s)
    start_ns, products, busy_s = time.time_ns(), 0, 0.0
    waiting: list[tuple[Any, Any, int]] = []
    while time.time_ns() - start_ns < load_s * 1e9:
        if place.kind == "cpu":
            began = time.perf_counter()
            torch.mm(left, right)
            busy_s += time.perf_counter() - began
            products += 1
            continue
        begin, done = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(8):
            torch.mm(left, right)
        done.record()
        waiting.append((begin, done, 8))
        if len(waiting) > 3:  # the device always has two more blocks to do
            begin, done, count = waiting.pop(0)
            done.synchronize()
            busy_s, products = busy_s + begin.elapsed_time(done) / 1e3, products + count
    place.wait()
    end_ns = time.time_ns()
    for begin, done, count in waiting:
        busy_s, products = busy_s + begin.elapsed_time(done) / 1e3, products + count
    time.sleep(rest_s)
    return {
        "start_ns": start_ns, "end_ns": end_ns, "rest_s": rest_s, "busy_s": busy_s, "products": products, "side": side,
        "flops": 2 * side**3 * products,
    }  # fmt: skip


def record(loop: Loop, trace: Path) -> dict[str, int]:
    """Run the loop under the profiler, with shapes; returns the window that was recorded."""
    profiler = torch.profiler
    kinds = [profiler.ProfilerActivity.CPU]
    if loop.place.kind == "cuda":
        kinds.append(profiler.ProfilerActivity.CUDA)
    with profiler.profile(activities=kinds, record_shapes=True) as recording:
        loop.place.wait()
        start_ns = time.time_ns()
        loop.run()
        loop.place.wait()
        end_ns = time.time_ns()
    recording.export_chrome_trace(str(trace))
    return {"start_ns": start_ns, "end_ns": end_ns}


@contextmanager
def section(out: Path, name: str) -> Iterator[dict[str, Any]]:
    """What the block puts into the dictionary becomes a line of work.jsonl; so does why it failed."""
    found: dict[str, Any] = {}
    try:
        yield found
    except Exception as error:  # noqa: BLE001 - whatever it is, the other sections are worth having
        found["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
    with (out / "work.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"section": name, **found}) + "\n")


def main(request: dict[str, Any]) -> None:
    """The sections in order."""
    out = Path(request["out"])
    place = Place(request["device"])
    with section(out, "facts") as found:
        found |= place.facts()
    with torch.inference_mode():
        with section(out, "load") as found:
            found |= load(place, request["rest_s"], request["load_s"])
        with section(out, "loop") as found:
            loop = Loop(place, request["decode_steps"], request["sleep_s"])
            found["no_graph"] = loop.prepare()
            found |= record(loop, out / TRACE)
            found |= {"steps": loop.steps, "sleeps": loop.sleeps, "products": place.sizes.products, "repeats": REPEATS}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
