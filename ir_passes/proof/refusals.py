"""Messages and remedies of refusals; no verdict depends on them.

More than 300 lines: one list of texts, by the subject of the rule that refuses.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ir_passes.proof.violations import Violation, ViolationKind

BOUNDS, COLLECTIVE, CONSTANT = ViolationKind.BOUNDS, ViolationKind.COLLECTIVE, ViolationKind.CONSTANT
WRONG_ROW, FRAME = ViolationKind.WRONG_ROW, ViolationKind.FRAME


class RefusalText(NamedTuple):
    """A text of a refusal, with details in braces."""

    message: str
    remedy: str
    kind: ViolationKind = ViolationKind.CROSS_LANE

    def __call__(self, **details: object) -> "RefusalText":
        """Fill in the details."""
        return RefusalText(self.message.format(**details), self.remedy.format(**details), self.kind)

    def violation(self, about: tuple[str, ...] = ()) -> Violation:
        """Return the violation without a place."""
        return Violation(self.kind, "", "unknown", self.message, self.remedy, about)


# row maps
_DROP = "use mode='drop' for writes, mode='fill' for reads"
OTHER_GROUP = RefusalText(
    "rows of {path} are picked by {slots}, which is the {map} of {groups}",
    "use the {map} of group {group!r}",
    WRONG_ROW,
)
OTHER_ROLE = RefusalText(
    "{path} is {used} by {slots}, which is declared for the opposite",
    "use the {map} with the other role, or role='both'",
    WRONG_ROW,
)
PADDING_WRITES = RefusalText(
    "a padding token writes to a lane's row in {path}",
    "send padding past the end: where(segment < lanes, row, size) with mode='drop', or read the {map} by "
    ".at[segment].get(mode='fill', fill_value=size)",
    WRONG_ROW,
)
MAP_OF_A_DEVICE = RefusalText(
    "{slots} counts rows within a device along {local!r}, and {path} is not split over it here",
    "use it inside of a shard_map that splits the lanes and the rows of the pool over {local!r}",
    WRONG_ROW,
)
MAP_WITHOUT_DEVICE = RefusalText(
    "{slots} counts rows within a device along {local!r}, and this is no program of one device",
    "use it inside of a shard_map over {local!r}",
    WRONG_ROW,
)
TWO_WRITERS = RefusalText(
    "{path} is {used} by {slots} after rows of it were written by {writer}",
    "read all rows before any is written, and write by one slot map, or declare SlotMap(..., disjoint=True)",
)
FEW_ROWS = RefusalText(
    "{slots} holds rows in [0, {size}), {path} has {rows}",
    "give the pool as many rows as the slot map has slots",
    BOUNDS,
)
PAST_THE_MAP = RefusalText(
    "rows of {path} are picked by {slots} or by a row past its last one, {last}, which may be one that no lane owns",
    "declare the slot map with size={rows}, as many as the pool has rows, and guard with that row",
    WRONG_ROW,
)
NULL_ROW_READ = RefusalText(
    "a lane that is switched off reads the null row of {path}, which any lane may have written",
    "read by the slot map itself, or by where(active, slots, size) with mode='fill'",
    WRONG_ROW,
)
NO_ROW_READ = RefusalText(
    "a lane that has no row in {slots} reads the null row of {path}, which any lane may have written",
    "read by where({slots} > 0, {slots}, {size}) with mode='fill', or declare it with role='write'",
    WRONG_ROW,
)
CLAMPED = RefusalText("a row of {path} that may lie outside of it is clamped to its first or last row", _DROP, BOUNDS)
OTHER_DEVICE = RefusalText(
    "{slots} counts rows within a device along {local!r}, and is not used as it is by that device's lanes",
    "split {slots} over {local!r} like the pool, and index by its entries as they are",
    WRONG_ROW,
)
SHIFTED_WHOLE_POOL = RefusalText(
    "{path} has all its rows on every device, and is indexed by {slots} less {shift}",
    "index it by the entries as they are",
    WRONG_ROW,
)
OTHER_SHIFT = RefusalText(
    "a device along {along} has {length} rows of {path}, and indexes them by {slots} less {shift}",
    "subtract the rows of the devices before it: {slots} - {length} * axis_index({along!r})",
    WRONG_ROW,
)
CLAMPED_TO_DEVICE = RefusalText(
    "a row of {path} that another device along {along} has is clamped to one of this device", _DROP, BOUNDS
)
FILLED_ON_DEVICE = RefusalText(
    "a row of {path} that another device along {along} has is read as {filler}",
    "use fill_value=0, and sum over {along}",
    COLLECTIVE,
)

# page tables
EACH_RANK = (
    "keep tokens, page tables and pages whole on every device, and split heads or channels; or compile a step for each "
    "data-parallel rank, whose tokens, cu_seqlens, tables and rows are its own"
)
PAGES_OF_A_DEVICE = RefusalText(
    "{slots} counts pages within a device along {local!r}, and is used by lanes of others",
    "use it inside of a shard_map that splits the table and the pages over {local!r}",
    WRONG_ROW,
)
SPLIT_PAGES = RefusalText(
    "{slots} or {path} is split over devices along {along}, and pages are global", EACH_RANK, COLLECTIVE
)
OTHER_PAGE_SIZE = RefusalText(
    "a page of {path} is {indices} indices long here ({page_size} rows in {slots}), and is picked by an index that "
    "counts {stride} to a page",
    "index with entry * page_size + offset where pages are flat, with the entry itself where they are rows",
    WRONG_ROW,
)
FEW_PAGES = RefusalText(
    "{slots} holds pages in [0, {size}) of {page_size} rows, {path} has {length} of them",
    "give the pool as many pages as the page table has",
    BOUNDS,
)
PAST_THE_PAGES = RefusalText(
    "rows of {path} are picked by {slots} or by a row past its last page, which may be a lane's",
    "give the pool as many pages as the page table, and use mode='drop' for writes, mode='fill' for reads",
    WRONG_ROW,
)
BELOW_THE_PAGES = RefusalText("a row of {path} that may lie below its first one is clamped to that", _DROP, WRONG_ROW)
NO_PAGE = RefusalText(
    "pages of {path} are picked by an index that is not an entry of the lane's row in its page table",
    "index pages with an entry of the lane's row of its page table, as table[lane, position // page_size], or with "
    "where(active, entry, size) and mode='drop'",
    WRONG_ROW,
)

# rows of pools
_BY_SLOT = (
    "index rows with the lane's entry in the slot map as it is, or with where(active, slots, size) and mode='drop' "
    "(mode='fill' for reads)"
)
UNDO = "use what does not differ between rows, or undo the order first"
PLACES_OF_ROWS = RefusalText(
    "rows of a pool are used with what depends on their place in an order that depends on all lanes", UNDO
)
COPIES_OF_A_POOL = RefusalText(
    "each device along {along} writes the rows of its own lanes to its own copy of a pool",
    "split lanes with a row pool, or write the pool outside of the shard_map",
    COLLECTIVE,
)
OTHER_CONTENT = RefusalText(
    "rows of pool {group!r} are written with values of other lanes than the rows' owners",
    "write to each row what its own lane computed",
    WRONG_ROW,
)
EVERY_ROW = RefusalText(
    "every row of pool {group!r} is written, those that no lane owns too",
    "write rows by the slot map, or put a changed part back where it was taken",
    FRAME,
)
SEVERAL_ROWS = RefusalText("several rows of {path} are taken together, whoever owns them", _BY_SLOT, WRONG_ROW)
CONSTANT_ROW = RefusalText(
    "rows of {path} are picked by a constant of the program{number}",
    "make the row an operand: an entry of a slot map",
    CONSTANT,
)
NO_SLOT = RefusalText(
    "rows of {path} are picked by an index that is not the lane's entry in its slot map", _BY_SLOT, WRONG_ROW
)
NO_MERGED_SLOT = RefusalText(
    NO_SLOT.message, "index by slots * {inner} + offset, with offsets below {inner}, or do not merge axes", WRONG_ROW
)

# equations without a rule, joins of owners
STALE_READ = RefusalText(
    "{path} is read after a later version of it was made",
    "use the version that the write returned, or read before the write",
    ViolationKind.STALE,
)
RULE_FAILED = RefusalText(
    "the rule of {name!r} failed on this form: {error}: {reason}",
    "report the error; write the operation in another form, or declare its function by rowwise",
    ViolationKind.UNKNOWN,
)
_REMEDIES = {
    "ragged_all_to_all": "sum what devices have of all rows, by lax.psum",
    "regularized_incomplete_beta": "write the continued fraction with a fixed number of terms; its loop is shared",
    "check": "make its error a result of each lane: error, y = jax.vmap(checkify.checkify(one_lane))(x), both Lane()",
}
"""Operation without a rule -> the remedy."""


def no_rule(name: str, parameter: str | None, effects: Any) -> RefusalText:
    """Return the refusal of an operation; `parameter`: without a rule, as "name=value"."""
    message = f"nothing is known of {name!r}" if parameter is None else f"{name!r} with {parameter} has no rule"
    remedy = "declare it with Opaque or rowwise, or use operations that have a rule"
    if parameter is not None:
        remedy = "leave this parameter at its default, or put the operation in a function declared by rowwise"
    message += f", and it has effects {effects}" if effects else ""
    return RefusalText(message, _REMEDIES.get(name, remedy), ViolationKind.UNKNOWN)


BEFORE_SUM = RefusalText(
    "a row that one device along {along} has, and all others have as zeros, is used as it is",
    "sum what was read over {along} first, by lax.psum",
    COLLECTIVE,
)
ARRAY_REVEALS_ORDER = RefusalText("a shared array reveals where rows lie in an order that depends on all lanes", UNDO)
EVERY_ROW_COMPUTED = RefusalText(
    "{name!r} computes every row of pool {group!r}, those that no lane owns too",
    "gather the lanes' rows by the slot map, compute, and scatter them back",
    FRAME,
)
TWO_OWNERS = RefusalText(
    "it combines {first} with {second}", "combine only elements of the same lane; keep lanes on one axis, in one order"
)
TWO_POOLS = RefusalText("it combines {first} with {second}", "combine rows after gathering them by slot")
REPLACED_POOL = RefusalText(
    "rows of one pool of group {group!r} may be replaced by another's, those no lane owns too",
    "keep the pools of a group apart",
    FRAME,
)

# indices
CONSTANT_POSITION = RefusalText(
    "position {position} of {path} is a constant of the program", "make positions operands of the step", CONSTANT
)
SORTED_INDICES = RefusalText(
    "indices of lanes are said to be sorted, and nothing shows that they are", "leave indices_are_sorted out"
)
ONE_PLACE = RefusalText("one place is picked by indices of different lanes", "let each lane index its own elements")
CAPTURED = RefusalText(
    "an array that was captured when the program was traced is indexed by rows of a pool, by {path}",
    "make the array an argument of the step",
    CONSTANT,
)
INDEX_REVEALS_ORDER = RefusalText("a shared index reveals where rows lie in an order that depends on all lanes", UNDO)
CAPACITY = (
    "; places in the buffers of experts couple lanes, since a capacity drops tokens by how many other lanes chose the "
    "same expert: use the sorted form, which drops none: order = jnp.argsort(expert), groups = jnp.bincount(expert, "
    "length=experts), y = jax.lax.ragged_dot(x[order], w, groups)[jnp.argsort(order)]"
)
_OWN_ELEMENTS = "let each lane index its own elements (vmap over lanes, take_along_axis), and pools by the slot map"
PICKED_LANES = RefusalText("an index picks elements along axis {axis}, which holds different lanes", _OWN_ELEMENTS)
PART_OF_AN_AXIS = RefusalText(
    "lanes are written to a part of axis {axis}", "write lanes to an axis of their own, all of them"
)
SLOT_OF_NO_POOL = RefusalText(
    "an array that is no pool is indexed by slot", "index arrays of one step by lane", WRONG_ROW
)
PLACES_BY_DATA = RefusalText(
    "lanes write to places that depend on their data, in an array that all lanes see", _OWN_ELEMENTS + CAPACITY
)

# devices
BRANCHED_EXCHANGE = RefusalText(
    "devices along {along} may come here or not, each as its own values say, and the others wait",
    "exchange outside of the branch or loop, or decide by what all of these devices have alike",
    COLLECTIVE,
)


def crossing_exchange(axes: Sequence[str], of_pool: bool) -> RefusalText:
    """Return the refusal of an exchange between devices with different lanes or rows."""
    subject = "rows of a pool" if of_pool else "lanes"
    message = f"it exchanges values over mesh axis {', '.join(axes)}, over which {subject} are split"
    return RefusalText(message, "exchange over axes that split heads or experts only", COLLECTIVE)


OWN_ORDERS = RefusalText(
    "each device along {along} may have rows in an order of its own, and they are exchanged",
    "undo the order before the exchange",
    COLLECTIVE,
)
OTHER_SUM = RefusalText(
    "a row that one device along {holders} has, and all others have as zeros, is summed over {over}",
    "sum it over {holders}",
    COLLECTIVE,
)
RESIZED_LANES = RefusalText("it changes the axis that holds lanes", "let it change another axis", COLLECTIVE)
MERGED_POOL_SPLIT = RefusalText(
    "a pool whose rows are merged with another axis is split over devices",
    "reshape each device's part inside of the shard_map",
)
SPLIT_TWICE = RefusalText("a part of a pool's rows is split over devices once more", "split rows once")
SPLIT_TOKENS = RefusalText(
    "packed tokens are split over devices along {along}, and the layout counts all of them", EACH_RANK
)
SPLIT_OUT_OF_ORDER = RefusalText(
    "some lanes, or lanes out of order, are split over devices", "split all of them, in order"
)
NOT_PUT_TOGETHER = RefusalText(
    "a result that differs between lanes, which are split over {over}, is not put together so",
    "give it the out_spec of its lanes",
    COLLECTIVE,
)
LEAVES_BEFORE_SUM = RefusalText(
    "a row that one device along {axes} has leaves the devices before it is summed over them",
    "sum it by lax.psum",
    COLLECTIVE,
)


def pool_not_put_together(split: Sequence[str]) -> RefusalText:
    """Return the refusal of a pool with another partition after a shard_map."""
    subject = f"one device's rows of a pool, split over {', '.join(split)}, are" if split else "copies of a pool are"
    message = f"{subject} put together as if they were otherwise"
    return RefusalText(message, "give the pool the out_spec of its in_spec", COLLECTIVE)


# kernels
UNINITIALIZED = RefusalText(
    "memory reaches this before anything is written to it; it holds what was there, as another lane's",
    "use jnp.zeros; write all of a kernel's block or scratch before it is read or handed out; where a kernel keeps "
    "what was in a result's memory, say for which machine it is: compiler_params=plgpu.CompilerParams(); if no output "
    "depends on it, as under a mask, declare a kernel with a computed grid: ComputedGrid(written=True)",
    ViolationKind.UNINITIALIZED,
)
FOREIGN_MEMORY = RefusalText(
    "the last block of a kernel reaches beyond its array, and loads foreign memory there",
    "choose blocks that divide the array, pad the array before the kernel, or declare the kernel",
    ViolationKind.UNINITIALIZED,
)


def kernel_index(bound: int, span: tuple[int, int] | None, kernel: str = "") -> RefusalText:
    """Return the refusal of a kernel's index, or its grid's length, with these bounds."""
    span_text = "nothing is known of it" if span is None else f"it is in {[*span]}"
    remedy = "bound it in the kernel, as by jnp.clip, or take it of a slot map, a page table or the number of a step"
    if kernel:
        remedy = f"bound it, as by jnp.clip, or declare it: LaneContract(..., opaque={{{kernel!r}: ComputedGrid()}})"
    subject = "the computed length of a kernel's grid" if kernel else "an index of a kernel"
    return RefusalText(f"{subject} is not shown to be in [0, {bound}): {span_text}", remedy, BOUNDS)


# operations along axes
SUMMED_LANES = RefusalText(
    "it sums over axis {axis}, which holds different lanes",
    "contract dimensions within a lane; keep lanes a batch dimension or a free one of one operand; for weights of "
    "packed tokens, where(segment[:, None] == segment[None, :], scores, -inf) before the softmax",
)
MATRIX_OF_EACH_PLACE = RefusalText("rows in an order that depends on all lanes meet a matrix for each place", UNDO)
RAGGED_FORM = RefusalText(
    "this form of ragged product has no rule", "use rows along axis 0, one shared matrix for each group"
)
OTHER_SORT_KEYS = RefusalText(
    "the rows lie in an order that depends on all lanes, and were not sorted by what the sizes count",
    "count the very keys by which the rows were sorted, and let none be negative, as expert % local is not",
)
CONVOLVED_LANES = RefusalText("it convolves over the axis that holds lanes", "make lanes the batch dimension")
KERNEL_OF_LANES = RefusalText("its kernel differs between lanes", "multiply and add within each lane")
LANES_IN_A_MATRIX = RefusalText("lanes are rows or columns of one matrix", "give each lane its own matrix")
_APART = "reduce over axes within a lane; what must be the same for all lanes is an operand that the host computes"
REDUCED_LANES = RefusalText("it reduces over axis {axis}, which holds different lanes", _APART)
RUNNING_LANES = RefusalText("it runs along axis {axis}, which holds different lanes", _APART)
SUMMED_UP_LANES = RefusalText(RUNNING_LANES.message, _APART + CAPACITY)
COMPARED_LANES = RefusalText("it compares along axis {axis}, which holds different lanes", _APART + CAPACITY)
WINDOWS_OF_LANES = RefusalText("windows reach along axis {axis}, which holds different lanes", _APART)
SHARED_ROWS = RefusalText("rows in an order that depends on all lanes meet a shared array of rows", UNDO)
SORTED_LANES = RefusalText(
    "it sorts along axis {axis}, which holds different lanes",
    "sort another axis; or sort one key and gather the rest by the order",
)
ORDER_OF_ALL = RefusalText("the order of the rows depends on all lanes", "undo the order with its inverse")
PUT_IN_ORDER = RefusalText("rows are put in an order that depends on all lanes", "undo the order with its inverse")

RESHAPED_ROWS = RefusalText(
    "reshaping {old} to {new} does not keep axis {axis}, which holds different lanes, as an axis",
    "use the pool as it lies, or merge dimensions of a row into the row axis: index by row * size + offset",
)
RESHAPED_LANES = RefusalText(
    RESHAPED_ROWS.message, "keep lanes on an axis of their own, or let them be the leading part of a merged axis"
)
REVERSED_LANES = RefusalText("it reverses the axis that holds lanes", "reverse another axis")
PADDED_LANES = RefusalText("it pads the axis that holds lanes", "pad another axis")
REPEATED_LANES = RefusalText("it repeats the axis that holds lanes", "repeat another axis")
CUT_LANES = RefusalText(
    "a part of axis {axis} is cut out, which holds {owner}", "cut out whole lanes, or index rows by the slot map"
)
PARTS_OUT_OF_ORDER = RefusalText(
    "it puts parts that belong to different lanes together along axis {axis}, out of their order",
    "put the lanes' parts together in the order of the lanes, equally long; mask rolled tokens before another "
    "operation: where(t + 1 == cu_seqlens[1:][segment], 0, roll(x, -1, 0))",
)
JOINED_BITS = RefusalText("it joins the bits of different lanes", "make lanes another axis than the last")

# random numbers
NUMBERS_BY_PLACE = RefusalText("rows in an order that depends on all lanes get random numbers by their place", UNDO)
SEVERAL_KEYS = RefusalText("random bits are made from several keys at once", "map over the keys")
ONE_KEY = RefusalText(
    "one key is made of words of different lanes", "give each lane all words of its key, along axes of their own"
)
FIRST_KEY = RefusalText(
    "{generator} makes what all keys of an array get from the first of them",
    "use keys of threefry2x32, as by jax.random.key(seed, impl='threefry2x32')",
)

# loops and branches
_SHARED_BOUND = "let the host compute one shared bound or flag for the step, and select per lane inside"
ARRAY_FOR_ROWS = RefusalText("a shared array may take the place of rows whose order depends on all lanes", UNDO)
OTHER_VIEW = RefusalText("a pool is replaced by another view of it", "keep pools as they are in loops and branches")
COUPLED_CONTROL = RefusalText(
    "a branch or the length of a loop depends on several lanes, so that each of them can change all results",
    _SHARED_BOUND,
    ViolationKind.CONTROL,
)
NOT_SETTLED = RefusalText("what its body carries does not settle", _SHARED_BOUND, ViolationKind.CONTROL)
CARRIED_LANE = RefusalText(
    "a loop over lanes carries values from one lane to the next",
    "start every lane's iteration from shared values, or process the lanes as a batch",
)
CARRIED_TILE = RefusalText(
    "a loop over tiles of lanes carries values from one tile to the next",
    "start the iteration of every tile from shared values",
)
ORDER_INSIDE = RefusalText("rows leave a loop in an order known only inside it", "undo the order inside")
LOOP_IN_ORDER = RefusalText("a loop runs over rows in an order that depends on all lanes", UNDO)
LOOP_OVER_POOL = RefusalText("a loop runs over the rows of a pool", "loop over lanes, and index rows by the slot map")
STACKED_TILES = RefusalText("lanes are on two axes, tiles and their rows", "reshape both axes to one")
STACKED_VERSIONS = RefusalText("the versions of a pool are stacked", "carry the pool through the loop")

# packed tokens
PADDING_TO_A_LANE = RefusalText(
    "padding behind the last token is written to a lane",
    "give padding the segment N, the number of lanes, and let the write drop it",
)
ZERO_TIMES_NAN = RefusalText(
    "tokens of other lanes are weighted by zero, and zero times nan or infinity is nan",
    "make them finite first: where(isfinite(values), values, 0), after the last conversion to a dtype with a smaller "
    "range, and multiply in a dtype with at least that range",
)
TOKEN_PAIRS = RefusalText(
    "it combines tokens of different lanes",
    "mask tokens of other lanes: where(segment[:, None] == segment[None, :], scores, -inf), with padding in no lane "
    "(segment N), before they are reduced",
)

# calls


def other_counts(declaration: Any, operands: Sequence[Any], results: Sequence[Any]) -> RefusalText:
    """Return the refusal of a call with other numbers of arguments and results than declared."""
    declared = f"{len(declaration.inputs)} arguments and {len(declaration.outputs)} results"
    message = (
        f"{declaration.name} is declared row-wise, with {declared}; this call has {len(operands)} and {len(results)}"
    )
    return RefusalText(message, "correct its declaration", ViolationKind.OPAQUE)


def unequal_rows(name: str, lengths: Iterable[tuple[int, ...]]) -> RefusalText:
    """Return the refusal of a row-wise call with different numbers of rows."""
    counts = ", ".join(str(*length) if length else "none" for length in sorted(lengths))
    message = f"its arguments and results have different numbers of rows in this call: {counts}"
    return RefusalText(f"{name} is declared row-wise, and {message}", "correct it", ViolationKind.OPAQUE)


OTHER_BODY = RefusalText(
    "{name} is declared row-wise, and this call names a function of the same name, file and line, with another body "
    "than the function declared, or for arguments that it cannot take",
    "declare this function too, or give each function a name and a line of its own",
    ViolationKind.OPAQUE,
)
SHARED_RESULT = RefusalText(
    "result {k} of {name} is declared shared, and an argument holds lanes",
    "declare it as rows, or declassify(it, reason) if it is meant for all lanes",
)
OTHER_ROWS = RefusalText(
    "an argument of {name} is declared as {expected}, and holds different lanes along axis {axis}",
    "put lanes where the declaration expects rows",
)

# whole steps
PROOF_FAILED = RefusalText(
    "the proof failed: {error}: {reason}", "report the error with the step", ViolationKind.UNKNOWN
)
UNSPECIFIED = RefusalText(
    "{path}, which the contract leaves out and which may hold anything of any lane, reaches this",
    "give it an entry: Shared() if it is the same for every lane, Lane() if it has an index for each",
)
UNCOUPLED = RefusalText(
    "{first} and {second} belong to one group and are written at different rows",
    "write all pools of a group by the same index, the same number of times",
    ViolationKind.COUPLING,
)
BAKED_POOL = RefusalText(
    "a constant of the program has the shape and dtype of {path}: a pool was captured when it was traced",
    "make it an argument of the step",
    CONSTANT,
)


def not_by_lane(violation: Violation) -> Violation:
    """Return the violation of comparing the active count across lanes."""
    message = f"it is not shown that a lane behind the active ones keeps its rows: {violation.message}"
    remedy = "use arange(lanes) < active_count lane by lane: where(arange(lanes) < active_count, new, old)"
    return replace(violation, kind=ViolationKind.IDLE, message=message, remedy=remedy)


# outputs
NO_ENTRY = RefusalText(
    "{path} is left out of the contract, but holds {owner}",
    "give it an entry, or leave it out only where it is the same for every lane",
)
NOT_SHARED = RefusalText(
    "{path} is declared Shared, but holds {owner}", "declare it Lane; the next version of a pool is a Pool"
)
NO_LANES = RefusalText(
    "{path} is declared Lane(axis={axis}), but holds {owner}", "put the lanes in order along axis {axis}"
)
NO_TOKENS = RefusalText(
    "{path} is declared Packed(axis={axis}), but holds {owner}",
    "put what belongs to token t at index t of axis {axis}",
)
NO_ROW_PER_LANE = RefusalText(
    "{path} has one row per lane, but holds {owner}",
    "put row i of the pool's successor at index i of axis {axis}",
    WRONG_ROW,
)
NO_VERSION = RefusalText(
    "{path} is no version of its pool, but {owner}", "return the pool with rows written by the slot map", FRAME
)
OTHER_POOL = RefusalText("{path} is a version of {pool}, not of its own pool", "return pools in their order", WRONG_ROW)
MAY_DIFFER = RefusalText(
    "{path} may differ in rows that no lane owns: {unframed.message} at {unframed.source}", "{unframed.remedy}", FRAME
)
OLD_VERSION = RefusalText(
    "{path} is a version that was written to later", "return the last version", ViolationKind.STALE
)

# declared calls
TOKENS_AND_POOLS = RefusalText("packed tokens meet an opaque operation with pools", "hand it arrays of lanes")
ORDER_MEETS_CALL = RefusalText("rows in an order that depends on all lanes meet a declared operation", UNDO)
OTHER_DECLARATION = RefusalText("{name}: {problem}", "correct its Opaque declaration or the call", ViolationKind.OPAQUE)
CALL_WRITES_COPIES = RefusalText(
    "{name}: each device along {along} writes the rows of its own lanes to its own copy",
    "call it outside of the shard_map",
    COLLECTIVE,
)
MAP_NOT_SPLIT = RefusalText(
    "the rows of {path} are split over {along}, and {slots} is not",
    "split the slot map like the rows of the pool",
    WRONG_ROW,
)

# dimensions of pools
TWO_DIMENSIONS = RefusalText(
    "dimension {names[0]!r} of a pool {how} dimension {names[1]!r}",
    "give the array its dimensions in the pool's order, or name them: name_dims(x, 'head', 'key', 'value')",
    ViolationKind.DIMENSIONS,
)


def wrong_dimensions(pool: Any, wrong: Sequence[tuple[str, Any]]) -> RefusalText:
    """Return the refusal of a write; `wrong` pairs a pool's dimension with the written one."""
    messages = []
    for expected, dim in wrong:
        source = "an array that has no name for it" if dim.name is None else f"dimension {dim.name!r} of an array"
        if dim.name is None and dim.lost:
            source += f", put together from several at {dim.lost}"
        messages.append(f"dimension {expected!r} of {pool.path} is written with {source}")
    names = [None if axis == pool.entry.axis else name for axis, name in enumerate(pool.entry.dims)]
    remedy = (
        f"give the array the pool's order of dimensions; where it has that, name them: name_dims(x, "
        f"{', '.join(map(repr, names))}) of what is written, or of each array that it is put together from"
    )
    return RefusalText("; ".join(messages), remedy, ViolationKind.DIMENSIONS)
