"""The check that every pool is written in place: its successor takes its bytes.

Pools are donated; the executable's input-output aliases must give each result the bytes of the pool that it succeeds.
"""

from collections.abc import Iterator

from ir_passes.contract.contract import Bound, BoundContract
from ir_passes.xla_audit.findings import Finding, FindingKind, where
from ir_passes.xla_audit.program import Executable, Index


def io_aliases(executable: Executable, bound: BoundContract) -> Iterator[Finding]:
    """Find pools that do not become their successor in place, and other overwritten inputs."""
    into: dict[tuple[int, Index], Index] = {}
    for alias in executable.module.aliases:
        into[(alias.parameter, alias.parameter_index)] = alias.output
    main = executable.module.main
    for i, pool in enumerate(bound.inputs):
        number = executable.parameters.get(i)
        output = None if number is None else into.get((number, ()))
        got = None if output is None else output[0] if output else 0
        successor = bound.successors.get(i)
        if successor is None:
            if got is not None:
                yield Finding(
                    FindingKind.OVERWRITTEN,
                    _parameter(executable, number, pool),
                    f"{pool.path} has no successor, but {bound.outputs[got].path} is written into its bytes",
                    "Donate only arguments whose successors the contract declares.",
                    (pool.path,),
                )
            continue
        if got == successor:
            continue
        path = bound.outputs[successor].path
        if got is not None:
            yield Finding(
                FindingKind.WRONG_SUCCESSOR,
                _parameter(executable, number, pool),
                f"{pool.path} must become {path} in place, but its bytes take {bound.outputs[got].path}",
                "Return the pools in the order of their arguments: JAX gives a donated array to the first output that "
                "has its shape and dtype.",
                (pool.path,),
            )
        elif number is None:
            yield Finding(
                FindingKind.NOT_IN_PLACE,
                main.name,
                f"{pool.path} is never read, so {path} does not take its bytes",
                "Write the successor as an update of the pool.",
                (pool.path,),
            )
        else:
            yield Finding(
                FindingKind.NOT_IN_PLACE,
                _parameter(executable, number, pool),
                f"{path} must take the bytes of {pool.path}, but the pool is not donated or no output can use it",
                "Pass the pool's argument in donate_argnums and return its successor in the same shape, dtype and "
                "sharding.",
                (pool.path,),
            )


def _parameter(executable: Executable, number: int | None, bound: Bound) -> str:
    if number is None:
        return bound.path
    return where(executable.module.main.parameters[number], executable.module)
