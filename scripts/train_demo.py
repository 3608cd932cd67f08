"""Train the embedded model on generated stories, on the CPU, with the package's own model code.

    python scripts/train_demo_tokenizer.py --output hybridlm/demo/model
    python scripts/train_demo.py --output hybridlm/demo/model

The recurrence runs in its chunked form, a segment of the row at a time, and gradients flow through the state from
segment to segment. A part of the steps silences the attention layers, so that the recurrent layers learn to answer
without them. Every story comes from its own seed; the same seeds give the same model on the same machine and
versions. Weights are float32 in training and bfloat16 in the file; the recall printed last is the file's.
"""

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
from flax import nnx
from safetensors.numpy import load_file
from safetensors.numpy import save as serialize
from tokenizers import Tokenizer

from hybridlm import demo, models
from hybridlm.demo.stories import HOLDERS, question_about, reply_to

ROW = 128
"""Tokens of a training row: a story, a question with its reply, and replies about the other things."""
SEGMENT = 16
"""Tokens of one call of the model; short, because the recurrence's triangular solves cost the CPU most."""
STORY_WEIGHT, REPLY_WEIGHT, NAME_WEIGHT = 0.1, 1.0, 8.0
END = "<|endoftext|>"

Params = dict[Any, jax.Array]
"""Parameters by their path in the model."""


def config_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """The model's config.json, in the fields of Hugging Face."""
    end = tokenizer.token_to_id(END)
    return {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "dtype": "bfloat16",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "tie_word_embeddings": True,
        "eos_token_id": end,
        "pad_token_id": end,
    }


class Rows:
    """Training rows: tokens [rows, ROW + 1], loss weights of the same shape, and lengths [rows]."""

    def __init__(self, tokenizer: Tokenizer, rows: int):
        self._tokenizer = tokenizer
        self._end = tokenizer.token_to_id(END)
        self._rows = rows

    def batch(self, first_seed: int, holders: int = HOLDERS) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The rows of the stories with seeds `first_seed`, `first_seed + 1`, ..."""
        tokens = np.zeros((self._rows, ROW + 1), np.int32)
        weights = np.zeros((self._rows, ROW + 1), np.float32)
        lengths = np.zeros(self._rows, np.int32)
        for i in range(self._rows):
            ids, importance = self._row(first_seed + i, holders)
            tokens[i, : len(ids)], weights[i, : len(ids)], lengths[i] = ids, importance, len(ids)
        return tokens, weights, lengths

    def _row(self, seed: int, holders: int) -> tuple[list[int], list[float]]:
        story = demo.story(seed, holders)
        asked = list(story.holders)
        random.Random(seed).shuffle(asked)
        ids = self._tokenizer.encode(story.text).ids
        weights = [STORY_WEIGHT] * len(ids)
        for number, (thing, name) in enumerate(asked):
            question = self._tokenizer.encode(" " + question_about(thing)).ids if number == 0 else []
            reply = [*self._tokenizer.encode(reply_to(question_about(thing), name)).ids, self._end]
            if len(ids) + len(question) + len(reply) > ROW + 1:
                break
            ids += question + reply
            weights += [STORY_WEIGHT] * len(question) + [REPLY_WEIGHT if question else STORY_WEIGHT] * (len(reply) - 3)
            weights += [NAME_WEIGHT, REPLY_WEIGHT, REPLY_WEIGHT]
        return ids, weights


def run(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """Logits [rows, ROW, vocabulary] of a batch, from zero state, segment by segment."""
    rows = tokens.shape[0]
    starts = jnp.arange(0, ROW, SEGMENT, dtype=jnp.int32)
    segments = jnp.moveaxis(tokens.reshape((rows, -1, SEGMENT)), 1, 0)

    def segment(state: Any, inputs: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
        start, ids = inputs
        real = jnp.clip(lengths - start, 0, SEGMENT)
        hidden, state = model(ids, real, jnp.full((rows,), start), state, kv_blocks=models.kv_blocks(ROW))
        return state, hidden

    _, hidden = jax.lax.scan(segment, model.init_state(rows, ROW, jnp.float32), (starts, segments))
    return model.logits(jnp.moveaxis(hidden, 0, 1).reshape((rows, ROW, -1)))


def weighted_loss(
    model: Any, tokens: jax.Array, weights: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Next-token loss, and the names that were predicted right and all names."""
    logits = run(model, tokens[:, :-1], lengths)
    target, weight = tokens[:, 1:], weights[:, 1:]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, :, None], axis=-1)[:, :, 0]
    is_name = weight == NAME_WEIGHT
    right = jnp.sum(is_name & (jnp.argmax(logits, axis=-1) == target))
    return -jnp.sum(chosen * weight) / jnp.sum(weight), (right, jnp.sum(is_name))


