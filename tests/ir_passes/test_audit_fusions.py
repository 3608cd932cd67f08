"""What a library of XLA:CPU would compute wrongly is found in the compiled program."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from audited_steps import FUSED

from ir_passes.audit_fusions import LIBRARY, misread_operands
from ir_passes.findings import Finding, FindingKind
from ir_passes.hlo import read
from ir_passes.program import Array, Computation, Instruction, Module

X = jax.random.normal(jax.random.key(0), (120, 16))
W = jax.random.normal(jax.random.key(1), (8, 16), jnp.bfloat16)
NARROW = jax.random.normal(jax.random.key(1), (4096, 512), jnp.bfloat16)


def found(step: Callable[..., Any], *args: Any, fused: bool = True) -> list[Finding]:
    """In the program of a step, which has products that are fused."""
    executable = read(jax.jit(step).lower(*args).compile(compiler_options=dict(FUSED) if fused else None))
    assert not fused or any(LIBRARY in one.backend_config for one in executable.module.instructions.values())
    return list(misread_operands(executable.module))


@pytest.mark.parametrize(
    "step",
    [
        lambda x, v: x @ jnp.ones((16, 2)),
        lambda x, v: x @ jnp.full((16, 8), 2.5),
        lambda x, v: x @ jnp.broadcast_to(v[:, None], (16, 5)),
        lambda x, v: x @ jnp.broadcast_to(v[:5], (16, 5)),
        lambda x, v: jnp.einsum("abc,cd->abd", x.reshape(40, 3, 16), jnp.ones((16, 2)))[:, :, 0],
        lambda x, v: jnp.einsum("abc,adc->abd", x.reshape(3, 40, 16), jnp.broadcast_to(v, (3, 5, 16))),
    ],
)
def test_a_right_operand_that_is_broadcast_is_found(step: Callable[..., Any]) -> None:
    """The library reads beside it, in most of these."""
    (finding,) = found(step, X, X[0])
    assert finding.kind is FindingKind.FUSED_OPERAND
    assert "right operand" in finding.message and "(broadcast f32[" in finding.message
    assert "test_audit_fusions.py" in finding.where and "as an argument" in finding.remedy
    assert found(step, X, X[0], fused=False) == []


@pytest.mark.parametrize(
    "step",
    [
        lambda x, w, narrow: x @ w.astype(jnp.float32).T,
        lambda x, w, narrow: x.reshape(40, 3, 16) @ w.astype(jnp.float32).T,
        lambda x, w, narrow: jnp.tanh(x @ jnp.arange(32.0).reshape(16, 2)),
        lambda x, w, narrow: (x.reshape(-1)[: 3 * 512].reshape(3, 512) @ narrow.astype(jnp.float32).T) * 2 + 1,
        lambda x, w, narrow: jnp.full((3, 120), 2.5) @ x,
        lambda x, w, narrow: (jnp.tanh(x) * 2.5) @ w.astype(jnp.float32).T,
        lambda x, w, narrow: jnp.broadcast_to(x[0], (7, 16)) @ w.astype(jnp.float32).T,
        lambda x, w, narrow: jnp.broadcast_to(x[:8, None, None], (8, 5, 3, 16)) @ x.reshape(8, 5, 3, 16).mT,
    ],
)
def test_conversions_may_be_read_and_what_is_broadcast_on_the_left(step: Callable[..., Any]) -> None:
    args = X, W, NARROW
    assert found(step, *args) == []
    want = jax.jit(step)(*args)
    got = jax.jit(step).lower(*args).compile(compiler_options=dict(FUSED))(*args)
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-5)


def test_the_conversion_of_a_large_weight_is_fused() -> None:
    """Or there was nothing to look at above."""
    step = jax.jit(lambda x, w: x @ w.astype(jnp.float32).T)
    text = (
        step.lower(X.reshape(-1)[: 3 * 512].reshape(3, 512), NARROW).compile(compiler_options=dict(FUSED)).as_text()
        or ""
    )
    (fused,) = (part for part in text.split("\n\n") if " dot(" in part)
    assert "convert(" in fused


def test_what_lies_between_does_not_hide_it() -> None:
    """A program that XLA does not make today: the broadcast behind two more operations, beside another operand."""
    array = {(): Array("f32", (16, 2), (1, 0), 32)}

    def one(number: int, opcode: str, *operands: int) -> Instruction:
        return Instruction(
            number,
            f"i{number}",
            opcode,
            1,
            array,
            operands,
            (),
            (),
            "",
            "",
            0,
            0,
            (),
            (),
            "",
            (),
            None,
            b"",
            b"",
            "",
            None,
        )

    x, v = one(1, "parameter"), one(2, "parameter")
    spread, product = one(3, "broadcast", 2), one(6, "multiply", 4, 5)
    inside = (
        x,
        v,
        spread,
        one(4, "convert", 3),
        one(5, "parameter"),
        product,
        one(7, "dot", 1, 6),
        one(8, "dot", 6, 1),
    )
    fused = Computation(1, "fused", True, 7, lambda: inside)
    fusion = replace(one(9, "fusion", 1, 2, 5), computation=2, called=(1,), backend_config=LIBRARY)
    main = Computation(2, "main", False, 9, lambda: (fusion,))
    module = Module("step", 2, {1: fused, 2: main}, {9: fusion}, {2: (9,)}, ())
    (finding,) = misread_operands(module)
    assert "%i7 " in finding.message and "%i3 (broadcast" in finding.message
