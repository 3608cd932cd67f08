"""Qwen4-Exp (Qwen3.8-Flash-Next): Gated DeltaNet, indexed attention, residual streams, n-grams; MoE in every layer.

The vision tower of multimodal checkpoints and MTP heads are skipped. Not shared with other families: the fields of
indexer, streams and n-grams, and tables of n-grams in parts.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from models.config.fields import paired, read_attending, read_heads
from models.config.reader import ConfigReader
from models.config.rope import read_rope
from models.decoder.decoder import BranchConfig, DecoderConfig
from models.decoder.streams import StreamsConfig
from models.families.family import text_family
from models.families.qwen import (
    DEFAULT_POSITIONS,
    EXPERTS,
    PREFIXES,
    SKIPPED,
    gated_delta_net_weights,
    read_delta_net,
    read_moe,
    read_text_decoder,
    text_reader,
)
from models.layers.moe import MoeConfig
from models.layers.ngrams import MAX_TABLE, multipliers, primes_from
from models.layers.rope import Rope
from models.mixers.attention import AttentionConfig, QkNorm
from models.mixers.gated_delta_net import GatedDeltaNetConfig
from models.mixers.indexed_attention import IndexedAttentionConfig
from models.mixers.ngram_embedding import NgramEmbeddingConfig
from models.state.pages import KV_BLOCK
from models.weights.layer_weights import Path, branch_weights, by_kind, decoder_weights
from models.weights.sources import Weight, WeightSource, joined, tensor

KINDS = ("linear_attention", "full_attention", "indexed_attention")
"""Published files call indexed attention full."""
MAX_TOKENS, MAX_HEADS, MAX_PARTS, MAX_ROWS = 8, 256, 1 << 16, 1 << 31
"""Largest n-gram, tables for n-grams of one length, tensors of a layer's tables, and rows of these."""
UNUSED = ("mtp", "number_of_conv_states")
"""Fields of MTP heads, which are skipped, and of transformers' cache."""


