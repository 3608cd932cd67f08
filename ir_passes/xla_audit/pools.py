"""Check that every pool's successor takes its bytes.

The executable's input-output aliases must give each result its pool's bytes.
"""

from collections.abc import Iterator

from ir_passes.contract.contract import Bound, BoundContract
from ir_passes.xla_audit.findings import Finding, FindingKind, where
from ir_passes.xla_audit.program import Executable


def io_aliases(executable: Executable, bound: BoundContract) -> Iterator[Finding]:
    """Find pools without an in-place successor, and other overwritten inputs."""
    into = executable.module.aliases
    for i, pool in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        output = None if number is None else into.get((number, ()))
        got = None if output is None else output[0] if output else 0
        successor = bound.successors.get(i)
        if got == successor:
            continue
        place = _parameter(executable, number, pool)
        if successor is None:
            assert got is not None
            kind = FindingKind.OVERWRITTEN
            message = f"{pool.path} has no successor, but {bound.outputs[got].path} is written into its bytes"
            remedy = "Donate only arguments whose successors the contract declares."
        elif got is not None:
            kind, path = FindingKind.WRONG_SUCCESSOR, bound.outputs[successor].path
            message = f"{pool.path} must become {path} in place, but its bytes take {bound.outputs[got].path}"
            remedy = (
                "Return the pools in the order of their arguments: JAX gives a donated array to the first output that "
                "has its shape and dtype."
            )
        elif number is None:
            kind, place, path = FindingKind.NOT_IN_PLACE, executable.module.main.name, bound.outputs[successor].path
            message = f"{pool.path} is never read, so {path} does not take its bytes"
            remedy = "Write the successor as an update of the pool."
        else:
            kind, path = FindingKind.NOT_IN_PLACE, bound.outputs[successor].path
            message = f"{path} must take the bytes of {pool.path}, but the pool is not donated or no output can use it"
            remedy = (
                "Pass the pool's argument in donate_argnums and return its successor in the same shape, dtype and "
                "sharding."
            )
        yield Finding(kind, place, message, remedy, (pool.path,))


def _parameter(executable: Executable, number: int | None, bound: Bound) -> str:
    if number is None:
        return bound.path
    return where(executable.module.main.parameters[number], executable.module)
