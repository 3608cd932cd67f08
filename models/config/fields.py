"""Readers of common config.json fields."""

from collections.abc import Mapping, Sequence
from typing import Any

from models.config.reader import ConfigReader
from models.config.rope import max_positions
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.layers.rope import Rope

OLDER_KINDS: Mapping[str, str] = {"mamba": "linear_attention", "attention": "full_attention"}
"""Layer kind in transformers before version 5 -> its new name."""


def spelled(reader: ConfigReader, *names: str) -> str:
    """Return the first present name, else the first; unequal values are faults."""
    present = [name for name in names if name in reader] or [names[0]]
    value = reader.get(present[0])
    for name in present[1:]:
        if reader.get(name) != value and not isinstance(value, list):
            reader.fault(name, f"{value!r}, as of {present[0]}, another spelling")
    return present[0]


def read_kinds(
    reader: ConfigReader, name: str, kinds: Sequence[str], layers: int, default: Sequence[str] | None = None
) -> list[str]:
    """Read a list with one kind per layer, in either spelling; required without a default."""
    if default is not None and name not in reader:
        return list(default)
    values = reader.get(name)
    if isinstance(values, list):
        values = [OLDER_KINDS.get(str(value), value) for value in values]
    if not isinstance(values, list) or len(values) != layers or any(value not in kinds for value in values):
        reader.fault(name, f"a list of {layers} items, each one of " + ", ".join(repr(kind) for kind in kinds))
        return [kinds[0]] * layers
    return values


def read_attending(
    reader: ConfigReader,
    layers: int,
    interval: str,
    default: int,
    kinds: Sequence[str] = ("linear_attention", "full_attention"),
) -> list[str]:
    """Read `layer_types`, of `kinds`; by default the last layer of `interval` is attention."""
    every = reader.integer(interval, default)
    regular = ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    return read_kinds(reader, "layer_types", kinds, layers, regular)


def paired(
    kinds: Sequence[str], mixers: Mapping[str, BranchConfig], feed_forward: Sequence[BranchConfig]
) -> tuple[tuple[BranchConfig, ...], ...]:
    """Pair each layer's mixer with its feed-forward layer."""
    return tuple((mixers[kind], forward) for kind, forward in zip(kinds, feed_forward, strict=True))


def read_heads(
    reader: ConfigReader, default_kv_heads: int | None = None, default_head_dim: int | None = None
) -> tuple[int, int, int]:
    """Read query heads, key/value heads (a divisor, GQA) and head size (default: hidden/heads)."""
    heads = reader.integer("num_attention_heads")
    absent = default_kv_heads is not None and reader.absent("num_key_value_heads")
    kv_heads = read_kv_heads(reader, heads, default_kv_heads if absent else heads)
    if "head_dim" in reader or default_head_dim is not None:
        return heads, kv_heads, reader.integer("head_dim", default_head_dim)
    hidden = reader.integer("hidden_size")
    if hidden % heads:
        reader.fault("num_attention_heads", f"a divisor of hidden_size ({hidden}) where there is no head_dim")
    return heads, kv_heads, max(hidden // heads, 1)


def read_kv_heads(reader: ConfigReader, heads: int, default: int | None = None) -> int:
    """Read the number of key/value heads, a divisor of the query heads."""
    kv_heads = reader.integer("num_key_value_heads", default)
    if heads % kv_heads:
        reader.fault("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    return kv_heads


PLACEHOLDERS = tuple(
    f"{part}_token_{end}"
    for part in ("image", "img_context", "video", "video_context", "audio", "sound_context", "ts", "time_series")
    for end in ("id", "index")
)
"""Fields with ids of tokens of other parts."""


def read_placeholders(reader: ConfigReader, defaults: Mapping[str, int]) -> tuple[int, ...]:
    """Read the sorted ids of placeholder tokens of images, audio or video."""
    ids = {
        token
        for name in PLACEHOLDERS
        for token in (reader.integers(name) if name in reader else (defaults[name],) if name in defaults else ())
    }
    return tuple(sorted(ids))


def read_dtype(*places: ConfigReader) -> str:
    """Read the dtype of the weights from the first config with such a field."""
    for place in places:
        for name in ("dtype", "torch_dtype"):
            if name in place:
                return place.choice(name, ["bfloat16", "float16", "float32"], "bfloat16")
    return "bfloat16"


def read_decoder_config(
    reader: ConfigReader,
    layers: tuple[tuple[BranchConfig, ...], ...],
    eps: float,
    tied: bool,
    positions: int,
    rope: Rope | None = None,
    **options: Any,
) -> DecoderConfig:
    """Build the decoder config, after all other fields.

    Args:
        positions: default of `max_position_embeddings` in transformers.
        rope: may extend the context.
        options: further fields of `DecoderConfig`.

    Raises:
        ConfigError: with every fault of the reader.
    """
    return DecoderConfig(
        family=reader.family,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        max_position_embeddings=max_positions(
            reader.integer(
                "model_max_length" if "model_max_length" in reader else "max_position_embeddings", positions
            ),
            rope,
        ),
        layers=layers,
        eps=eps,
        tied=tied,
        eos_token_ids=reader.integers("eos_token_id"),
        dtype=read_dtype(reader),
        unknown_keys=reader.close(),
        **{"norm_offset": 0.0, **options},
    )
