"""The entries of a contract: each describes one array, or an operation that cannot be looked into."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from ir_passes.contract.statements import StatedError, StatementId
from ir_passes.jaxpr.dtypes import DType


class ContractFault(StatementId):
    """The fault of a contract: the value is its id, `sentence` says it in words. The list is closed."""

    ENTRY = "no-entry", "Something stands in the place of an entry that is none, or that cannot stand there."
    PREFIX = "no-prefix", "The entries are no pytree prefix of the arguments or results."
    ARGUMENTS = "arguments", "There is not one entry for each argument."
    AXIS = "axis", "An entry names an axis that its array does not have."
    ROLE = "role", "An entry has a role that does not exist, or that it cannot have there."
    ARRAY = "array", "An array has another dtype or shape than its entry needs."
    NO_LANES = "no-lanes", "No entry says how many lanes the step has."
    LANES = "lanes", "Lane axes have different lengths."
    PACKED = "packed", "Packed axes of a layout differ in length, or not one entry tells the lane of each token."
    INPUT = "input", "An output has an entry that only inputs have."
    SIZE = "size", "A slot map or a page table has no rows."
    GROUP = "group", "A slot map or page table names a group that no pool belongs to."
    MAPS = "maps", "The pools of a group have no one map that says which rows are written."
    DIMS = "dims", "A pool has another number of dimensions than names of dimensions."
    ROWS = "rows", "A pool without a slot map does not have one row per lane."
    SUCCESSOR = "successor", "An output pool has no input pool of the same shape, dtype and entry to succeed."
    OPAQUE = "opaque", "A declaration of an operation says something that no operation can do."
    OPAQUE_NAME = "opaque-name", "A declaration is for all operations of one primitive."
    TOKENS = "tokens", "A measurement names an array that has no tokens of lanes."
    ACCEPTED = "accepted", "A measurement needs one output that counts accepted tokens."
    NOT_MEASURED = "not-measured", "Dependence is not measured of packed page tables."

    def error(self, about: str, message: str) -> "ContractError":
        """The error of this one fault; arguments as for `fault`."""
        return ContractError(self.fault(about, message))


class ContractError(StatedError, ValueError):
    """A contract does not fit the function or the arguments it was given for; `ContractFault` lists the ids."""


LaneRole = Literal["length", "active", "accepted"]
SharedRole = Literal["active_count"]
SlotRole = Literal["both", "read", "write"]
PackedRole = Literal["cu_seqlens", "segment_ids"]
ONE_LAYOUT = "tokens"
"""Layout of packed tokens in a step that names no layout."""


def _shown(entry: Any, name: str) -> str:
    """Return an entry as a call, without one field if that has its default."""
    names = [field.name for field in fields(entry) if field.name != name or getattr(entry, name) != field.default]
    return f"{type(entry).__name__}({', '.join(f'{name}={getattr(entry, name)!r}' for name in names)})"


@dataclass(frozen=True)
class Shared:
    """An array that is the same for every lane: weights, scalars that the host computed for the whole step.

    Attributes:
        role: "active_count" for an input, int32 []: the lanes whose numbers are not below it are idle, and keep their
            rows. Any number may be given.
    """

    role: SharedRole | None = None

    def __repr__(self) -> str:
        return "Shared()" if self.role is None else f"Shared(role={self.role!r})"


@dataclass(frozen=True)
class Unspecified:
    """An array that a contract says nothing about; None in its place means the same.

    An argument may then hold anything of any lane, and nothing of it may reach a pool or a result. A result must be the
    same for every lane. Both are the strictest that can be asked, so that nothing is lost by leaving an array out.
    """


@dataclass(frozen=True)
class Lane:
    """Entry i along `axis` belongs to lane i.

    Attributes:
        axis: the axis whose length is the number of lanes.
        role: "length" for the int32 number of real tokens of each lane, an input (0: the lane is idle and keeps its
            rows), "active" for the bool mask of the lanes that are not idle, an input, "accepted" for the int32 number
            of tokens of each lane that a verification step accepted; of an output it is proved that it is never
            negative, and 0 for an idle lane.
    """

    axis: int = 0
    role: LaneRole | None = None


@dataclass(frozen=True)
class Packed:
    """Entry t along `axis` belongs to the lane of token t: the tokens of all lanes lie one behind the other.

    The layout is an input of the step: how many tokens each lane has is known to all of them. Tokens behind the last
    one are padding; what the step computes for them is outside every claim, and may depend on anything, but nothing of
    a lane may depend on them. A lane without tokens is padding too: what the step returns for it is outside every
    claim, it stands on the null row of every slot map and names null pages only, and where pools have one row per lane
    every lane has a token.

    Attributes:
        axis: the token axis; its length is the same in all packed arrays of a step.
        role: None for what belongs to tokens. "cu_seqlens", an input: int32 [N + 1], token t belongs to lane i where
            cu_seqlens[i] <= t < cu_seqlens[i + 1]; it begins with 0 and never falls (`query_start_loc`). "segment_ids",
            an input: int32 [tokens], the lane of each token, N for padding. Each layout has one of them or both, which
            then agree.
        layout: name of the layout. Needed if a step has several, for example queries and keys of different lengths.
            Token t of one layout and token t of another may belong to different lanes. A lane that has tokens in one
            layout has tokens in every layout.
    """

    axis: int = 0
    role: PackedRole | None = None
    layout: str = ONE_LAYOUT

    def __repr__(self) -> str:
        return _shown(self, "layout")


@dataclass(frozen=True)
class Pool:
    """Rows of per-sequence state along `axis`, which outlive the step.

    Pools of one group are coupled: a sequence has the same row number in all of them. Among the outputs, the k-th
    array of a group succeeds the k-th among the inputs; a pool without a successor is only read. A group that no slot
    map names is a row pool: it has exactly one row per lane, and row i belongs to lane i.

    Attributes:
        group: name of the group.
        axis: the row axis.
        dims: a name for every dimension, by which it is proved that each is written with what belongs there, even where
            sizes agree; None for one that need not be. The name "position" says more: it is the dimension of a cache
            along which tokens lie, and no index along it may be a constant of the program. Without names none of this
            is proved, which the proof's notes say.
    """

    group: str
    axis: int = 0
    dims: tuple[str | None, ...] | None = None


@dataclass(frozen=True)
class SlotMap:
    """int32 [N]: the row of each lane in the pools of the named groups.

    Attributes:
        groups: one group or several.
        size: values are in [0, size); active entries are distinct.
        role: "both", or "read" (entries may repeat: forks) and "write" (distinct) for copies and moves.
        null: row 0 is the null slot, which idle lanes point at in every slot map that is not `disjoint`, and which is
            outside every claim. False: it is a row like the others, and every lane is active.
        disjoint: its active entries are no entries of another slot map of the groups: rows of their own, as those of
            snapshots beside the running states. Such rows may be written in the step that writes the others. A lane
            that has none is on the null row here, and not idle; it may not read that. Of the slot maps of one group
            that may be written by, roles "both" and "write", all but one are disjoint.
        local: a mesh axis over which lanes and pool rows are split: entries count within the rows of the lane's own
            device, each of which has `size` rows or more; active entries are distinct among the lanes of a device.
    """

    groups: str | tuple[str, ...]
    size: int
    role: SlotRole = "both"
    null: bool = True
    disjoint: bool = False
    local: str | None = None

    def __repr__(self) -> str:
        return _shown(self, "local")

    @property
    def names(self) -> tuple[str, ...]:
        """The groups as a tuple."""
        return (self.groups,) if isinstance(self.groups, str) else self.groups


@dataclass(frozen=True)
class PageTable:
    """int32 [N, ...]: the pages of each lane in the pools of the named groups, as the block tables of paged caches.

    A page is `page_size` rows of a pool, one after the other. Pages that a lane writes to are its own: no other lane
    names them, in this table or in another one of the same groups, and none of them is the null page. Pages that
    several lanes name, as those of a shared prefix, are read only. That is a promise of the host, which
    `ir_passes.host.page_owner` checks; the proof shows that a lane reaches no page which its table does not name.

    Attributes:
        groups: one group or several. A group has slot maps or page tables, not both.
        size: pages of a pool; values are in [0, size).
        page_size: rows of a pool to a page: 1 where a page is a row ([pages, tokens, ...]), the number of tokens in a
            page where pools are flat ([pages * tokens, ...], row `page * page_size + offset`).
        role: "both"; "read": its pages are not written; "write": all its pages are the lane's own, and `size` stands
            for none, to be dropped (with `page_size=1` these are the rows of a flat pool, vLLM's slot mapping).
        packed: int32 [tokens, ...] instead: the entries of a packed token are its lane's, as those of vLLM's slot
            mapping are. Those of padding are `size` where the role is "write", and anything where it is not.
        layout: of these tokens, as of `Packed`.
        null: page 0 is the null page, at which the entries behind a lane's last page point. Nobody writes to it, so
            that all lanes may read it. False: it is a page like the others.
    """

    groups: str | tuple[str, ...]
    size: int
    page_size: int = 1
    role: SlotRole = "both"
    null: bool = True
    packed: bool = False
    layout: str = ONE_LAYOUT

    def __repr__(self) -> str:
        return _shown(self, "layout")

    @property
    def names(self) -> tuple[str, ...]:
        """The groups as a tuple."""
        return (self.groups,) if isinstance(self.groups, str) else self.groups


@dataclass(frozen=True)
class Opaque:
    """The declaration of a custom call, kernel or callback: an entry for each operand and result.

    Row i of a `Lane` result depends on row i of the `Lane` operands, on the rows of lane i in the pools, and on what is
    shared; a `Pool` result differs from the pool that it succeeds in the rows of the lanes only. As in a step, pools of
    a group that a `SlotMap` names have the rows that it says and those of any other group have one row per lane, and
    the k-th pool of a group among the results succeeds the k-th among the operands. An operand `Lane(role="length")`
    says that a lane whose number there is 0 keeps its rows. What is declared here is assumed, not proved, and stands in
    the certificate with the line of every call; a proof sees to it that every call has the operands declared, and that
    all calls under one name run one thing.

    Attributes:
        inputs: `Shared`, `Lane`, `Pool` or `SlotMap` for each operand, in order.
        outputs: `Shared`, `Lane` or `Pool` for each result.
        aliases: index of an operand -> index of the result that takes over its memory, as the call says it.
        scratch_bytes: bytes of scratch that the operation uses for N lanes; None if it uses none.
        fresh: index of a `Lane` operand, bool [N]: a lane that begins there does not read its rows. Only the sanitizer
            takes it into account, for the proof does not ask what a row holds.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)
    scratch_bytes: Callable[[int], int] | None = None
    fresh: int | None = None