def holders_at(step: int, steps: int) -> int:
    """Curriculum: 2, 3, 4, 5 holders in the first eighth of training, then stories of full size."""
    part = max(1, steps // 32)
    return 2 + step // part if step < 4 * part else HOLDERS


def save(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write config.json and model.safetensors, each whole or not at all."""
    half = directory / "model.safetensors.tmp"
    half.write_bytes(serialize(tensors, metadata={"format": "pt"}))
    os.replace(half, directory / "model.safetensors")
    half = directory / "config.json.tmp"
    half.write_text(json.dumps(config, indent=2) + "\n")
    os.replace(half, directory / "config.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=Path, required=True, help="directory with tokenizer.json; the model goes there"
    )
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--rows", type=int, default=16, help="stories per step")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--silent", type=float, default=0.15, help="share of steps without attention")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    first = args.seed * 10_000_000
    if args.seed < 0 or first + args.steps * args.rows > demo.UNSEEN.start:
        parser.error(f"--seed {args.seed}: its stories are not below the unseen ones; choose 0 ... 99")

    tokenizer = Tokenizer.from_file(str(args.output / "tokenizer.json"))
    config = config_of(tokenizer)
    family = models.family_of(config)
    sizes = family.read_config(config)
    graph, start = nnx.split(family.build(sizes, nnx.Rngs(args.seed)))
    tensor_names = {weight.path: next(iter(weight.options[0].shapes)) for weight in family.weights(sizes)}
    params: Params = {path: jnp.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(start)}
    if params.keys() != tensor_names.keys():
        raise ValueError(f"the model and its list of weights differ: {params.keys() ^ tensor_names.keys()}")
    params = {path: initial(tensor_names[path], value) for path, value in params.items()}
    print(f"{sum(value.size for value in params.values()):,} parameters in {len(params)} tensors", flush=True)

    def model_of(params: Params) -> Any:
        return nnx.merge(graph, nnx.from_flat_state([(path, nnx.Param(value)) for path, value in params.items()]))

    def loss(params: Params, attention: jax.Array, *batch: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        audible = {
            path: value * attention if tensor_names[path].endswith("o_proj.weight") else value
            for path, value in params.items()
        }
        return weighted_loss(model_of(audible), *batch)

    rate = optax.warmup_cosine_decay_schedule(0.0, args.rate, 1 + args.steps // 15, args.steps, args.rate / 50)
    matrices = {path: value.ndim > 1 for path, value in params.items()}
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0), optax.adamw(rate, b2=0.98, weight_decay=0.05, mask=matrices)
    )

    @jax.jit
    def update(params: Params, moments: Any, attention: jax.Array, *batch: jax.Array) -> Any:
        (value, counts), gradient = jax.value_and_grad(loss, has_aux=True)(params, attention, *batch)
        change, moments = optimizer.update(gradient, moments, params)
        return optax.apply_updates(params, change), moments, value, counts

    check = jax.jit(loss)
    rows = Rows(tokenizer, args.rows)
    moments = optimizer.init(params)
    draw = random.Random(args.seed)
    begin = time.time()
    for step in range(args.steps):
        attention = jnp.float32(draw.random() >= args.silent)
        batch = rows.batch(first + step * args.rows, holders_at(step, args.steps))
        params, moments, value, (right, asked) = update(params, moments, attention, *batch)
        if step % 50 == 0 or step == args.steps - 1:
            unseen = rows.batch(demo.UNSEEN.stop - args.rows * (1 + step % 100))
            recall = [float(np.divide(*check(params, jnp.float32(on), *unseen)[1])) for on in (1.0, 0.0)]
            print(
                f"step {step:5d}  {time.time() - begin:6.0f} s  loss {float(value):.3f}  names {right / asked:6.1%}"
                f"  unseen {recall[0]:6.1%}  without attention {recall[1]:6.1%}",
                flush=True,
            )
    tensors = {tensor_names[path]: np.asarray(value).astype(ml_dtypes.bfloat16) for path, value in params.items()}
    save(args.output, config, tensors)
    saved = load_file(args.output / "model.safetensors")
    params = {path: jnp.asarray(saved[name].astype(np.float32)) for path, name in tensor_names.items()}
    counts = [check(params, jnp.float32(1.0), *rows.batch(demo.UNSEEN.start + i))[1] for i in range(0, 512, args.rows)]
    print(f"recall of the file: {sum(int(r) for r, _ in counts)} of {sum(int(n) for _, n in counts)} names")


def initial(name: str, value: jax.Array) -> jax.Array:
    """The model's own random values, except: calm outputs, and heads that remember for 1,000 to 16 tokens."""
    if name.endswith("A_log"):
        return jnp.zeros_like(value)
    if name.endswith("dt_bias"):
        return jnp.log(jnp.expm1(jnp.geomspace(1e-3, 6e-2, value.size)))
    return value * (0.5 if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) else 1.0)


if __name__ == "__main__":
    main()
