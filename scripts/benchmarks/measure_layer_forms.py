"""Layers of a decode step unrolled, called and scanned: CPU seconds to a program, and its speed. A table on stdout.

    python scripts/benchmarks/measure_layer_forms.py [--model 131M] [--lanes 8] [--rounds 3] [--steps 20]

* one by one: every layer is traced.
* traced once: as models do it. The layers of one kind are calls of one body, which takes the place of each call before
  the step is proved and compiled.
* called: the same without that; XLA inlines the calls. Such a program is not proved here.
* scanned, scanned in place: a loop over the repeated pattern of layers with stacked weights; the stacked state is
  scanned, or carried and indexed.

`operations` and `copies` are those of XLA's optimised program; `same` says whether that is the program of the first
form, but for names. CPU seconds are those of the whole process; with the time of others on the machine they grow, so
compare forms of one run.
"""

import argparse
import re
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from bench_models import BENCH_MODELS
from flax import nnx
from jax import lax

from hybridlm import compiler, models
from hybridlm.programs.programs import MAY_COPY, PASSES

decoder: Any = sys.modules[models.Decoder.__module__]
traced_once = decoder.traced_once
CONTEXT = 4096


def one_by_one(module: nnx.Module, method: str, *args: Any) -> Any:
    """Trace a method where `traced_once` calls it."""
    return getattr(module, method)(*args)


