"""`predict`: what to expect with no run."""

from __future__ import annotations

from typing import Any

import click

from analyzers.commands.options import COUNT, RATE, echo_json, echo_lines, json_option, peak_options, with_options

JSON_VERSION = 1

_predict_options = (
    click.option("--model", "--model-config", required=True, metavar="PRESET|config.json", help="Model."),
    *peak_options,
    click.option("--prompt", type=COUNT, default=2048, show_default=True, help="Tokens of the prompt."),
    click.option("--context", type=COUNT, help="Tokens a decoding request attends to.  [default: the prompt]"),
    click.option("--batch", type=COUNT, default=1, show_default=True, help="Requests that decode together."),
    click.option("--output", type=COUNT, default=128, show_default=True, help="Tokens generated per request."),
    click.option("--tp", "tensor_parallel", type=COUNT, default=1, show_default=True, help="Tensor parallel devices."),
    click.option("--pp", "pipeline_parallel", type=COUNT, default=1, show_default=True, help="Pipeline stages."),
    click.option("--ep", "expert_parallel", type=COUNT, default=1, show_default=True,
                 help="Devices of a stage that whole experts are divided over; of those of --tp and --dp."),
    click.option("--dp", "data_parallel", type=COUNT, default=1, show_default=True,
                 help="Replicas, each with --batch requests."),
    click.option("--link-bandwidth", metavar="RATE",
                 help="Of a device to others, in one direction, such as 450GB/s.  [default: the datasheet's]"),
    click.option("--quant", type=click.Choice(["fp8", "int8", "int4", "mxfp4", "nvfp4", "none"]), help="Of the weights."),
    click.option("--dtype", help="Of activations and unquantized weights.  [default: the configuration's]"),
    click.option("--kv-dtype", help="Of the cache, such as fp8.  [default: as --dtype]"),
    click.option("--turns", type=COUNT, help="Turns of a growing conversation."),
    click.option("--per-turn", type=COUNT, default=200, show_default=True, help="Tokens a turn adds to the prompt."),
    click.option("--prefill-rate", type=RATE, help="Tokens/s to take for TTFT per turn, instead of the floor."),
    click.option("--decode-rate", type=RATE, help="Tokens/s of a request, likewise."),
    click.option("--add-prefill", "beside", type=COUNT, multiple=True, help="Prefill tokens beside a decode step."),
    click.option("--price", type=RATE, help="Of a device per hour."),
    click.option("--train-tokens", metavar="N", help="Cost of training on so many tokens, such as 160B."),
    click.option("--params", "parameters", metavar="N", help="Textbook: the model's round size.  [default: by name]"),
    click.option("--memory-share", type=click.FloatRange(0, 1, min_open=True), default=0.9, show_default=True,
                 help="Of the device's memory, for weights and cache."),
    click.option("--convention", type=click.Choice(["default", "textbook"]), default="default", show_default=True,
                 help="How to count; see docs/predict.md."),
    json_option,
)  # fmt: skip


@click.command()
@with_options(*_predict_options)
def predict(as_json: bool, **words: Any) -> None:
    """What to expect of a model on a device, with no run: floors of time, memory, batches, turns, price."""
    from dataclasses import asdict

    from analyzers.report.predict_text import predict_lines
    from analyzers.scenario import asked, expect

    expected = expect(*asked(words))
    told = {"version": JSON_VERSION, **asdict(expected)}
    echo_json(told) if as_json else echo_lines(predict_lines(expected))
