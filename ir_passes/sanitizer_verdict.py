"""What the sanitizer found: the first fault of every lane, as arrays of the step, and as an error of the host."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ir_passes.ir import JaxprEqn, source_of
from ir_passes.row_ledger import Expected, Label, Owner
from ir_passes.sanitizer_tags import LABEL, SLOT, UNKNOWN

FIELDS = ("owner", "position", "layout", "epoch", "lane")
_CODES = len(FIELDS)


class Verdict(NamedTuple):
    """The first fault of each lane.

    Attributes:
        code: int32 [N], 0 for none, otherwise 1 + 5 * check + field; checks count from 0 in the order of the program.
        slot: int32 [N], the row it happened with, -1 where that is not known.
        found: int32 [N, 4], the label that was there.
    """

    code: Array
    slot: Array
    found: Array

    @staticmethod
    def clean(lanes: int) -> "Verdict":
        """No fault."""
        nothing = jnp.zeros(lanes, jnp.int32)
        return Verdict(nothing, nothing - 1, jnp.zeros((lanes, 4), jnp.int32))


@dataclass(frozen=True)
class Check:
    """One place of a step where labels are compared.

    Attributes:
        what: what the step does there, as "mul reads argument 1".
        source: "file:line".
    """

    what: str
    source: str


class SanitizerError(RuntimeError):
    """Lanes worked with rows that are not theirs.

    Attributes:
        lanes: the lanes concerned.
    """

    def __init__(self, message: str, lanes: tuple[int, ...]):
        super().__init__(message)
        self.lanes = lanes


@dataclass
class Judge:
    """Compares tags with expectations while a step is traced, and keeps the first fault of each lane.

    Attributes:
        expected: of the step, int32 [N, 4] each.
        paths: of the input pools, for messages.
        masked: pools in which a lane that begins may find anything.
        checks: every check so far with its number; the same program gives the same numbers.
        verdict: so far.
        caller: source of the call that is being run, for equations without one.
    """

    expected: Expected
    paths: dict[int, str]
    masked: frozenset[int]
    checks: dict[Check, int] = field(default_factory=dict)
    verdict: Verdict = field(init=False)
    caller: str = "unknown"

    def __post_init__(self) -> None:
        self.verdict = Verdict.clean(self.expected.found.shape[0])

    def source_of(self, eqn: JaxprEqn) -> str:
        """The user's line that made an equation."""
        source = source_of(eqn)
        return self.caller if source == "unknown" else source

    def left(self, lanes: Array) -> Array:
        """The stamps of these lanes, [..., 4]; MIXED where the lane is not known."""
        mixed = jnp.array([Owner.MIXED, 0, 0, 0], jnp.int32).reshape((1,) * lanes.ndim + (4,))
        return jnp.where((lanes == UNKNOWN)[..., None], mixed, _of(self.expected.left, lanes))

    def compare(self, where: JaxprEqn | str, tags: Array, pools: tuple[int, ...], reader: Array, mask: Array) -> None:
        """What `reader` computes with must be labelled as its lane expects, or as its lane itself left it.

        Args:
            where: the equation.
            tags: of what it reads, [..., 6].
            pools: that it may come from.
            reader: lane of what it is combined with, UNKNOWN where that says nothing; broadcast with the tags.
            mask: entries to look at.
        """
        shape = np.broadcast_shapes(tags.shape[:-1], reader.shape, mask.shape)
        tags = jnp.broadcast_to(tags, (*shape, tags.shape[-1]))
        reader, mask = jnp.broadcast_to(reader, shape), jnp.broadcast_to(mask, shape)
        owner_lane, found = tags[..., 0], tags[..., LABEL:]
        lanes = jnp.where(reader == UNKNOWN, owner_lane, reader)
        expected, left = _of(self.expected.found, lanes), _of(self.expected.left, lanes)
        wanted = expected[..., 0]
        excused = (found[..., 0] == Owner.COMPUTED) | (wanted == Owner.ANY)
        if set(pools) <= self.masked:
            excused |= wanted == Owner.FRESH
        differs = found != expected
        wrong = jnp.any(differs, axis=-1) & jnp.any(found != left, axis=-1)
        foreign = (reader != UNKNOWN) & (owner_lane != UNKNOWN) & (reader != owner_lane)
        lost = (lanes == UNKNOWN) & (found[..., 0] != Owner.COMPUTED)
        bad = mask & (lost | ((wrong | foreign) & ~excused))
        kind = jnp.where(foreign | lost, FIELDS.index("lane"), jnp.argmax(differs, axis=-1).astype(jnp.int32))
        names = " and ".join(self.paths[pool] for pool in pools)
        self.record(where, f"reads {names}", bad, lanes, kind, tags[..., SLOT], found)

    def record(
        self, where: JaxprEqn | str, what: str, bad: Array, lanes: Array, kind: Array, slots: Array, found: Array
    ) -> None:
        """Note faults; a lane keeps its first. A fault of no known lane is lane 0's."""
        name, source = (where, "") if isinstance(where, str) else (where.primitive.name, self.source_of(where))
        number = self.checks.setdefault(Check(f"{name} {what}", source), len(self.checks))
        total, count = self.verdict.code.shape[0], bad.size
        if count == 0:
            return
        bad, lanes, kind, slots = (
            jnp.broadcast_to(array, bad.shape).reshape(-1) for array in (bad, lanes, kind, slots)
        )
        found = jnp.broadcast_to(found, (*np.shape(found)[:-1], 4)).reshape((-1, 4))
        place = jnp.where(bad, jnp.maximum(lanes, 0), total)
        entries = jnp.arange(count, dtype=jnp.int32)
        first = jnp.full(total, count, jnp.int32).at[place].min(entries, mode="drop")
        chosen = jnp.minimum(first, count - 1)
        new = (first < count) & (self.verdict.code == 0)
        self.verdict = Verdict(
            jnp.where(new, 1 + number * _CODES + kind[chosen], self.verdict.code),
            jnp.where(new, slots[chosen], self.verdict.slot),
            jnp.where(new[:, None], found[chosen], self.verdict.found),
        )


def _of(rows: Any, lanes: Array) -> Array:
    return jnp.asarray(rows).at[jnp.maximum(lanes, 0)].get(mode="clip")


def explain(verdict: Verdict, expected: Expected, checks: tuple[Check, ...]) -> SanitizerError | None:
    """The error of a verdict, None if there is none; waits for the step."""
    codes, slots, found = (np.asarray(part) for part in verdict)
    wanted = np.asarray(expected.found)
    lines = []
    for lane in np.flatnonzero(codes):
        number, kind = divmod(int(codes[lane]) - 1, _CODES)
        check, slot = checks[number], int(slots[lane])
        got, want = (Label(*(int(value) for value in label)) for label in (found[lane], wanted[lane]))
        lines.append(
            f"lane {lane}, {'row unknown' if slot == UNKNOWN else f'row {slot}'}: wrong {FIELDS[kind]} where "
            f"{check.what}{f' ({check.source})' if check.source else ''}: expected {want}; found {got}"
        )
    if not lines:
        return None
    hint = "stop the sequences of these lanes: their state is not theirs; compare the slot map with the ledger's turns"
    return SanitizerError("; ".join([*lines, hint]), tuple(int(lane) for lane in np.flatnonzero(codes)))