Entry = Shared | Lane | Packed | Pool | SlotMap | PageTable | Unspecified


@dataclass(frozen=True)
class Bound:
    """One array of a step with its entry.

    Attributes:
        path: its place, as "args[1][0].conv", "kwargs['scale']" or "result[0]".
        entry: its contract entry.
        shape, dtype: of the array.
    """

    path: str
    entry: Entry
    shape: tuple[int, ...]
    dtype: DType

    @property
    def layout(self) -> str | None:
        """Layout of the packed tokens that the array has or describes; None for other arrays."""
        is_packed = isinstance(self.entry, Packed) or (isinstance(self.entry, PageTable) and self.entry.packed)
        return getattr(self.entry, "layout", None) if is_packed else None

    @property
    def tokens(self) -> int | None:
        """Length of the axis of packed tokens; None for arrays without one, as `cu_seqlens`."""
        if self.layout is None or getattr(self.entry, "role", None) == "cu_seqlens":
            return None
        return self.shape[getattr(self.entry, "axis", 0)]


ENTRIES = (Shared, Lane, Packed, Pool, SlotMap, PageTable, Unspecified)
ROW_MAPS = (SlotMap, PageTable)
"""Entries that name the rows of lanes in pools: a group without any of them is a row pool."""


def check_role(where: str, entry: Any) -> None:
    """Raise ContractError, saying where, unless the role of an entry is one of those there are."""
    if not isinstance(entry, Shared | Lane | Packed | SlotMap | PageTable):
        return
    of_arrays = {Shared: SharedRole, Lane: LaneRole, Packed: PackedRole}
    known_roles = {kind: (None, *get_args(roles)) for kind, roles in of_arrays.items()}
    roles = known_roles.get(type(entry), get_args(SlotRole))
    if entry.role not in roles:
        known = ", ".join(map(repr, roles))
        message = f"{type(entry).__name__} has no role {entry.role!r}; expected one of {known}"
        raise ContractFault.ROLE.error(where, message)