def _read_indexed(reader: ConfigReader, eps: float, rope: Rope) -> IndexedAttentionConfig:
    heads, kv_heads, head_dim = read_heads(reader, 2, 256)
    attention = AttentionConfig(heads, kv_heads, head_dim, rope, QkNorm(eps, offset=1.0), output_gate=True)
    reader.choice("indexer_kv_heads", [1], None)
    if "indexer_kv_heads" not in reader:
        reader.fault("indexer_kv_heads", "1")
    size, block = reader.integer("indexer_head_dim"), reader.integer("indexer_compress_ratio")
    budget = reader.integer("indexer_budget")
    if rope.size > size:
        reader.fault("indexer_head_dim", f"at least the {rope.size} rotated dimensions of a head")
    if KV_BLOCK % block:
        reader.fault("indexer_compress_ratio", f"a divisor of {KV_BLOCK}, the positions of a page")
    if budget % block:
        reader.fault("indexer_budget", f"a multiple of indexer_compress_ratio ({block})")
    chosen = max(budget // block, 1)
    return IndexedAttentionConfig(attention, reader.integer("indexer_n_heads"), size, block, chosen, eps)


def _read_delta_net(reader: ConfigReader, eps: float) -> GatedDeltaNetConfig:
    sizes = read_delta_net(reader, eps, 16, 32, 128)
    return replace(sizes, gate=reader.choice("output_gate_type", ["silu", "sigmoid"], "silu"))


def _read_ngrams(reader: ConfigReader, eps: float, streams: int, kinds: list[str]) -> dict[int, NgramEmbeddingConfig]:
    """Return the n-gram embeddings by number of the layer."""
    layers = sorted(set(reader.integers("ple_layer_ids")))
    width = reader.integer("ple_embed_dim", reader.integer("hidden_size"))
    kernel, tokens = reader.integer("ple_conv_kernel_size", 4, minimum=2), reader.integer("ngram_size", 3, minimum=2)
    heads, base = reader.integer("heads_per_ngram", 8), reader.integer("ngram_vocab_size_base", 20_000_000)
    unit, seed = reader.integer("make_ngram_vocab_size_divisible_by", 128), reader.integer("seed", 1234, minimum=0)
    parts, vocabulary = reader.integer("split_ngram_parts", 512), reader.integer("vocab_size")
    if not layers:
        return {}
    faults = len(reader.faults)
    for name, value, limit in (
        ("ngram_size", tokens, MAX_TOKENS),
        ("heads_per_ngram", heads, MAX_HEADS),
        ("ngram_vocab_size_base", base, MAX_TABLE // 2),
        ("make_ngram_vocab_size_divisible_by", unit, MAX_ROWS),
        ("split_ngram_parts", parts, MAX_PARTS),
    ):
        if value > limit:
            reader.fault(name, f"at most {limit}")
    if layers[0] < 1 or layers[-1] > len(kinds):
        reader.fault("ple_layer_ids", f"numbers of layers, 1 to {len(kinds)}")
    elif any(kinds[layer - 1] != "linear_attention" for layer in layers):
        reader.fault("ple_layer_ids", "layers of linear_attention")
    if width % ((tokens - 1) * heads):
        reader.fault("ple_embed_dim", f"a multiple of the {(tokens - 1) * heads} tables of a layer")
    ends = reader.integers("eos_token_id")
    if not ends or ends[0] >= vocabulary:
        reader.fault("eos_token_id", f"a token below vocab_size ({vocabulary}), which separates n-grams")
    if len(reader.faults) > faults:
        return {}
    count, ngrams = (tokens - 1) * heads, {}
    primes = primes_from(base, count * len(layers))
    for i, layer in enumerate(layers):
        tables = primes[i * count : (i + 1) * count]
        rows = math.ceil(sum(tables) / unit) * unit
        if rows >= MAX_ROWS:
            reader.fault("ngram_vocab_size_base", f"tables with fewer than {MAX_ROWS} rows in a layer, not {rows}")
        factors = multipliers(vocabulary, tokens, i, seed)
        ngrams[layer - 1] = NgramEmbeddingConfig(width, streams, kernel, factors, tables, rows, parts, ends[0], eps)
    return ngrams


def read_config(config: Mapping[str, Any]) -> DecoderConfig:
    """Read config.json of `qwen4_exp` (nested text_config) or `qwen4_exp_text`."""
    outer, reader = text_reader("qwen4_exp", config)
    layers, eps = reader.integer("num_hidden_layers"), reader.number("rms_norm_eps", 1e-6)
    rope = read_rope(reader, reader.integer("head_dim", 256), 1e4, 1.0, DEFAULT_POSITIONS)
    kinds = read_attending(reader, layers, "full_attention_interval", 4, KINDS)
    streams = StreamsConfig(reader.integer("hc_count", 4, minimum=2), reader.integer("hc_lowrank", 320))
    indexed = _read_indexed(reader, eps, rope)
    mixers = {KINDS[0]: _read_delta_net(reader, eps), KINDS[1]: indexed, KINDS[2]: indexed}
    moe = read_moe(reader, reader.flag("norm_topk_prob", True))
    ngrams = _read_ngrams(reader, eps, streams.count, kinds)
    reader.ignore(UNUSED)
    branches = enumerate(paired(kinds, mixers, [moe] * layers))
    blocks = tuple((ngrams[i], *layer) if i in ngrams else layer for i, layer in branches)
    return replace(read_text_decoder("qwen4_exp", outer, reader, blocks, eps, rope), streams=streams)


def _mixer_weights(path: Path, name: str, streams: StreamsConfig, hidden: int, connection: bool) -> list[Weight]:
    """List the parameters of a mix of streams, or of a connection."""
    size = streams.count * hidden
    shapes = {
        "down": ("input_mix_weight_down", (streams.rank, size)),
        "up": ("input_mix_weight_up", (size, streams.rank)),
    }
    if connection:
        shapes["inject"] = ("block_inject_weight", (streams.count, size))
    return [
        tensor((*path, "weight"), f"{name}.hc_norm.weight", (size,), float32=True),
        *(tensor((*path, part), f"{name}.{stored}.weight", shape) for part, (stored, shape) in shapes.items()),
    ]


def _ngram_weights(c: NgramEmbeddingConfig, hidden: int, path: Path, name: str) -> list[Weight]:
    """List the parameters of n-grams.

    Tables are one tensor, or parts; the last part may be smaller.
    """
    size, width, table = math.ceil(c.rows / c.parts), c.width // len(c.tables), f"{name}.ple_embedding.ngram_embedding"
    starts = range(0, c.rows, size)
    parts = {f"{table}.shard_{i}.weight": (min(size, c.rows - start), width) for i, start in enumerate(starts)}
    options = joined(parts), WeightSource({f"{table}.weight": (c.rows, width)})
    norms = {f"{part}_norm": f"norm_{part}" for part in ("key", "query", "conv")}
    return branch_weights(c, hidden, path, name, norms, sources={"table": options})


INDEXER = {
    "index_proj": "indexer.index_qk_proj",
    "index_q_norm": "indexer.q_layernorm",
    "index_k_norm": "indexer.k_layernorm",
}
LAYERS = by_kind(
    {
        IndexedAttentionConfig: ("self_attn", partial(branch_weights, names=INDEXER)),
        GatedDeltaNetConfig: ("linear_attn", gated_delta_net_weights),
        MoeConfig: EXPERTS,
        NgramEmbeddingConfig: ("ple", _ngram_weights),
    }
)


def weights(config: DecoderConfig) -> list[Weight]:
    streams = config.streams
    assert streams is not None

    def describe(c: BranchConfig, hidden: int, path: Path, layer: str) -> list[Weight]:
        inner = LAYERS(c, hidden, path, layer)
        if isinstance(c, NgramEmbeddingConfig):
            return inner
        connection = f"{layer}.{'mlp' if isinstance(c, MoeConfig) else 'attn'}_hyper_connection"
        return [*_mixer_weights((*path[:-1], "connection"), connection, streams, hidden, True), *inner]

    decoder = [weight for weight in decoder_weights(config, describe, norms=()) if weight.path != ("norm", "weight")]
    return [*decoder, *_mixer_weights(("norm",), "model.hyper_connection_mixer", streams, config.hidden_size, False)]


def hash_numbers(config: DecoderConfig) -> dict[str, np.ndarray]:
    """Return the stored multipliers, and sizes and first rows of the tables."""
    numbers = {}
    for i, layer in enumerate(config.layers):
        for c in layer:
            if isinstance(c, NgramEmbeddingConfig):
                name = f"model.layers.{i}.ple.ple_embedding"
                numbers[f"{name}.layer_multipliers"] = np.array(c.factors)
                numbers[f"{name}.ngram_heads_vocab_sizes"] = np.array(c.tables)
                numbers[f"{name}.ngram_heads_offsets"] = np.cumsum([0, *c.tables[:-1]])
    return numbers


QWEN4_EXP = text_family(
    "qwen4_exp",
    "Qwen4Exp",
    read_config,
    weights,
    GatedDeltaNetConfig,
    IndexedAttentionConfig,
    NgramEmbeddingConfig,
    model_types=("qwen4_exp_text",),
    architectures=("Qwen4ExpForConditionalGeneration", "Qwen4ExpTextModel"),
    skipped=SKIPPED,
    prefixes=PREFIXES,
    constants=hash_numbers,
)
