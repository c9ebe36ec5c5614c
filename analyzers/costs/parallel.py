"""How a model is divided over devices: tensor, pipeline, expert and data parallel."""

from __future__ import annotations

from dataclasses import dataclass, replace

from analyzers.costs.shape import ModelShape
from traces.errors import UsageProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Degrees, as vLLM counts them: a replica is `tensor` × `pipeline` devices, and there are `data` replicas.

    `expert`: over how many devices of one stage the routed experts are divided, whole ones each; 1: like other matrices,
    by tensor parallelism. Up to `tensor` they lie within a replica, beyond that several replicas share them.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1

    @property
    def devices(self) -> int:
        """Of the whole deployment."""
        return self.tensor * self.pipeline * self.data

    @property
    def shared_replicas(self) -> int:
        """Replicas whose tokens meet at the same experts."""
        return max(1, self.expert // self.tensor)

    def check(self, model: ModelShape) -> None:
        """Raises UsageProblem for a model that cannot be divided so."""
        if min(self.tensor, self.pipeline, self.expert, self.data) < 1:
            raise UsageProblem("a degree of parallelism below 1", hint="--tp, --pp, --ep and --dp are at least 1")
        if self.pipeline > model.layers:
            raise UsageProblem(
                f"{model.layers} layers cannot be divided over {self.pipeline} pipeline stages",
                hint=f"give --pp {model.layers} or less",
            )
        if self.expert == 1:
            return
        if model.moe is None:
            raise UsageProblem(f"{model.architecture} has no experts to divide", hint="leave out --ep")
        if model.moe.experts % self.expert:
            raise UsageProblem(
                f"{model.moe.experts} experts cannot be divided over {self.expert} ranks",
                hint="give an --ep that divides the number of experts",
            )
        spanned, rest = divmod(self.expert, self.tensor)
        if self.tensor % self.expert and (rest or self.data % spanned):
            raise UsageProblem(
                f"experts cannot be divided over {self.expert} of {self.tensor} × {self.data} devices",
                hint="--ep divides --tp, or is --tp times a divisor of --dp",
            )


def of_one_rank(model: ModelShape, parallel: Parallel) -> ModelShape:
    """What one device holds of each layer. Raises UsageProblem where the model cannot be divided so."""
    parallel.check(model)
    share = model.divided(parallel.tensor) if parallel.tensor > 1 else model
    if share.moe is None or model.moe is None or parallel.expert == 1:
        return share
    within = max(1, parallel.tensor // parallel.expert)  # devices that divide the width of one expert
    moe = replace(
        share.moe, width=-(-model.moe.width // within), ranks=parallel.expert, replicas=parallel.shared_replicas
    )
    return replace(share, moe=moe)


def stages_of(model: ModelShape, stages: int) -> tuple[ModelShape, ...]:
    """The layers in order, in `stages` parts. What remains goes one each to the last parts but the very last, which has
    the head (as vLLM does)."""
    if stages == 1:
        return (model,)
    each, rest = divmod(model.layers, stages)
    counts = [each + (stages - 1 - rest <= i < stages - 1) for i in range(stages)]
    ends = [sum(counts[: i + 1]) for i in range(stages)]
    return tuple(
        replace(
            model, windows=model.windows[end - count : end], moe_layers=model.moe_layers[end - count : end],
            first=i == 0, last=i == stages - 1,
        )
        for i, (count, end) in enumerate(zip(counts, ends, strict=True))
    )  # fmt: skip
