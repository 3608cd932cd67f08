"""config.json and tensors of Qwen4-Exp: layers, spellings, parts of the n-gram tables, refusals."""

import math
from typing import Any

import numpy as np
from published import QWEN4_EXP, read
from tiny_variants import variant

from hybridlm.families import (
    AttentionConfig,
    GatedDeltaNetConfig,
    IndexedAttentionConfig,
    NgramEmbeddingConfig,
    QkNorm,
    Rope,
    StreamsConfig,
)
from models import family_of

TINY: dict[str, Any] = variant("indexed_base").config


def test_published_layers() -> None:
    config = read(QWEN4_EXP)
    assert (config.num_layers, config.streams, config.unknown_keys) == (48, StreamsConfig(4, 320), ())
    attention = AttentionConfig(24, 2, 256, Rope(64, 1e7), QkNorm(1e-6, 1.0), output_gate=True)
    indexed = IndexedAttentionConfig(attention, 4, 128, 4, 512, 1e-6)
    delta_net = GatedDeltaNetConfig(16, 48, 128, 128, 4, 1e-6, gate="sigmoid")
    assert [i for i, layer in enumerate(config.layers) if layer[-2] == indexed] == list(range(3, 48, 4))
    assert {layer[-2] for layer in config.layers} == {indexed, delta_net}
    ngrams = {i: layer[0] for i, layer in enumerate(config.layers) if isinstance(layer[0], NgramEmbeddingConfig)}
    assert list(ngrams) == [1] and (ngrams[1].kernel, ngrams[1].dilated, ngrams[1].end) == (4, 10, 248_044)


def test_parameters_of_the_published_model() -> None:
    """Readers of its GGUF files report 176.9 billion parameters, 51.2 of them n-grams, without vision and MTP."""
    sizes = {weight.path: math.prod(weight.shape) for weight in family_of(QWEN4_EXP).weights(read(QWEN4_EXP))}
    assert round(sum(sizes.values()) / 1e9, 1) == 176.9
    assert round(sizes["layers", 1, "branches", 0, "inner", "table"] / 1e9, 1) == 51.2


def test_spellings_are_one_model() -> None:
    base = read(TINY)
    full = [kind.replace("indexed", "full") for kind in TINY["layer_types"]]
    assert read(TINY | {"layer_types": full}) == base
    assert read({"model_type": "qwen4_exp", "text_config": TINY, "image_token_id": 1}).layers == base.layers
    period = {name: value for name, value in TINY.items() if name not in ("layer_types", "ple_layer_ids")}
    kinds = [type(layer[0]) for layer in read(period | {"num_hidden_layers": 4, "full_attention_interval": 2}).layers]
    assert kinds == [GatedDeltaNetConfig, IndexedAttentionConfig] * 2
    # Repeated and unsorted numbers of layers; each layer has tables of other sizes.
    assert read(TINY | {"ple_layer_ids": [3, 1, 3]}) == base
    tables = [layer[0].tables for layer in base.layers if isinstance(layer[0], NgramEmbeddingConfig)]
    assert len({*tables[0], *tables[1]}) == 16


def test_tables_in_parts_and_whole() -> None:
    (weight,) = [weight for weight in family_of(TINY).weights(read(TINY)) if weight.path[-1] == "table"][:1]
    assert weight.shape == (552, 4)
    parts, whole = (option.shapes for option in weight.options)
    name = "model.layers.0.ple.ple_embedding.ngram_embedding"
    # As torch.chunk divides 552 rows by five.
    assert parts == {f"{name}.shard_{i}.weight": (rows, 4) for i, rows in enumerate([111, 111, 111, 111, 108])}
    assert whole == {f"{name}.weight": (552, 4)}


def test_numbers_of_the_hash_follow_from_the_config() -> None:
    """Tensors that files store next to the tables."""
    family, config = family_of(TINY), read(TINY)
    numbers, name = family.constants(config), "model.layers.2.ple.ple_embedding"
    assert len(numbers) == 6 and numbers[f"{name}.layer_multipliers"].dtype == np.int64
    assert numbers[f"{name}.ngram_heads_vocab_sizes"].tolist() == [89, 97, 101, 103, 107, 109, 113, 127]
    assert numbers[f"{name}.ngram_heads_offsets"].tolist() == [0, 89, 186, 287, 390, 497, 606, 719]