class Forms:
    """Steps of one model and their arguments.

    Args:
        fields: of its config.json.
        lanes: number of sequences, each of which decodes a token.
    """

    def __init__(self, fields: dict[str, Any], lanes: int):
        family = models.family_of(fields)
        config = family.read_config(fields)
        self.every = fields["full_attention_interval"]
        whole = family.abstract(config)
        # Parameters are written once, and both orders of them made of that.
        key = jax.random.key(0)

        def filled(one: Any) -> jax.Array:
            nonlocal key
            key, own = jax.random.split(key)
            made = jax.random.normal(own, one.shape, jnp.float32) * 0.02
            return made.astype(jnp.bfloat16 if one.ndim > 1 else one.dtype)

        parts = [nnx.split(layer) for layer in whole.layers]
        self.graphs = [graph for graph, _ in parts[: self.every]]
        assert [graph for graph, _ in parts] == self.graphs * (len(parts) // self.every)
        self.layers = [jax.tree.map(filled, state) for _, state in parts]
        self.rest, rest = nnx.split(family.abstract(replace(config, layers=())))
        self.weights = jax.tree.map(filled, rest)
        self.arrays = [tuple(branch.inner.state_arrays() for branch in layer.branches) for layer in whole.layers]
        self.lanes = lanes

    def state(self) -> list[Any]:
        """Return zero state, layer by layer."""
        return [jax.tree.map(lambda one: one.zeros(self.lanes, CONTEXT, jnp.float32), arrays) for arrays in self.arrays]

    def stacked(self, each: list[Any]) -> list[Any]:
        """Stack what layers have, for each place in the pattern."""
        return [jax.tree.map(lambda *all: jnp.stack(all), *each[place :: self.every]) for place in range(self.every)]

    def operands(self) -> tuple[Any, ...]:
        """Return tokens, lengths, positions and blocks of the KV cache."""
        tokens = jnp.arange(self.lanes, dtype=jnp.int32)[:, None]
        one = jnp.ones((self.lanes,), jnp.int32)
        return tokens, one, one * 100, jnp.int32(1)

    def ends(self, weights: Any, operands: tuple[Any, ...], run: Callable[[Any, Any], Any]) -> Any:
        """Embed tokens, run layers and take the most likely next token."""
        tokens, lengths, positions, blocks = operands
        model, info = nnx.merge(self.rest, weights), decoder.lane_info(tokens, lengths, positions, blocks)
        x, state = run(model.embed(tokens, info.valid), info)
        return jnp.argmax(model.logits(model.norm(x)[:, 0]), axis=-1).astype(jnp.int32), state

    def unrolled(self, weights: Any, layers: Any, state: Any, *operands: Any) -> Any:
        """The step with a layer after the other."""

        def run(x: Any, info: Any) -> Any:
            kept = []
            for k, (params, own) in enumerate(zip(layers, state, strict=True)):
                x, own = nnx.merge(self.graphs[k % self.every], params)(x, info, own)
                kept.append(own)
            return x, kept

        return self.ends(weights, operands, run)

    def _pattern(self, x: Any, info: Any, layers: Any, state: Any) -> Any:
        kept = []
        for graph, params, own in zip(self.graphs, layers, state, strict=True):
            layer: Any = nnx.merge(graph, params)
            x, own = layer(x, info, own)
            kept.append(own)
        return x, kept

    def scanned(self, weights: Any, layers: Any, state: Any, *operands: Any) -> Any:
        """The step with a loop over stacked weights and states."""

        def run(x: Any, info: Any) -> Any:
            return lax.scan(lambda x, both: self._pattern(x, info, *both), x, (layers, state))

        return self.ends(weights, operands, run)

    def scanned_in_place(self, weights: Any, layers: Any, state: Any, *operands: Any) -> Any:
        """The same with the states of all layers carried."""

        def run(x: Any, info: Any) -> Any:
            def body(carry: Any, both: Any) -> Any:
                (x, state), (k, layers) = carry, both
                own = jax.tree.map(lambda one: lax.dynamic_index_in_dim(one, k, keepdims=False), state)
                x, own = self._pattern(x, info, layers, own)
                put = jax.tree.map(lambda all, one: lax.dynamic_update_index_in_dim(all, one, k, 0), state, own)
                return (x, put), None

            count = len(self.arrays) // self.every
            return lax.scan(body, (x, state), (jnp.arange(count), layers))[0]

        return self.ends(weights, operands, run)


class Row:
    """CPU seconds of the parts of one form, and its program."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.step: Any = None
        self.audit = "not proved"
        self.temp = 0
        self.decode: list[float] = []

    def time(self, part: str, run: Callable[[], Any]) -> Any:
        begun = time.process_time()
        made = run()
        self.seconds.setdefault(part, []).append(time.process_time() - begun)
        return made


def without_names(text: str) -> str:
    """Return XLA's text of a program without names and places in sources."""
    text = re.sub(r"(?m)^(?:FileNames|FunctionNames|FileLocations|StackFrames)$|^\d+ .*$\n?", "", text)
    text = re.sub(r", metadata=\{[^}]*\}|, (?:stack_frame_id|origin)=[^,)]*", "", text)
    names: dict[str, str] = {}
    text = re.sub(r"%[\w.-]+", lambda found: names.setdefault(found[0], f"%{len(names)}"), text)
    return text[text.index("\n") :]


def make(row: Row, step: Callable[..., Any], args: tuple[Any, ...], axis: int) -> None:
    """Prove and compile a step stage by stage."""
    pool = compiler.Pool("state", axis)
    lane = compiler.Lane()
    contract = compiler.LaneContract(
        inputs=(
            compiler.Shared(),
            compiler.Shared(),
            pool,
            lane,
            compiler.Lane(role="length"),
            lane,
            compiler.Shared(),
        ),
        outputs=(lane, pool),
    )
    traced = row.time("trace", lambda: compiler.isolated(contract)(step).trace(*args))
    proved = row.time("prove", lambda: traced.prove(passes=PASSES))
    lowered = row.time("lower", proved.lower)
    row.step = row.time("compile, audit", lambda: lowered.compile(may_copy=MAY_COPY))
    row.temp, row.audit = row.step.certificate.memory.temp, "passed"


def make_called(row: Row, step: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Compile a step as it was traced, with its calls."""
    jitted = jax.jit(step, donate_argnums=2)
    traced = row.time("trace", lambda: jitted.trace(*args))
    lowered = row.time("lower", traced.lower)
    row.step = row.time("compile, audit", lowered.compile)
    row.temp = row.step.memory_analysis().temp_size_in_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=[*BENCH_MODELS], default="131M")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)
    forms = Forms(BENCH_MODELS[options.model], options.lanes)
    flat, stacked = (forms.layers, forms.state), (forms.stacked(forms.layers), lambda: forms.stacked(forms.state()))
    every: dict[str, tuple[Any, Any, int, bool]] = {
        "one by one": (forms.unrolled, flat, 0, False),
        "traced once": (forms.unrolled, flat, 0, True),
        "called": (forms.unrolled, flat, -1, True),
        "scanned": (forms.scanned, stacked, 1, True),
        "scanned in place": (forms.scanned_in_place, stacked, 1, True),
    }
    rows = {name: Row() for name in every}
    for _ in range(options.rounds):
        for name, (step, (layers, state), axis, once) in every.items():
            jax.clear_caches()
            decoder.traced_once = traced_once if once else one_by_one
            args = (forms.weights, layers, state(), *forms.operands())
            row = rows[name]
            try:
                (make_called if axis < 0 else partial(make, axis=axis))(row, step, args)
            except compiler.AuditError as error:
                print(f"{name}: {error}", file=sys.stderr)
                row.audit, plain = f"{len(error.findings)} faults", Row()
                make_called(plain, step, args)
                row.step, row.temp = plain.step, plain.temp
                row.seconds.setdefault("compile, audit", []).extend(plain.seconds["compile, audit"])
    kept = {name: state() for name, (_, (_, state), _, _) in every.items()}
    for _ in range(options.rounds):
        for name, (_, (layers, _), _, _) in every.items():
            operands = forms.operands()
            begun = time.process_time()
            for _ in range(options.steps):
                token, kept[name] = rows[name].step(forms.weights, layers, kept[name], *operands)
            jax.block_until_ready(token)
            rows[name].decode.append((time.process_time() - begun) / options.steps)
    parts = ("trace", "prove", "lower", "compile, audit")
    print(
        "| form | "
        + " | ".join(parts)
        + " | all | audit | scratch, MB | operations | copies | same | decoding, ms of CPU |"
    )
    print("|---" * 12 + "|")
    first = without_names(rows["one by one"].step.as_text())
    for name, row in rows.items():
        median = {part: statistics.median(row.seconds[part]) if part in row.seconds else 0.0 for part in parts}
        text = without_names(row.step.as_text())
        cells = [name, *(f"{median[part]:.2f}" if part in row.seconds else "" for part in parts)]
        cells += [f"{sum(median.values()):.2f}", row.audit, f"{row.temp / 1e6:.1f}"]
        cells += [str(len(re.findall(f"= [^\n]*? {kind}\\(", text))) for kind in (r"[a-z][\w-]*", "copy")]
        cells += ["yes" if text == first else "no", f"{statistics.median(row.decode) * 1e3:.1f}"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
