"""The collectives of a step, from its program: what devices exchange, along which axes of the mesh, how many bytes.

A collective over axes of length 1 moves nothing and is none. One that is computed twice from the same operands is one:
XLA makes it so.
"""

import hashlib
import json
import math
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
"""Primitives that exchange values between devices, by the name that stands in a schedule."""
VARYING = frozenset({"axis_index", "ppermute"})
"""Primitives whose results depend on the device, of a constant too."""
ORDERED = frozenset({"all_gather", "all_to_all", "ragged_all_to_all", "reduce_scatter"})
"""Operations that give or take parts of an array in the order of the devices."""


@dataclass(frozen=True)
class Collective:
    """One exchange between devices.

    Attributes:
        operation: by the name of `jax.lax`.
        axes: of the mesh, along which devices exchange.
        devices: that exchange with each other.
        dtype: of the operand.
        bytes: of the operand, what each device has of it, each time.
        times: in one call; None where a loop decides it as it runs. Every branch is counted as if it ran.
        source: the user's "file:line".
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
        """Bytes that each device sends in one run, over a ring in which each device talks to the next.

        No other way sends fewer. A device receives as many. For a permutation, the bytes of a device that sends.
        """
        units, of = _RING[self.operation](self.devices)
        return -(-units * self.bytes // of)

    def __str__(self) -> str:
        often = "as often as a loop goes round" if self.times is None else f"{self.times} times"
        return (
            f"{self.operation} over {', '.join(self.axes)} of {self.bytes} bytes ({self.dtype}) by each of "
            f"{self.devices} devices{'' if self.times == 1 else f', {often}'}"
        )


@dataclass(frozen=True)
class Scheduled:
    """A collective of a program as the compiled program has to have it.

    Attributes:
        collective: its entry in the certificate.
        count: elements of the operand.
        groups: devices that exchange, as positions in the mesh, in order if the operation is of `ORDERED` and sorted
            otherwise; of a permutation sender and receiver.
        constant: the operand depends on no input and no device, so that XLA may compute the result itself.
    """

    collective: Collective
    count: int
    groups: frozenset[tuple[int, ...]] = field(repr=False)
    constant: bool = False


def _sum(devices: int) -> tuple[int, int]:
    """Bytes of an all-reduce on a ring: pieces are summed on their way round, and the sums go round once more."""
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
"""Devices -> what each sends of its operand, as a fraction."""


def bytes_sent(collectives: Iterable[Collective]) -> int | None:
    """Bytes that each device sends in one call (`Collective.sent`); None where a loop decides it as it runs."""
    total = 0
    for one in collectives:
        if one.times is None:
            return None
        total += one.times * one.sent
    return total


class Exchanging:
    """Questions about the collectives of a step.

    Attributes:
        collectives: in their order.
    """

    collectives: tuple[Collective, ...]

    @property
    def sent(self) -> int | None:
        """Bytes that each device sends in one call; None where a loop decides it as it runs."""
        return bytes_sent(self.collectives)

    @property
    def exchanged(self) -> tuple[str, ...]:
        """The collectives in words, alike ones in one line."""
        counts: dict[Collective, int] = {}
        for one in self.collectives:
            key = Collective(*astuple(one)[:-1], source="")
            counts[key] = counts.get(key, 0) + 1
        return tuple(f"{count} x {one}" for one, count in counts.items())


def schedule_of(program: ir.ClosedJaxpr) -> tuple[Scheduled, ...]:
    """The collectives of a flat program in its order, those of loops as often as they stand in the compiled program.

    Args:
        program: any; without a `shard_map` it has none.
    """
    if all(eqn.primitive.name != "shard_map" for eqn in ir.all_eqns(program.jaxpr)):
        return ()
    flat = ir.without_dead(program).jaxpr
    return tuple(_scheduled(flat, {}, 1, set(flat.constvars)))


def schedule_hash(collectives: Iterable[Collective]) -> str:
    """sha256 of collectives in their order, which does not know source lines: devices with the same one agree."""
    rows = [astuple(one)[:-1] for one in collectives]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _scheduled(
    jaxpr: ir.Jaxpr, devices: dict[str, int], times: int | None, constants: set[ir.Var]
) -> Iterator[Scheduled]:
    """Yield the collectives of a program.

    Args:
        devices: of each axis of the mesh.
        times: the program runs, if known.
        constants: inputs that depend on no input of the whole program and on no device.
    """
    numbers = _Numbers()
    for eqn in jaxpr.eqns:
        constant = all(isinstance(atom, ir.Literal) or atom in constants for atom in eqn.invars)
        if (
            constant
            and (eqn.primitive.name in OPERATIONS or not eqn.effects)
            and eqn.primitive.name not in VARYING
            and not any(ir.sub_jaxprs(eqn))
        ):
            constants.update(eqn.outvars)
        if numbers.again(eqn):
            continue
        name = eqn.primitive.name
        if name in OPERATIONS:
            axes = tuple(axis for axis in mesh.axes_of(eqn) if devices[axis] > 1)
            for atom in eqn.invars if axes else ():
                known = isinstance(atom, ir.Literal) or atom in constants
                yield replace(_one(eqn, atom, axes, devices, times), constant=known)
            continue
        inside, rounds = devices, [(1, times)]
        if name == "shard_map":
            inside = devices | mesh.devices_of(eqn.params["mesh"])
        elif name == "while":
            rounds = [(1, None)]
        elif name == "scan":
            rounds = _rounds(int(eqn.params["length"]), int(eqn.params["unroll"]), times)
        for body in ir.sub_jaxprs(eqn):
            for copies, often in rounds:
                given = {
                    inner for inner, atom in _given(eqn, body) if isinstance(atom, ir.Literal) or atom in constants
                }
                yield from list(_scheduled(body, inside, often, given)) * copies


def _given(eqn: ir.JaxprEqn, body: ir.Jaxpr) -> Iterator[tuple[ir.Var, Any]]:
    """Yield each input of a called program that stays the same from turn to turn, with the operand that it is."""
    name, atoms = eqn.primitive.name, eqn.invars
    if name == "while":
        return
    if name == "cond":
        atoms = atoms[1:]
    stop = eqn.params["num_consts"] if name == "scan" else len(atoms)
    if len(body.invars) == len(atoms):
        yield from zip(body.invars[:stop], atoms[:stop], strict=True)


def _rounds(length: int, unroll: int, times: int | None) -> list[tuple[int, int | None]]:
    """Return the copies of a scan's body in the compiled program, and the runs of each; the remainder comes last."""
    unroll = min(unroll, length)
    looped = (unroll, None if times is None else times * (length // unroll)) if unroll else (0, times)
    return [looped, (length % unroll if unroll else 0, times)]


def _groups(eqn: ir.JaxprEqn, axes: tuple[str, ...], devices: dict[str, int]) -> frozenset[tuple[int, ...]]:
    """Return the groups of devices that exchange, as positions in the mesh; of a permutation sender and receiver."""
    names = list(devices)
    order = np.arange(math.prod(devices.values())).reshape(list(devices.values()))
    ahead = [name for name in names if name not in axes]
    order = order.transpose([names.index(name) for name in (*ahead, *axes)])
    groups = order.reshape(-1, math.prod(devices[axis] for axis in axes)).tolist()
    if eqn.primitive.name == "ppermute":
        return frozenset((group[a], group[b]) for group in groups for a, b in eqn.params["perm"])
    parts = eqn.params.get("axis_index_groups") or [range(len(groups[0]))]
    arranged = tuple if OPERATIONS[eqn.primitive.name] in ORDERED else sorted
    return frozenset(tuple(arranged(group[i] for i in part)) for group in groups for part in parts)


def _one(eqn: ir.JaxprEqn, atom: Any, axes: tuple[str, ...], devices: dict[str, int], times: int | None) -> Scheduled:
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


class _Numbers:
    """Value numbers: equations of a program that compute what another has computed before get the same one."""

    def __init__(self) -> None:
        self._of: dict[Any, Hashable] = {}
        self._made: dict[Hashable, ir.JaxprEqn] = {}

    def again(self, eqn: ir.JaxprEqn) -> bool:
        """Whether an earlier equation has the same results; to be asked of every equation in order."""
        key = (eqn.primitive.name, tuple(eqn.params.items()), tuple(map(self._number, eqn.invars)))
        try:
            first = self._made.setdefault(key, eqn)
        except TypeError:
            return False  # its parameters cannot be compared
        if first is eqn or (eqn.effects and eqn.primitive.name not in OPERATIONS):
            return False
        self._of.update(zip(eqn.outvars, map(self._number, first.outvars), strict=True))
        return True

    def _number(self, atom: Any) -> Hashable:
        if isinstance(atom, ir.Literal):
            return str(atom.aval), repr(atom.val)
        return self._of.get(atom, atom)
