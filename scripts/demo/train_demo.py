"""Train the embedded model on generated stories, on the CPU, with the package's model code.

    python scripts/demo/train_demo_tokenizer.py --output hybridlm/demo/model
    python scripts/demo/train_demo.py --output hybridlm/demo/model

Some steps mask the attention layers, so that the recurrent layers learn to answer alone. Weights are float32 in
training and bfloat16 in the file; the printed recall is the file's.
"""

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any, NamedTuple

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
from hybridlm.files.atomic import replacing

ROW = 128
"""Tokens of a training row: a story, a question and replies."""
STORY_WEIGHT, REPLY_WEIGHT, NAME_WEIGHT = 0.1, 1.0, 8.0
END = "<|endoftext|>"


class Stage(NamedTuple):
    """A part of training.

    Attributes:
        rate: highest learning rate.
        questions: questions in a row, each with its reply; the rest of the row are replies without question.
        growing: begin with stories of few holders.
    """

    steps: int
    rate: float
    questions: int
    growing: bool


STAGES = (Stage(1800, 3e-3, questions=1, growing=True), Stage(1000, 1.5e-3, questions=HOLDERS, growing=False))
"""Replies without questions teach the most names in the fewest tokens."""

Params = dict[Any, jax.Array]
"""Parameters by their path in the model."""


