"""Every float32 product that XLA computes asks for full float32 precision."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest
from planned_engines import planned_engine
from traced_operations import traced_operations

import hybridlm
from hybridlm.families import linear

GOLDEN = Path(__file__).parents[2] / "golden"
SHORT = "next_old_fields"
"""Golden of the default run: a layer of each kind of Qwen, with experts. Tracing all goldens takes twenty seconds."""
NAMES = [
    pytest.param(path.name, marks=[] if path.name == SHORT else pytest.mark.long) for path in sorted(GOLDEN.iterdir())
]
WITH_HEAD = ["dense_multimodal", "next_old_fields", "sparse_multimodal"]
LANES, CHUNK, CONTEXT = 4, 16, 140
SIZES: dict[str, Any] = {"lanes": LANES, "context": CONTEXT, "dtype": "float32", "chunk": CHUNK, "kernels": "off"}
Step = Literal["generate", "score", "verify"]
STEPS: tuple[Step, ...] = ("generate", "score", "verify")
PRODUCTS = {"dot_general", "ragged_dot_general", "conv_general_dilated"}
HIGHEST = jax.lax.Precision.HIGHEST


def products(function: Callable[..., Any], *args: Any) -> tuple[int, list[str]]:
    """Number of float32 products, and those that are not computed in full float32."""
    results = [operation for operation in traced_operations(function, *args) if operation.name in PRODUCTS]
    narrow = [operation for operation in results if "float32" not in operation.inputs]
    assert not narrow, f"a float32 model multiplies other dtypes: {narrow}"
    rounded = [item for item in results if set(jax.tree.leaves(item.params["precision"])) != {HIGHEST}]
    return len(results), [str(operation) for operation in rounded]


def check(engine: Any, step: Step, tokens: int, **fields: Any) -> None:
    shape = engine.shape(step, LANES, tokens, top=2, **fields)
    function, _ = engine.programs.step(shape)
    count, rounded = products(function, *engine.example_arguments(shape))
    matrices = sum(param.ndim == 2 for param in engine.params)
    # Every matrix of the weights; one may be the table of embeddings, which is looked up.
    assert count >= matrices - 1 and rounded == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_product_of_every_step(name: str) -> None:
    engine = planned_engine(name, **SIZES)
    check(engine, "generate", 1)
    for step in STEPS:
        check(engine, step, CHUNK)


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_HEAD)
def test_every_product_of_a_head(name: str) -> None:
    lm = hybridlm.load(GOLDEN / name, speculate="mtp", draft_tokens=2, **SIZES)
    check(lm.engine, "generate", 1, mtp_drafts=2)
    check(lm.engine, "verify", 3, mtp_drafts=2)


def test_a_product_in_less_is_found() -> None:
    x = jnp.zeros((4, 4), jnp.float32)
    compiled = jax.jit(lambda x: jax.lax.scan(lambda carry, _: (carry @ x, None), x, length=2)[0])
    count, rounded = products(lambda x: linear(compiled(x), x), x)
    assert count == 2 and len(rounded) == 1
