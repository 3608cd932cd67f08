"""The check finds a kernel call without its in-place declaration."""

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
    """Check that proof and audit require a declared in-place call; nothing runs.

    Args:
        monkeypatch: takes the aliases from every call from now on.
        step: calls the kernel, whose target the contract declares in place.
        args, contract: of the step.
        target: of the call.
    """
    called = jax.ffi.ffi_call
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *args, input_output_aliases, **options: called(*args, **options))

    def beside(*args: Any) -> Any:
        return step(*args)

    with pytest.raises(IsolationError, match="aliases"):
        compile_step(beside, args, contract)
    undeclared = replace(contract, opaque={target: replace(contract.opaque[target], aliases={})})
    with pytest.raises(AuditError) as error:
        compile_step(beside, args, undeclared)
    assert {finding.kind for finding in error.value.findings} == {FindingKind.POOL_COPY}
    with pytest.raises(jax.errors.JaxRuntimeError, match="not updated in place"):
        jax.block_until_ready(jax.jit(beside)(*args))
