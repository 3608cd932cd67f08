"""A row of one device may be moved before the sum over devices, not used."""

from collections.abc import Callable

import numpy as np
import pytest
from jax import Array, lax
from zoo.meshes.sharded_rows import COPY, COPY_SPECS, draw, here, over

from ir_passes import prove_isolation
from ir_passes.proof.violations import IsolationError, ViolationKind

MOVES: dict[str, Callable[[Array], Array]] = {
    "rev": lambda row: lax.rev(row, (1,)),
    "transpose": lambda row: row.T.T,
    "reduce_precision": lambda row: lax.reduce_precision(row, 5, 2),
}


def copying(move: Callable[[Array], Array], total: Callable[[Array], Array]) -> Callable[..., tuple[Array]]:
    def local(target: Array, source: Array, read: Array, write: Array) -> tuple[Array]:
        row = source.at[here(read, source)].get(mode="fill", fill_value=0, wrap_negative_indices=False)
        row = total(move(row))
        return (target.at[here(write, target)].set(row, mode="drop", wrap_negative_indices=False),)

    return over(local, *COPY_SPECS, check_vma=False)


@pytest.mark.parametrize("name", MOVES)
def test_a_row_is_moved_and_then_summed(name: str) -> None:
    args = draw(np.random.default_rng(0))
    prove_isolation(copying(MOVES[name], lambda row: lax.psum(row, "data")), args, COPY)
    with pytest.raises(IsolationError):
        prove_isolation(copying(MOVES[name], lambda row: row), args, COPY)


def test_a_row_is_not_computed_with_before_it_is_summed() -> None:
    step = copying(lambda row: row + 1.0, lambda row: lax.psum(row, "data"))
    with pytest.raises(IsolationError) as error:
        prove_isolation(step, draw(np.random.default_rng(0)), COPY)
    assert ViolationKind.COLLECTIVE in {violation.kind for violation in error.value.violations}
