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
from ir_passes import Lane, LaneContract, Pool

DEVICES, EACH = 8, 2
LANES = DEVICES * EACH
Run = Callable[..., Any]


def example(lm: hybridlm.LM) -> tuple[Any, ...]:
    """Operands of a sampling step with used rows and one idle lane."""
    rng = np.random.default_rng(0)
    params, rows, inputs = lm.engine.example_arguments(lm.engine.shape("generate", LANES, 1, LANES))

    def used(array: Any) -> np.ndarray:
        if np.issubdtype(array.dtype, np.floating):
            return rng.normal(size=array.shape).astype(array.dtype)
        return rng.integers(0, 60, array.shape).astype(array.dtype)

    tokens = rng.integers(0, 60, inputs.batch.tokens.shape).astype(np.int32)
    count = np.arange(LANES, dtype=np.int32)
    batch = inputs.batch._replace(tokens=tokens, lengths=count.clip(0, 1), positions=inputs.batch.positions + count)
    return params, jax.tree.map(used, rows), inputs._replace(batch=batch)


def of_lanes(contract: LaneContract) -> Any:
    """Whether each entry has lanes, or rows of them."""
    return jax.tree.map(
        lambda entry: isinstance(entry, Lane | Pool),
        contract.inputs,
        is_leaf=lambda entry: not isinstance(entry, tuple),
    )


def pmapped(step: Run, contract: LaneContract, args: tuple[Any, ...]) -> tuple[Run, tuple[Any, ...]]:
    split = lambda array: array.reshape(DEVICES, EACH, *array.shape[1:])
    split = of_lanes(contract)
    tree = jax.tree.map(lambda lanes, part: jax.tree.map(split, part) if lanes else part, split, args)
    return jax.pmap(step, in_axes=jax.tree.map(lambda lanes: 0 if lanes else None, split)), tree


def over_data(step: Run, contract: LaneContract, args: tuple[Any, ...]) -> tuple[Run, tuple[Any, ...]]:
    mesh = hybridlm.mesh(data=DEVICES)
    placed = lambda lanes, part: jax.device_put(part, NamedSharding(mesh, P("data") if lanes else P()))
    tree = jax.tree.map(placed, of_lanes(contract), args)
    return jax.jit(sharded(step, tree, contract, mesh)), tree


@pytest.mark.long
@pytest.mark.parametrize("name", ["sparse_base", "dense_base", "nemotron_latent", "olmo_base"])
def test_a_step_of_a_model_exchanges_nothing_over_data(tmp_path: Path, name: str) -> None:
    """The engine's own step samples the same tokens and leaves the same rows."""
    directory = write_random_checkpoint(name, tmp_path, **FAMILIES[name])
    lm = hybridlm.load(directory, lanes=LANES, context=64, dtype="float32", chunk=1, certify="off")
    step, contract = lm.engine.programs.step(lm.engine.shape("generate", LANES, 1, LANES))
    args = example(lm)
    expected = jax.device_get(jax.jit(step)(*args))
    for split in (over_data, *([pmapped] if hasattr(jax, "pmap") else [])):
        run, settings = split(step, contract, args)
        assert collectives_in(run.lower(*settings).compile().as_text()) == []  # type: ignore[attr-defined]  # jitted
        arrays = jax.device_get(run(*settings))
        for array, other in zip(jax.tree.leaves(arrays), jax.tree.leaves(expected), strict=True):
            assert array.size == other.size
            tolerance = TOLERANCES[lm.config.family.removesuffix("_text")]
            np.testing.assert_allclose(array.reshape(other.shape), other, rtol=0, atol=tolerance)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(jax, "pmap"), reason="this JAX has no pmap")
def test_lines_of_the_documentation_exchange_nothing(tmp_path: Path, root: Path) -> None:
    """The lines of docs/devices.md, run for a model with experts."""
    text = (root / "docs" / "devices.md").read_text()
    (lines,) = re.findall(r"```python\n(graph, params = .*?)```", text, re.DOTALL)
    lm = hybridlm.load(write_random_checkpoint("sparse_base", tmp_path), context=64, dtype="float32", certify="off")
    message: dict[str, Any] = {"lm": lm, "hybridlm": hybridlm, "jax": jax, "jnp": jnp, "nnx": nnx, "P": P}
    exec(lines, message)
    rng = np.random.default_rng(0)
    tokens, positions = rng.integers(0, 60, (LANES, 1)).astype(np.int32), np.arange(LANES, dtype=np.int32)
    device_state = lm.model.init_state(EACH, 64, jnp.float32)
    full = tokens, positions, jax.tree.map(lambda leaf: jnp.concatenate([leaf] * DEVICES), device_state)
    tree = jax.tree.map(lambda item: item.reshape(DEVICES, -1, *item.shape[1:]), full)
    parts = (jax.tree.map(lambda item, device=device: item[device], tree) for device in range(DEVICES))
    results = [jax.jit(message["step"])(message["params"], *part) for part in parts]
    logits, final = jax.tree.map(lambda *items: np.concatenate(items), *results)
    for name, settings in (("over_data", full), ("mapped", tree)):
        assert collectives_in(message[name].lower(message["params"], *settings).compile().as_text()) == []
        result = message[name](message["params"], *settings)
        for array, other in zip(jax.tree.leaves(result), jax.tree.leaves((logits, final)), strict=True):
            np.testing.assert_allclose(np.asarray(array).reshape(other.shape), other, rtol=0, atol=2e-3)


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
