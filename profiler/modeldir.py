"""A model folder that needs no download: configuration handed in, byte-level tokenizer, chat template, no weights.

The engine fills it with random weights (`--load-format dummy`). One byte of text is one token, so prompt lengths are
known before anything runs. Ids 0..255 are bytes, the special tokens follow; a model with a larger vocabulary emits ids
that decode to nothing, and a client must count ids, not characters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traces.errors import UsageProblem

BYTES = 256
END = "<|end|>"
ROLE_TOKENS: tuple[str, ...] = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>", "<|call|>")
SPECIAL_TOKENS: tuple[str, ...] = (END, *ROLE_TOKENS)
END_ID = BYTES
MIN_VOCAB = BYTES + len(SPECIAL_TOKENS)

# One message is: role token, content, end token. Tool definitions come first, as JSON, so that a changed tool changes
# the prefix, as it does in the templates of real models.
CHAT_TEMPLATE = """\
{%- if tools %}<|tools|>{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|end|>{% endif %}
{%- for message in messages -%}
<|{{ message.role }}|>{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}<|call|>{{ call.function | tojson }}{% endfor %}<|end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

_REQUIRED = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def check_config(config: Mapping[str, Any], *, source: str, own_tokenizer: bool = True) -> None:
    """Raise UsageProblem where `config` cannot be the configuration of a causal language model.

    `own_tokenizer`: it is one of ours, whose vocabulary has to hold the byte-level tokenizer too.
    """
    required = _REQUIRED if own_tokenizer else ("model_type",)  # other architectures name their sizes differently
    missing = [key for key in required if key not in config]
    if missing:
        raise UsageProblem(
            f"{source}: the model configuration lacks {', '.join(missing)}",
            hint="give the config.json of a causal language model as on the Hugging Face hub",
        )
    vocab = config.get("vocab_size")
    if own_tokenizer and (not isinstance(vocab, int) or vocab < MIN_VOCAB):
        raise UsageProblem(
            f"{source}: vocab_size {vocab!r} is below {MIN_VOCAB}, the size of the byte-level tokenizer",
            hint="use a larger vocabulary",
        )


def write_model_dir(directory: Path, config: Mapping[str, Any]) -> Path:
    """Write config.json, tokenizer and generation_config.json into `directory` (made if needed); returns it."""
    check_config(config, source="model preset")
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(_tokenizer_json())
    _write_json(directory / "config.json", {**config, "bos_token_id": END_ID, "eos_token_id": END_ID})
    _write_json(directory / "generation_config.json", {"bos_token_id": END_ID, "eos_token_id": END_ID})
    _write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": config.get("max_position_embeddings", 4096),
            "eos_token": END,
            "pad_token": END,
            "additional_special_tokens": list(ROLE_TOKENS),
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    return directory


def _tokenizer_json() -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    # Byte b gets id b; the alphabet names bytes by printable characters, ordered here by the byte they stand for.
    vocabulary = {character: byte for byte, character in enumerate(_byte_characters())}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    text: str = tokenizer.to_str()
    return text


def _byte_characters() -> list[str]:
    """The byte-level alphabet in byte order: printable latin-1 stands for itself, the others from U+0100 upward."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, other = [], 0
    for byte in range(BYTES):
        if byte in printable:
            characters.append(chr(byte))
        else:
            characters.append(chr(0x100 + other))
            other += 1
    return characters


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