def config_of(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the model's config.json with the fields of Hugging Face."""
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


def row_of(tokenizer: Tokenizer, seed: int, questions: int, holders: int) -> tuple[list[int], list[float]]:
    """Return the tokens of a row, at most ROW + 1, and their loss weights."""
    story = demo.story(seed, holders)
    pairs = list(story.holders)
    random.Random(seed).shuffle(pairs)
    ids = tokenizer.encode(story.text).ids
    weights = [STORY_WEIGHT] * len(ids)
    for number, (thing, name) in enumerate(pairs):
        question = tokenizer.encode(" " + question_about(thing)).ids if number < questions else []
        reply = [*tokenizer.encode(reply_to(question_about(thing), name)).ids, tokenizer.token_to_id(END)]
        if len(ids) + len(question) + len(reply) > ROW + 1:
            break
        ids += question + reply
        weights += [STORY_WEIGHT] * len(question) + [REPLY_WEIGHT if question else STORY_WEIGHT] * (len(reply) - 3)
        weights += [NAME_WEIGHT, REPLY_WEIGHT, REPLY_WEIGHT]
    return ids, weights


def run(model: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
    """Return the logits [rows, ROW, vocabulary] of a batch, from zero state."""
    rows = tokens.shape[0]
    state = model.init_state(rows, ROW, jnp.float32)
    positions = jnp.zeros((rows,), jnp.int32)
    hidden, _ = model(tokens, jnp.minimum(lengths, ROW), positions, state, kv_blocks=models.kv_blocks(ROW))
    return model.logits(hidden)


def weighted_loss(
    model: Any, tokens: jax.Array, weights: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Return the next-token loss, and the numbers of correct and all names."""
    logits = run(model, tokens[:, :-1], lengths)
    target, weight = tokens[:, 1:], weights[:, 1:]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), target[:, :, None], axis=-1)[:, :, 0]
    is_name = weight == NAME_WEIGHT
    right = jnp.sum(is_name & (jnp.argmax(logits, axis=-1) == target))
    return -jnp.sum(chosen * weight) / jnp.sum(weight), (right, jnp.sum(is_name))


def holders_at(step: int, stage: Stage) -> int:
    """Return a step's number of holders, growing in a stage's first eighth."""
    part = max(1, stage.steps // 32)
    return 2 + step // part if stage.growing and step < 4 * part else HOLDERS


def save(directory: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write config.json and model.safetensors, each completely or not at all."""
    with replacing(directory / "model.safetensors") as file:
        file.buffer.write(serialize(tensors, metadata={"format": "pt"}))
    with replacing(directory / "config.json") as file:
        file.write(json.dumps(config, indent=2) + "\n")


class Training:
    """A model in training.

    Args:
        rows: stories per step.
        seed: of the initial values and of the stories.
        silent: fraction of the steps without attention.
    """

    def __init__(self, tokenizer: Tokenizer, rows: int, seed: int, silent: float):
        self.config = config_of(tokenizer)
        family = models.family_of(self.config)
        sizes = family.read_config(self.config)
        self._graph, start = nnx.split(family.build(sizes, nnx.Rngs(seed)))
        names = {weight.path: next(iter(weight.options[0].shapes)) for weight in family.weights(sizes)}
        params: Params = {path: jnp.asarray(leaf[...]) for path, leaf in nnx.to_flat_state(start)}
        if params.keys() != names.keys():
            raise ValueError(f"the model and its list of weights differ: {params.keys() ^ names.keys()}")
        self.params = {path: initial(names[path], value) for path, value in params.items()}
        self._names, self._seed, self._silent = names, seed, silent
        self._tokenizer, self._count = tokenizer, rows
        self._check = jax.jit(self.loss)

    def batch(
        self, first_seed: int, questions: int, holders: int = HOLDERS
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the rows of the stories with seeds `first_seed`, `first_seed + 1`, ...

        Returns:
            Tokens and loss weights [rows, ROW + 1], and lengths [rows].
        """
        tokens = np.zeros((self._count, ROW + 1), np.int32)
        weights = np.zeros((self._count, ROW + 1), np.float32)
        lengths = np.zeros(self._count, np.int32)
        for i in range(self._count):
            ids, importance = row_of(self._tokenizer, first_seed + i, questions, holders)
            tokens[i, : len(ids)], weights[i, : len(ids)], lengths[i] = ids, importance, len(ids)
        return tokens, weights, lengths

    def loss(self, params: Params, attention: jax.Array, *batch: jax.Array) -> tuple[jax.Array, Any]:
        """Return the `weighted_loss` of a batch; `attention` multiplies attention outputs."""
        silent = {path for path, name in self._names.items() if name.endswith("o_proj.weight")}
        heard = {path: value * attention if path in silent else value for path, value in params.items()}
        model = nnx.merge(self._graph, nnx.from_flat_state([(path, nnx.Param(x)) for path, x in heard.items()]))
        return weighted_loss(model, *batch)

    def train(self, stage: Stage, first_seed: int) -> None:
        rate = optax.warmup_cosine_decay_schedule(0.0, stage.rate, 1 + stage.steps // 15, stage.steps, stage.rate / 50)
        matrices = {path: value.ndim > 1 for path, value in self.params.items()}
        decay = optax.adamw(rate, b2=0.98, weight_decay=0.05, mask=matrices)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), decay)

        @jax.jit
        def update(params: Params, moments: Any, attention: jax.Array, *batch: jax.Array) -> Any:
            (value, counts), gradient = jax.value_and_grad(self.loss, has_aux=True)(params, attention, *batch)
            change, moments = optimizer.update(gradient, moments, params)
            return optax.apply_updates(params, change), moments, value, counts

        params, moments = self.params, optimizer.init(self.params)
        rng, rows, begin = random.Random(self._seed), self._count, time.time()
        for step in range(stage.steps):
            attention = jnp.float32(rng.random() >= self._silent)
            batch = self.batch(first_seed + step * rows, stage.questions, holders_at(step, stage))
            params, moments, value, (right, questions) = update(params, moments, attention, *batch)
            if step % 50 == 0 or step == stage.steps - 1:
                unseen = self.batch(demo.UNSEEN.stop - rows * (1 + step % 100), stage.questions)
                recall = [float(np.divide(*self._check(params, jnp.float32(on), *unseen)[1])) for on in (1.0, 0.0)]
                print(
                    f"step {step:5d}  {time.time() - begin:6.0f} s  loss {float(value):.3f}  "
                    f"names {right / questions:6.1%}  unseen {recall[0]:6.1%}  without attention {recall[1]:6.1%}",
                    flush=True,
                )
        self.params = params

    def save(self, directory: Path) -> None:
        """Write the model in bfloat16, and continue with rounded weights."""
        tensors = {self._names[path]: np.asarray(x).astype(ml_dtypes.bfloat16) for path, x in self.params.items()}
        save(directory, self.config, tensors)
        self.read(directory)

    def read(self, directory: Path) -> None:
        saved = load_file(directory / "model.safetensors")
        self.params = {path: jnp.asarray(saved[name].astype(np.float32)) for path, name in self._names.items()}

    def recall(self, stories: int) -> float:
        """Return the fraction of correct names on unseen stories."""
        counts = np.zeros(2)
        for first in range(0, stories, self._count):
            batch = self.batch(demo.UNSEEN.start + first, questions=HOLDERS)
            counts += [int(count) for count in self._check(self.params, jnp.float32(1.0), *batch)[1]]
        return float(counts[0] / counts[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="directory with tokenizer.json, for the model")
    parser.add_argument("--steps", type=int, help="updates of each stage (default: 1800 and 1000)")
    parser.add_argument("--rows", type=int, default=16, help="stories per step (default: 16)")
    parser.add_argument("--silent", type=float, default=0.15, help="share of steps without attention (default: 0.15)")
    parser.add_argument("--seed", type=int, default=0, help="0 ... 99 (default: 0)")
    parser.add_argument("--from-stage", type=int, default=0, help="go on from the model in --output with this stage")
    args = parser.parse_args()
    stages = [stage._replace(steps=args.steps or stage.steps) for stage in STAGES]
    first = args.seed * 10_000_000
    if args.seed < 0 or first + args.rows * sum(stage.steps for stage in stages) > demo.UNSEEN.start:
        parser.error(f"--seed {args.seed}: its stories are not below the unseen ones; choose 0 ... 99")

    training = Training(Tokenizer.from_file(str(args.output / "tokenizer.json")), args.rows, args.seed, args.silent)
    print(f"{sum(value.size for value in training.params.values()):,} parameters", flush=True)
    if args.from_stage:
        training.read(args.output)
    for number, stage in enumerate(stages):
        if number >= args.from_stage:
            print(f"stage {number}: {stage}", flush=True)
            training.train(stage, first)
            training.save(args.output)
            print(f"recall of the file: {training.recall(512):.1%}", flush=True)
        first += stage.steps * args.rows


def initial(name: str, value: jax.Array) -> jax.Array:
    """Return the model's initial values, with smaller outputs and decays over 1,000 to 16 tokens."""
    if name.endswith("A_log"):
        return jnp.zeros_like(value)
    if name.endswith("dt_bias"):
        return jnp.log(jnp.expm1(jnp.geomspace(1e-3, 6e-2, value.size)))
    return value * (0.5 if name.endswith(("out_proj.weight", "o_proj.weight", "down_proj.weight")) else 1.0)


if __name__ == "__main__":
    main()
