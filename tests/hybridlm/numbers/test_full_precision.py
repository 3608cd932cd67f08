"""Every float32 product that XLA computes asks for full float32 precision."""

from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import pytest
from paged_shapes import paged

import hybridlm
from hybridlm import EngineConfig
from hybridlm.engine.abstract import abstract_engine
from hybridlm.engine.engine import Engine
from hybridlm.families import linear
from hybridlm.programs.shapes import Shape
from ir_passes.jaxpr import ir
from models.ops.expert_dot import block_form, gather_form, grouped_form, ragged_form

GOLDEN = Path(__file__).parents[2] / "golden"
SHORT = "next_old_fields"
"""Golden of the default run: a layer of each kind of Qwen, with experts. Tracing all goldens takes twenty seconds."""
NAMES = [
    pytest.param(path.name, marks=[] if path.name == SHORT else pytest.mark.long) for path in sorted(GOLDEN.iterdir())
]
WITH_HEAD = ["dense_multimodal", "next_old_fields", "sparse_multimodal"]
LANES, CHUNK, CONTEXT = 4, 16, 140
STEPS: tuple[Literal["generate", "score", "verify"], ...] = ("generate", "score", "verify")
PRODUCTS = {"dot_general", "ragged_dot_general", "conv_general_dilated"}
HIGHEST = jax.lax.Precision.HIGHEST


def products(program: ir.ClosedJaxpr) -> tuple[int, list[str]]:
    """Number of float32 products, and those that are not computed in full float32."""
    results = [eqn for eqn in ir.all_eqns(program.jaxpr) if eqn.primitive.name in PRODUCTS]
    narrow = [eqn for eqn in results if not any(ir.dtype_of(x) == jnp.float32 for x in eqn.invars)]
    assert not narrow, f"a float32 model multiplies other dtypes: {narrow}"
    rounded = [eqn for eqn in results if set(jax.tree.leaves(eqn.params["precision"])) != {HIGHEST}]
    return len(results), [str(eqn) for eqn in rounded]


def check(engine: Engine, shape: Shape) -> None:
    shape = paged(engine, shape)
    step, _ = engine.programs.step(shape)
    count, rounded = products(ir.trace(step, *engine.example_arguments(shape)))
    matrices = sum(param.ndim == 2 for param in engine.params)
    # Every matrix of the weights; one may be the table of embeddings, which is looked up.
    assert count >= matrices - 1 and rounded == []


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_product_of_every_step(name: str) -> None:
    engine = abstract_engine(
        GOLDEN / name / "config.json",
        EngineConfig(lanes=LANES, context=CONTEXT, dtype="float32", chunk=CHUNK, kernels="off"),
    )
    check(engine, Shape("generate", LANES, 1, LANES, 2))
    for step in STEPS:
        check(engine, Shape(step, LANES, CHUNK, LANES, 2))


@pytest.mark.long
@pytest.mark.parametrize("name", WITH_HEAD)
def test_every_product_of_a_head(name: str) -> None:
    sizes: dict[str, Any] = {"lanes": LANES, "context": CONTEXT, "dtype": "float32", "chunk": CHUNK, "kernels": "off"}
    lm = hybridlm.load(GOLDEN / name, speculate="mtp", draft_tokens=2, **sizes)
    check(lm.engine, Shape("generate", LANES, 1, LANES, 2, mtp_drafts=2))
    check(lm.engine, Shape("verify", LANES, 3, LANES, 2, mtp_drafts=2))


@pytest.mark.parametrize(("form", "count"), [(gather_form, 1), (block_form, 1), (grouped_form, 2), (ragged_form, 1)])
def test_every_form_of_the_experts(form: Any, count: int) -> None:
    """Every form of the experts' product; the grouped form has a second pass."""
    x, weight = jnp.zeros((40, 8), jnp.float32), jnp.zeros((3, 4, 8), jnp.float32)
    assert products(ir.trace(form, x, weight, jnp.zeros(40, jnp.int32))) == (count, [])


def test_a_product_in_less_is_found() -> None:
    x = jnp.zeros((4, 4), jnp.float32)
    compiled = jax.jit(lambda x: jax.lax.scan(lambda carry, _: (carry @ x, None), x, length=2)[0])
    count, rounded = products(ir.trace(lambda x: linear(compiled(x), x), x))
    assert count == 2 and len(rounded) == 1
