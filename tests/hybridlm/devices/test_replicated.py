"""Steps of models over `data` alone: under `jax.pmap` and `jax.shard_map`, eight devices exchange nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import TOLERANCES
from exchanged import collectives_in
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from random_checkpoint import FAMILIES, write_random_checkpoint

import hybridlm
from hybridlm.devices.sharded_step import sharded
from hybridlm.programs.shapes import Shape
from ir_passes import Lane, LaneContract, Pool
from ir_passes.contract.prefix import is_entry

DEVICES, EACH = 8, 2
LANES = DEVICES * EACH
Run = Callable[..., Any]


def example(lm: hybridlm.LM) -> tuple[Any, ...]:
    """Operands of the step that samples a token, of lanes with used rows, one of them idle."""
    rng = np.random.default_rng(0)
    params, rows, inputs = lm.engine.example_arguments(Shape("generate", LANES, 1, LANES))

    def used(one: Any) -> np.ndarray:
        if np.issubdtype(one.dtype, np.floating):
            return rng.normal(size=one.shape).astype(one.dtype)
        return rng.integers(0, 60, one.shape).astype(one.dtype)

    tokens = rng.integers(0, 60, inputs.batch.tokens.shape).astype(np.int32)
    count = np.arange(LANES, dtype=np.int32)
    batch = inputs.batch._replace(tokens=tokens, lengths=count.clip(0, 1), positions=inputs.batch.positions + count)
    return params, jax.tree.map(used, rows), inputs._replace(batch=batch)


def of_lanes(contract: LaneContract) -> Any:
    """Whether each entry has lanes, or rows of them."""
    return jax.tree.map(lambda entry: isinstance(entry, Lane | Pool), contract.inputs, is_leaf=is_entry)


def pmapped(step: Run, contract: LaneContract, args: tuple[Any, ...]) -> tuple[Run, tuple[Any, ...]]:
    def apart(array: Any) -> Any:
        return array.reshape(DEVICES, EACH, *array.shape[1:])

    split = of_lanes(contract)
    given = jax.tree.map(lambda lanes, part: jax.tree.map(apart, part) if lanes else part, split, args)
    return jax.pmap(step, in_axes=jax.tree.map(lambda lanes: 0 if lanes else None, split)), given


def over_data(step: Run, contract: LaneContract, args: tuple[Any, ...]) -> tuple[Run, tuple[Any, ...]]:
    mesh = hybridlm.mesh(data=DEVICES)

    def placed(lanes: bool, part: Any) -> Any:
        return jax.device_put(part, NamedSharding(mesh, P("data") if lanes else P()))

    given = jax.tree.map(placed, of_lanes(contract), args)
    return jax.jit(sharded(step, given, contract, mesh)), given


@pytest.mark.long
@pytest.mark.parametrize("name", ["sparse_base", "dense_base", "nemotron_latent", "olmo_base"])
def test_a_step_of_a_model_exchanges_nothing_over_data(tmp_path: Path, name: str) -> None:
    """The engine's own step: the tokens it samples, and the rows it leaves, are those of one device."""
    directory = write_random_checkpoint(name, tmp_path, **FAMILIES[name])
    lm = hybridlm.load(directory, lanes=LANES, context=64, dtype="float32", chunk=1, certify="off")
    step, contract = lm.engine.programs.step(Shape("generate", LANES, 1, LANES))
    args = example(lm)
    expected = jax.device_get(jax.jit(step)(*args))
    for split in (over_data, *([pmapped] if hasattr(jax, "pmap") else [])):
        run, given = split(step, contract, args)
        assert collectives_in(run.lower(*given).compile().as_text()) == []  # type: ignore[attr-defined]  # jitted
        found = jax.device_get(run(*given))
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert one.size == other.size
            tolerance = TOLERANCES[lm.config.family.removesuffix("_text")]
            np.testing.assert_allclose(one.reshape(other.shape), other, rtol=0, atol=tolerance)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(jax, "pmap"), reason="this JAX has no pmap")
def test_lines_of_the_documentation_exchange_nothing(tmp_path: Path, root: Path) -> None:
    """The lines as they stand in docs/devices.md, run for a model with experts."""
    text = (root / "docs" / "devices.md").read_text()
    (lines,) = re.findall(r"```python\n(graph, params = .*?)```", text, re.DOTALL)
    lm = hybridlm.load(write_random_checkpoint("sparse_base", tmp_path), context=64, dtype="float32", certify="off")
    said: dict[str, Any] = {"lm": lm, "hybridlm": hybridlm, "jax": jax, "jnp": jnp, "nnx": nnx, "P": P}
    exec(lines, said)
    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, 60, (LANES, 1)).astype(np.int32), np.arange(LANES, dtype=np.int32)
    state = jax.tree.map(jnp.asarray, lm.model.init_state(LANES, 64, jnp.float32))
    logits, after = jax.jit(said["step"])(said["params"], tokens, positions, state)
    whole = tokens, positions, state
    apart = jax.tree.map(lambda one: one.reshape(DEVICES, EACH, *one.shape[1:]), whole)
    for name, given in (("over_data", whole), ("mapped", apart)):
        assert collectives_in(said[name].lower(said["params"], *given).compile().as_text()) == []
        found = said[name](said["params"], *given)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves((logits, after)), strict=True):
            np.testing.assert_allclose(np.asarray(one).reshape(other.shape), other, rtol=0, atol=2e-3)


def test_every_collective_is_found_in_text() -> None:
    """A program with each of the collectives; words of metadata do not count."""
    text = """
  %a = f32[4]{0} all-reduce(%x), replica_groups={{0,1}}, to_apply=%r, metadata={op_name="all-gather(y)"}
  %b = (f32[4]{0}, f32[4]{0}) collective-permute-start(%x), source_target_pairs={{0,1},{1,0}}
  %c = f32[4]{0} collective-permute-done(%b)
  %d = f32[8]{0} all-gather(%x), dimensions={0}
  %e = f32[4]{0} all-to-all(%x), dimensions={0}
  %f = f32[4]{0} ragged-all-to-all(%x, %x)
  %g = f32[2]{0} reduce-scatter(%x), to_apply=%r
  ROOT %h = f32[4]{0} collective-broadcast(%x)
  %i = f32[4]{0} add(%x, %all-reduce.3), metadata={op_name="jit(f)/ all-to-all("}
"""
    expected = "all-reduce collective-permute all-gather all-to-all ragged-all-to-all reduce-scatter"
    assert collectives_in(text) == [*expected.split(), "collective-broadcast"]
