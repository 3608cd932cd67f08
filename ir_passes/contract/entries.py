"""Contract entries: each describes one array, or an opaque operation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ir_passes.contract.fault_texts import hiding

LaneRole = Literal["length", "active", "accepted"]
SharedRole = Literal["active_count"]
SlotRole = Literal["both", "read", "write"]
PackedRole = Literal["cu_seqlens", "segment_ids"]
ONE_LAYOUT = "tokens"
"""Layout of packed tokens in a step without named layouts."""


@dataclass(frozen=True)
class Shared:
    """An array for all lanes, for example weights.

    Attributes:
        role: "active_count" for an int32 scalar input: lanes from this number on are idle and keep their rows; any
            value is allowed.
    """

    role: SharedRole | None = None

    __repr__ = hiding("role")


@dataclass(frozen=True)
class Unspecified:
    """An array without an entry, as None: the strictest conditions.

    An argument may reach no pool and no result. A result must be equal for all lanes.
    """


@dataclass(frozen=True)
class Lane:
    """Index i along `axis` belongs to lane i.

    Attributes:
        role: "length" for an input, the int32 number of real tokens of each lane (a lane of length 0 is idle and keeps
            its rows); "active" for an input, the bool mask of active lanes; "accepted" for the int32 number of accepted
            tokens of each lane: in an output it is proved to be 0 or more, and 0 for an idle lane.
    """

    axis: int = 0
    role: LaneRole | None = None


@dataclass(frozen=True)
class Packed:
    """Concatenated tokens: index t along `axis` belongs to the lane of token t.

    The layout is an input of the step; the number of tokens of each lane is shared. Tokens after the last lane are
    padding: their results are outside every claim, and no lane may depend on them. A lane without tokens is padding
    too: it is on the null row of every slot map and has null pages only. If pools have one row per lane, every lane has
    a token.

    Attributes:
        axis: the token axis, of equal length in all arrays of a layout.
        role: None for data of tokens. "cu_seqlens", an input: int32 [N + 1]; token t belongs to lane i if cu_seqlens[i]
            <= t < cu_seqlens[i + 1]; it begins with 0 and never falls (`query_start_loc`). "segment_ids", an input:
            int32 [tokens], the lane of each token, N for padding; never falls. Each layout has one of them, or both in
            agreement.
        layout: name, for a step with several layouts, for example of queries and keys: token t of two layouts may
            belong to different lanes. A lane with tokens in one layout has tokens in every layout.
    """

    axis: int = 0
    role: PackedRole | None = None
    layout: str = ONE_LAYOUT

    __repr__ = hiding("layout")


@dataclass(frozen=True)
class Pool:
    """Rows of per-sequence state along `axis`.

    Pools of one group are coupled: a sequence has the same row number in all of them. The k-th output of a group
    succeeds the k-th input; a pool without a successor is only read. A group without a slot map has exactly one row per
    lane, and row i belongs to lane i.

    Attributes:
        axis: the row axis.
        dims: a name or None for every dimension; a named dimension is written with data of the same name only.
            "position" runs along the tokens of a cache: no index of a gather, write or dynamic slice is constant there.
    """

    group: str
    axis: int = 0
    dims: tuple[str | None, ...] | None = None


class _RowMap:
    """Rows of lanes in the pools of `groups`."""

    groups: str | tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.groups,) if isinstance(self.groups, str) else self.groups


@dataclass(frozen=True)
class SlotMap(_RowMap):
    """int32 [N]: the row of each lane in the pools of the named groups.

    Attributes:
        size: entries are in [0, size); active entries are distinct.
        role: "both", or "read" (entries may repeat: forks) and "write" (distinct) for copies and moves.
        null: row 0 is the null slot, outside every claim; idle lanes point at it in every slot map that is not
            `disjoint`. False: row 0 is an ordinary row, and every lane is active.
        disjoint: its active entries occur in no other slot map of the groups, for example rows of snapshots. The same
            step may write both. An active lane without such a row points at the null row and may not read it. Of the
            slot maps of a group with role "both" or "write", all but one are disjoint.
        local: mesh axis that splits lanes and pool rows: entries count within the rows of the lane's device; each
            device has `size` rows or more, and active entries are distinct among its lanes.
    """

    groups: str | tuple[str, ...]
    size: int
    role: SlotRole = "both"
    null: bool = True
    disjoint: bool = False
    local: str | None = None

    __repr__ = hiding("local")


@dataclass(frozen=True)
class PageTable(_RowMap):
    """int32 [N, ...]: the pages of each lane in pools, as block tables.

    A page is `page_size` adjacent rows of a pool. A page that a lane writes belongs to it: no other lane has it in a
    table of the same groups, and it is not the null page. Pages of several lanes are read only. The host promises this
    (`ir_passes.host.page_owner`).

    Attributes:
        groups: a group has slot maps or page tables, not both.
        size: pages of a pool; entries are in [0, size).
        page_size: rows of a page: 1 if a page is a row ([pages, tokens, ...]), the tokens of a page in flat pools
            ([pages * tokens, ...], row `page * page_size + offset`).
        role: "both"; "read": its pages are not written; "write": all its pages belong to the lane, and the entry `size`
            means no page (with `page_size=1`, vLLM's slot mapping).
        packed: int32 [tokens, ...] instead: the entries of a packed token belong to its lane. Entries of padding are
            `size` for the role "write", and arbitrary otherwise.
        layout: of these tokens, as in `Packed`.
        null: page 0 is the null page, for entries after a lane's last page: all lanes may read it, none writes it.
            False: an ordinary page.
        local: mesh axis that splits lanes and pages: entries count within the pages of the lane's device; each device
            has `size` pages or more, and a null page.
    """

    groups: str | tuple[str, ...]
    size: int
    page_size: int = 1
    role: SlotRole = "both"
    null: bool = True
    packed: bool = False
    layout: str = ONE_LAYOUT
    local: str | None = None

    __repr__ = hiding("layout", "local")


@dataclass(frozen=True)
class Opaque:
    """A declaration of a custom call, kernel or callback: entries of operands and results.

    Row i of a `Lane` result depends on row i of the `Lane` operands, on the rows of lane i in the pools, and on shared
    operands; a `Pool` result differs from its predecessor in the rows of the lanes only. A `Shared` result of a call
    with lanes counts as a value of several lanes. Rows and successors of pools are as in a step. With an operand
    `Lane(role="length")`, a lane of length 0 keeps its rows. The declaration is assumed, and listed in the certificate.
    The proof checks that every call has the declared operands, and that all calls of one name run one program.

    Attributes:
        inputs: `Shared`, `Lane`, `Pool` or `SlotMap` for each operand, in order.
        outputs: `Shared`, `Lane` or `Pool` for each result.
        aliases: index of an operand -> index of the result in the same memory.
        scratch_bytes: number of lanes -> bytes of scratch, if any.
        fresh: index of a `Lane` operand, bool [N]: a lane with True does not read its rows. For the sanitizer only.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    aliases: Mapping[int, int] = field(default_factory=dict)
    scratch_bytes: Callable[[int], int] | None = None
    fresh: int | None = None


@dataclass(frozen=True)
class ComputedGrid:
    """A declaration about the computed grid of a Pallas kernel that the proof reads.

    Each computed length is 0 or greater, and at most the number of blocks, or of prefetched numbers of blocks, along
    its axis. All else is proved. The certificate lists it with every call. A name is of one function, in any shapes.

    Attributes:
        written: no output of the step depends on what an element of a result's block holds before it is written. A
            block begins anew in each step that follows one with another block.
    """

    written: bool = False


Entry = Shared | Lane | Packed | Pool | SlotMap | PageTable | Unspecified


@dataclass(frozen=True)
class Bound:
    """An array of a step with its entry.

    Attributes:
        path: as `args[1][0].conv`, `kwargs['scale']` or `result[0]`.
    """

    path: str
    entry: Entry
    shape: tuple[int, ...]
    dtype: Any

    @property
    def layout(self) -> str | None:
        is_packed = isinstance(self.entry, Packed) or (isinstance(self.entry, PageTable) and self.entry.packed)
        return getattr(self.entry, "layout", None) if is_packed else None

    @property
    def tokens(self) -> int | None:
        if self.layout is None or getattr(self.entry, "role", None) == "cu_seqlens":
            return None
        return self.shape[getattr(self.entry, "axis", 0)]


ENTRIES = (Shared, Lane, Packed, Pool, SlotMap, PageTable, Unspecified)
ROW_MAPS = (SlotMap, PageTable)
"""Entries with the rows of lanes; a group without them has one row per lane."""
