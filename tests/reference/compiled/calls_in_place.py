"""The check that a kernel's call which does not say that it writes in place is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import pytest

from ir_passes import AuditError, IsolationError, LaneContract, compile_step
from ir_passes.xla_audit.findings import FindingKind


def check_a_call_beside_is_found(
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[..., Any],
    args: tuple[Any, ...],
    contract: LaneContract,
    target: str,
) -> None:
    """Check that neither proof nor audit takes a call for one in place unless it says so; the kernel does not run.

    Args:
        monkeypatch: takes the aliases from every call from now on.
        step: calls the kernel, whose target the contract declares in place.
        args, contract: of the step.
        target: of the call.
    """
    called = jax.ffi.ffi_call
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *given, input_output_aliases, **more: called(*given, **more))

    def beside(*given: Any) -> Any:
        return step(*given)

    with pytest.raises(IsolationError, match="aliases"):
        compile_step(beside, args, contract)
    undeclared = replace(contract, opaque={target: replace(contract.opaque[target], aliases={})})
    with pytest.raises(AuditError) as found:
        compile_step(beside, args, undeclared)
    assert {one.kind for one in found.value.findings} == {FindingKind.POOL_COPY}
    with pytest.raises(jax.errors.JaxRuntimeError, match="not updated in place"):
        jax.block_until_ready(jax.jit(beside)(*args))
