"""Collectives of a program: mesh axes, dtypes, bytes and order.

Collectives over axes of length 1 are not listed. Repeated collectives of the same operands count once, because XLA
merges them.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np

from ir_passes.jaxpr import ir, mesh

OPERATIONS = {
    "psum": "psum",
    "psum_invariant": "psum",
    "pmax": "pmax",
    "pmin": "pmin",
    "reduce_scatter": "reduce_scatter",
    "all_gather": "all_gather",
    "all_gather_invariant": "all_gather",
    "all_to_all": "all_to_all",
    "ppermute": "ppermute",
    "pbroadcast": "pbroadcast",
    "ragged_all_to_all": "ragged_all_to_all",
}
"""Primitive -> operation of a schedule."""
VARYING = frozenset({"axis_index", "ppermute"})
"""Primitives with results that differ between devices, even for a constant."""
ORDERED = frozenset({"all_gather", "all_to_all", "ragged_all_to_all", "reduce_scatter"})
"""Operations that split or join arrays in device order."""


@dataclass(frozen=True)
class Collective:
    """An exchange between devices.

    Attributes:
        operation: name in `jax.lax`.
        axes: mesh axes.
        devices: number of devices in each group.
        bytes: operand bytes on each device, per run.
        times: runs per call; None for a data-dependent loop. Every branch counts.
        source: user's "file:line".
    """

    operation: str
    axes: tuple[str, ...]
    devices: int
    dtype: str
    bytes: int
    times: int | None
    source: str

    @property
    def sent(self) -> int:
        """Least bytes that each device (of a permutation, each sender) sends per run."""
        numerator, denominator = _RING[self.operation](self.devices)
        return -(-numerator * self.bytes // denominator)

    def __str__(self) -> str:
        frequency = "as often as a loop goes round" if self.times is None else f"{self.times} times"
        return (
            f"{self.operation} over {', '.join(self.axes)} of {self.bytes} bytes ({self.dtype}) by each of "
            f"{self.devices} devices{'' if self.times == 1 else f', {frequency}'}"
        )


@dataclass(frozen=True)
class Scheduled:
    """A collective that the compiled program must contain.

    Attributes:
        count: operand elements.
        groups: device groups, as mesh positions: in order for `ORDERED`, else sorted; for a permutation (sender,
            receiver).
        constant: the operand is constant, so XLA may compute the result at compile time.
    """

    collective: Collective
    count: int
    groups: frozenset[tuple[int, ...]] = field(repr=False)
    constant: bool = False


def _sum(devices: int) -> tuple[int, int]:
    """Return the fraction of a ring all-reduce: reduce-scatter and all-gather."""
    return 2 * (devices - 1), devices


_RING: dict[str, Callable[[int], tuple[int, int]]] = {
    "psum": _sum,
    "pmax": _sum,
    "pmin": _sum,
    "reduce_scatter": lambda devices: (devices - 1, devices),
    "all_gather": lambda devices: (devices - 1, 1),
    "all_to_all": lambda devices: (devices - 1, devices),
    "ragged_all_to_all": lambda devices: (devices - 1, devices),
    "ppermute": lambda devices: (1, 1),
    "pbroadcast": lambda devices: (1, 1),
}
"""Number of devices -> fraction of the operand that each sends, as (numerator, denominator)."""


def bytes_sent(collectives: Iterable[Collective]) -> int | None:
    """Return the bytes that each device sends per call; None for a data-dependent loop."""
    total = 0
    for collective in collectives:
        if collective.times is None:
            return None
        total += collective.times * collective.sent
    return total


def exchanged(collectives: Iterable[Collective]) -> tuple[str, ...]:
    """Return a line `COUNT x COLLECTIVE` for equal collectives; source lines are ignored."""
    counts = Counter(replace(collective, source="") for collective in collectives)
    return tuple(f"{count} x {collective}" for collective, count in counts.items())


def schedule_of(program: ir.ClosedJaxpr) -> tuple[Scheduled, ...]:
    """Return the collectives of a program in execution order.

    A collective of an unrolled scan occurs once per copy of the body.
    """
    if all(eqn.primitive.name != "shard_map" for eqn in ir.all_eqns(program.jaxpr)):
        return ()
    flat = ir.without_dead(program).jaxpr
    return tuple(_scheduled(flat, {}, 1, set(flat.constvars)))


def schedule_hash(collectives: Iterable[Collective]) -> str:
    """Return the sha256 of collectives in order, without source lines."""
    rows = [astuple(collective)[:-1] for collective in collectives]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _scheduled(
    jaxpr: ir.Jaxpr, devices: dict[str, int], times: int | None, constants: set[ir.Var]
) -> Iterator[Scheduled]:
    """Yield the collectives of a program; `constants` depend on no input and no device."""
    distinct = {id(eqn) for eqn in _distinct(jaxpr.eqns)}
    for eqn in jaxpr.eqns:
        is_constant = all(isinstance(atom, ir.Literal) or atom in constants for atom in eqn.invars)
        if (
            is_constant
            and (eqn.primitive.name in OPERATIONS or not eqn.effects)
            and eqn.primitive.name not in VARYING
            and not any(ir.sub_jaxprs(eqn))
        ):
            constants.update(eqn.outvars)
        if id(eqn) not in distinct:
            continue
        name = eqn.primitive.name
        if name in OPERATIONS:
            axes = tuple(axis for axis in mesh.axes_of(eqn) if devices[axis] > 1)
            for atom in eqn.invars if axes else ():
                is_constant = isinstance(atom, ir.Literal) or atom in constants
                yield replace(_entry(eqn, atom, axes, devices, times), constant=is_constant)
            continue
        body_devices, repetitions = devices, [(1, times)]
        if name == "shard_map":
            body_devices = devices | mesh.devices_of(eqn.params["mesh"])
        elif name == "while":
            repetitions = [(1, None)]
        elif name == "scan":
            repetitions = _scan_copies(int(eqn.params["length"]), int(eqn.params["unroll"]), times)
        for body in ir.sub_jaxprs(eqn):
            for copies, body_times in repetitions:
                body_constants = {
                    inner
                    for inner, atom in _loop_invariant_inputs(eqn, body)
                    if isinstance(atom, ir.Literal) or atom in constants
                }
                yield from list(_scheduled(body, body_devices, body_times, body_constants)) * copies


def _loop_invariant_inputs(eqn: ir.JaxprEqn, body: ir.Jaxpr) -> Iterator[tuple[ir.Var, Any]]:
    name, atoms = eqn.primitive.name, eqn.invars
    if name == "while":
        return
    if name == "cond":
        atoms = atoms[1:]
    stop = ir.scan_counts(eqn)[0] if name == "scan" else len(atoms)
    if len(body.invars) == len(atoms):
        yield from zip(body.invars[:stop], atoms[:stop], strict=True)


def _scan_copies(length: int, unroll: int, times: int | None) -> list[tuple[int, int | None]]:
    """Return (copies of a scan's body, runs of each copy), the remainder last."""
    unroll = min(unroll, length)
    looped = (unroll, None if times is None else times * (length // unroll)) if unroll else (0, times)
    return [looped, (length % unroll if unroll else 0, times)]


def _groups(eqn: ir.JaxprEqn, axes: tuple[str, ...], devices: dict[str, int]) -> frozenset[tuple[int, ...]]:
    names = list(devices)
    order = np.arange(math.prod(devices.values())).reshape(list(devices.values()))
    other_axes = [name for name in names if name not in axes]
    order = order.transpose([names.index(name) for name in (*other_axes, *axes)])
    groups = order.reshape(-1, math.prod(devices[axis] for axis in axes)).tolist()
    if eqn.primitive.name == "ppermute":
        return frozenset((group[a], group[b]) for group in groups for a, b in eqn.params["perm"])
    parts = eqn.params.get("axis_index_groups") or [range(len(groups[0]))]
    ordering = tuple if OPERATIONS[eqn.primitive.name] in ORDERED else sorted
    return frozenset(tuple(ordering(group[i] for i in part)) for group in groups for part in parts)


def _entry(eqn: ir.JaxprEqn, atom: Any, axes: tuple[str, ...], devices: dict[str, int], times: int | None) -> Scheduled:
    aval = atom.aval
    collective = Collective(
        OPERATIONS[eqn.primitive.name],
        axes,
        math.prod(devices[axis] for axis in axes),
        str(aval.dtype),
        aval.size * aval.dtype.itemsize,
        times,
        ir.source_of(eqn),
    )
    return Scheduled(collective, aval.size, _groups(eqn, axes, devices))


def _distinct(eqns: Iterable[ir.JaxprEqn]) -> Iterator[ir.JaxprEqn]:
    representatives: dict[Any, Hashable] = {}
    first_of: dict[Hashable, ir.JaxprEqn] = {}

    def number(atom: Any) -> Hashable:
        return (str(atom.aval), repr(atom.val)) if isinstance(atom, ir.Literal) else representatives.get(atom, atom)

    for eqn in eqns:
        key = (eqn.primitive.name, tuple(eqn.params.items()), tuple(map(number, eqn.invars)))
        try:
            first = first_of.setdefault(key, eqn)
        except TypeError:  # unhashable parameters
            first = eqn
        if first is eqn or (eqn.effects and eqn.primitive.name not in OPERATIONS):
            yield eqn
        else:
            representatives.update(zip(eqn.outvars, map(number, first.outvars), strict=True))
