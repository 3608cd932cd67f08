"""Layers of one structure are traced once, and the program is unchanged."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from decoder_lanes import Residuals
from flax import nnx
from jax.sharding import PartitionSpec
from traced_programs import normal_hash

from ir_passes.jaxpr import ir
from models import family_of
from models.decoder import decoder
from models.decoder.traced_once import one_pass, traced_once

FIELDS: dict[str, Any] = {
    "model_type": "qwen3_5_text", "vocab_size": 41, "hidden_size": 16, "num_hidden_layers": 4,
    "full_attention_interval": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 6, "linear_value_head_dim": 8, "intermediate_size": 24,
}  # fmt: skip
X = jnp.arange(3.0)


class Scaled(nnx.Module):
    """`factor * weight * x`; counts how often it is traced or run."""

    runs = Counter[float]()

    def __init__(self, factor: float, weight: float):
        self.factor, self.weight = factor, nnx.Param(jnp.float32(weight))

    def apply(self, x: Any, options: Any = 0) -> Any:
        self.runs[self.factor] += 1
        return self.factor * self.weight[...] * x + (100 if options is True else options)


def abstract() -> decoder.Decoder:
    family = family_of(FIELDS)
    return nnx.eval_shape(lambda: family.build(family.read_config(FIELDS), nnx.Rngs(0)))


def program_of(model: decoder.Decoder, hooks: Residuals | None = None, verifying: bool = False) -> ir.ClosedJaxpr:
    lanes = jax.ShapeDtypeStruct((2,), jnp.int32)
    graph, weights = nnx.split(model)

    def step(weights: Any, tokens: Any, lengths: Any, state: Any) -> Any:
        info = decoder.lane_info(tokens, lengths, lengths, 2, verifying)._replace(hooks=hooks)
        return nnx.merge(graph, weights).run(tokens, info, state)

    state = jax.eval_shape(lambda: model.init_state(2, 200, jnp.float32))
    return jax.make_jaxpr(step)(weights, jax.ShapeDtypeStruct((2, 5), jnp.int32), lanes, state)


@pytest.mark.slow
@pytest.mark.parametrize("verifying", [False, True])
def test_program_matches_layers_traced_one_by_one(verifying: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = abstract()
    traced, run = Counter[str](), decoder.Branch.__call__

    def counted(branch: decoder.Branch, *args: Any) -> Any:
        traced[type(branch.inner).__name__] += 1
        return run(branch, *args)

    monkeypatch.setattr(decoder.Branch, "__call__", counted)
    jax.clear_caches()
    program = program_of(model, verifying=verifying)
    assert traced == {"GatedDeltaNet": 1, "Attention": 1, "Mlp": 1}
    calls = [ir.body_of(eqn) for eqn in program.jaxpr.eqns if eqn.params.get("name") == "_call"]
    assert (len(calls), len({id(item and item.jaxpr) for item in calls})) == (8, 3)
    monkeypatch.setattr(decoder, "traced_once", lambda module, method, *args: getattr(module, method)(*args))
    each = program_of(model, verifying=verifying)
    assert traced == {"GatedDeltaNet": 4, "Attention": 2, "Mlp": 5}
    assert len(each.jaxpr.eqns) > len(program.jaxpr.eqns)
    assert normal_hash(program) == normal_hash(each)


def test_modules_share_a_body_and_keep_their_arrays() -> None:
    def both(x: Any, weights: Any) -> Any:
        modules = Scaled(2.0, 0.0), Scaled(2.0, 0.0), Scaled(3.0, 0.0)
        for module, weight in zip(modules, weights, strict=True):
            module.weight[...] = weight
        with one_pass():
            return [traced_once(module, "apply", x) for module in modules]

    Scaled.runs.clear()
    result = jax.jit(both)(X, (jnp.float32(5), jnp.float32(7), jnp.float32(11)))
    np.testing.assert_array_equal(result, [X * 10, X * 14, X * 33])
    assert Scaled.runs == {2.0: 1, 3.0: 1}


@pytest.mark.parametrize(("options", "added"), [(0, 0), (1, 1), (True, 100), (2, 2)])
def test_python_values_are_part_of_the_structure(options: Any, added: int) -> None:
    """1 and True are equal, and are other programs."""
    module = Scaled(2.0, 1.0)

    def run(x: Any) -> Any:
        with one_pass():
            return traced_once(module, "apply", x, 1) * 0 + traced_once(module, "apply", x, options)

    np.testing.assert_array_equal(jax.jit(run)(X), X * 2 + added)


def test_code_that_is_patched_between_two_passes_is_traced_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: Any) -> Any:
        with one_pass():
            return traced_once(Scaled(2.0, 1.0), "apply", x)

    np.testing.assert_array_equal(jax.jit(run)(X), X * 2)
    monkeypatch.setattr(Scaled, "apply", lambda self, x: x * 5)
    np.testing.assert_array_equal(jax.jit(lambda x: run(x))(X), X * 5)


def test_without_a_trace_layers_run_directly() -> None:
    module = Scaled(4.0, 1.0)
    Scaled.runs.clear()
    for _ in range(3):
        np.testing.assert_array_equal(traced_once(module, "apply", X), X * 4)
    assert Scaled.runs == {4.0: 3}


def test_an_object_is_called_for_each_module() -> None:
    """A stateful function would keep values of another trace."""

    class Noted(nnx.Module):
        def apply(self, x: Any, stored: Any) -> Any:
            stored.seen.append(x * 2)
            return x * 2

    class Notes:
        def __init__(self) -> None:
            self.seen: list[Any] = []

    def run(x: Any) -> Any:
        notes = Notes()
        with one_pass():
            for _ in range(2):
                x = traced_once(Noted(), "apply", x, notes)
        return notes.seen

    np.testing.assert_array_equal(jax.jit(run)(X), [X * 2, X * 4])


def test_a_model_with_hooks_is_one_program_without_calls() -> None:
    model, hooks = abstract(), Residuals()
    program = program_of(model, hooks=hooks)
    assert list(hooks.streams) == [0, 1, 2, 3, 4]
    assert "_call" not in {eqn.params.get("name") for eqn in program.jaxpr.eqns}
    assert "_call" in {eqn.params.get("name") for eqn in program_of(model).jaxpr.eqns}


def test_shard_map_has_no_calls() -> None:
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    module = Scaled(2.0, 1.0)
    specs = PartitionSpec("model")

    def apply(x: Any) -> Any:
        with one_pass():
            return traced_once(module, "apply", x)

    run = jax.shard_map(apply, mesh=mesh, in_specs=specs, out_specs=specs)
    names = [eqn.primitive.name for eqn in ir.all_eqns(jax.make_jaxpr(run)(jnp.arange(4.0)).jaxpr)]
    assert "shard_map" in names and "jit" not in names and "pjit" not in names
