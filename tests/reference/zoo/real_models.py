"""Every step of the model families: tiny variants with random weights, both heads, one token and a chunk."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from filled import filled
from flax import nnx
from tiny_variants import Variant, variant
from zoo.program import LANES, Program

from hybridlm._sampling import FILTERED, Sampling
from hybridlm._steps import GENERATE_CONTRACT, SCORE_CONTRACT, Rows, Structure, flatten, generate_step, score_step
from models import family_of, kv_blocks

VARIANTS = ("next_dense_layers", "dense_interval", "sparse_base")
CHUNK, CONTEXT, VOCAB, HIDDEN = 5, 16, 53, 32


def small(chosen: Variant) -> dict[str, Any]:
    """The variant's config at few layers of few channels."""
    sizes: dict[str, Any] = {"hidden_size": HIDDEN, "vocab_size": VOCAB}
    if "intermediate_size" in chosen.text:
        sizes["intermediate_size"] = 48
    if "num_experts" in chosen.text:
        sizes |= {"moe_intermediate_size": 16, "shared_expert_intermediate_size": 24}
    kinds = ["linear_attention", "full_attention"]
    text = dict(chosen.text) | sizes | {"num_hidden_layers": 2, "layer_types": kinds}
    if "mlp_only_layers" in text:
        text["mlp_only_layers"] = [1]
    suffix = "" if chosen.family == "qwen3_next" else "_text"
    return text | {"model_type": chosen.family + suffix, "dtype": "float32"}


@functools.cache
def model(name: str) -> tuple[Structure, tuple[jax.Array, ...], Any]:
    config = small(variant(name))
    family = family_of(config)
    read = family.read_config(config)
    rng = np.random.default_rng(0)
    built = filled(
        lambda: family.build(read, nnx.Rngs(0)), lambda _, shape: rng.normal(size=shape, scale=0.3).astype(np.float32)
    )
    structure, params = flatten(built)
    return structure, params, built.init_state(LANES, CONTEXT, np.float32)


def draw(rng: np.random.Generator, name: str, tokens: int, score: bool) -> tuple[Any, ...]:
    _, params, state = model(name)
    params = tuple(np.asarray(leaf) + 0.1 * rng.normal(size=leaf.shape).astype(leaf.dtype) for leaf in params)
    layers = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), state)
    token: Any = rng.integers(0, VOCAB, (LANES, 1)).astype(np.int32)
    pools = Rows(layers, token)
    ids = rng.integers(0, VOCAB, (LANES, tokens)).astype(np.int32)
    lengths = rng.integers(0, tokens + 1, LANES).astype(np.int32)
    positions = rng.integers(0, CONTEXT - tokens, LANES).astype(np.int32)
    args = (params, pools, ids, lengths, positions, np.int32(kv_blocks(CONTEXT)))
    if score:
        return (*args, rng.integers(0, VOCAB, (LANES, tokens)).astype(np.int32))
    sampling = Sampling(
        np.where(rng.random(LANES) < 0.5, 0, 1).astype(np.float32),
        rng.integers(0, 6, LANES).astype(np.int32),
        rng.uniform(0.8, 1.0, LANES).astype(np.float32),
        rng.uniform(0.0, 0.1, LANES).astype(np.float32),
        rng.integers(0, 2**32, (LANES, 2)).astype(np.uint32),
        rng.integers(0, 9, LANES).astype(np.uint32),
    )
    return (*args, sampling, np.int32(FILTERED))


def real_programs() -> Iterator[Program]:
    """Both heads of each family; builds the models."""
    for name in VARIANTS:
        structure = model(name)[0]
        for tokens in (1, CHUNK):
            step = generate_step(structure, 2, None)
            drawn = functools.partial(draw, name=name, tokens=tokens, score=False)
            yield Program(f"{name}, generate, T={tokens}", step, GENERATE_CONTRACT, drawn)
            drawn = functools.partial(draw, name=name, tokens=tokens, score=True)
            yield Program(f"{name}, score, T={tokens}", score_step(structure, 2), SCORE_CONTRACT, drawn)
