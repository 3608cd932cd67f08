"""State of layers between steps: `StateArray`s with dimension names and shard specs."""

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from models.sharding.devices import MODEL
from models.sharding.sharded_dim import Segment, ShardedDim
from models.state.pages import KV_BLOCK, cache_positions, own_page_count
from models.state.shapes import ConvState, LaneInfo, RecurrentState

MANY_HEADS, MIN_TURN_BLOCKS = 64, 4
"""Heads of all lanes, and blocks of an iteration on a GPU, about ten operations."""
SOME_HEADS, SOME_TURN_BLOCKS = 16, 16
"""The same for fewer heads: XLA:GPU splits a sum with few results in two, and writes the parts of the first."""
TURN_HEADS = 128
"""Heads times blocks of an iteration of even fewer heads."""

TPU_COLUMNS = 128
"""Columns of a tile of a TPU's memory."""


def turn_blocks(blocks: int, platform: str, heads: int) -> int:
    """Return the blocks of one iteration of attention; `heads` is lanes times key/value heads."""
    if platform != "gpu":
        return 1
    if heads >= MANY_HEADS:
        return min(MIN_TURN_BLOCKS, blocks)
    return min(SOME_TURN_BLOCKS if heads >= SOME_HEADS else TURN_HEADS // heads, blocks)


def stored_size(size: int, platform: str) -> int:
    """Return the stored size of a key or value, on TPUs whole tile rows.

    Otherwise XLA:TPU would copy the cache for a scatter.
    """
    return -(-size // TPU_COLUMNS) * TPU_COLUMNS if platform == "tpu" else size


Role = Literal["recurrent", "conv", "cache", "hidden", "token"]
"""Role of an array of a state: `hidden` and `token` are the last ones of a sequence.

Requests read and change `recurrent` and `conv`; a step may copy pools of `conv` and `hidden`."""


@dataclass(frozen=True)
class StateArray:
    """Description of an array of a layer's state.

    Attributes:
        sizes: name (as in `models.state.shapes`) and size of each dimension after the rows; None for the positions of a
            page of a KV cache.
        dtype: None for the dtype of caches.
        sharded: dimension sharded along `model`, if any.
        segments: segments of the sharded dimension (`ShardedDim`).
        unused: number of zeros at the end of each row of the last dimension (`stored_size`).
    """

    sizes: tuple[tuple[str, int | None], ...]
    dtype: DTypeLike | None
    sharded: str | None = None
    segments: tuple[Segment, ...] = ()
    unused: int = 0
    role: Role = "recurrent"

    @property
    def sharded_dim(self) -> ShardedDim | None:
        """Shard spec, with rows or pages first."""
        if self.sharded is None:
            return None
        return ShardedDim(1 + [name for name, _ in self.sizes].index(self.sharded), MODEL, self.segments)

    @property
    def grows(self) -> bool:
        """True if the size grows with every token."""
        return self.positions_axis is not None

    @property
    def positions_axis(self) -> int | None:
        """Axis of the positions within a page."""
        return next((axis for axis, (_, size) in enumerate(self.sizes) if size is None), None)

    def of(self, rows: int, pages: int, dtype: DTypeLike) -> jax.ShapeDtypeStruct:
        shape = (KV_BLOCK if size is None else size for _, size in self.sizes)
        count = pages if self.grows else rows
        return jax.ShapeDtypeStruct((count, *shape), jnp.dtype(dtype if self.dtype is None else self.dtype))

    def zeros(self, rows: int, pages: int, dtype: DTypeLike) -> Array:
        array = self.of(rows, pages, dtype)
        return jnp.zeros(array.shape, array.dtype)

    def bytes(self, dtype: DTypeLike) -> int:
        """Return the bytes of one sequence, or of one token of a growing array."""
        return math.prod(size for _, size in self.sizes if size is not None) * self._item(dtype)

    def unused_bytes(self, dtype: DTypeLike) -> int:
        return self.bytes(dtype) * self.unused // (self.sizes[-1][1] or 1)

    def formula(self, dtype: DTypeLike) -> str:
        """Return e.g. `key*value*4 B = 128*64*4 B = 32,768 B`."""
        fixed = [(name, str(size)) for name, size in self.sizes if size is not None]
        names, sizes = ("*".join([*parts, f"{self._item(dtype)} B"]) for parts in zip(*fixed, strict=True))
        return f"{names} = {sizes} = {self.bytes(dtype):,} B" + (" per token" if self.grows else "")

    def _item(self, dtype: DTypeLike) -> int:
        return jnp.dtype(dtype if self.dtype is None else self.dtype).itemsize


def state_array(
    dtype: DTypeLike | None = None,
    *,
    unused: int = 0,
    role: Role = "recurrent",
    **sizes: int | None | tuple[Segment, ...],
) -> Any:
    """Return a `StateArray`, typed `Any`.

    An array with positions (None among the `sizes`) is a `cache`; a sharded dimension has its segments as size.
    """
    role = "cache" if None in sizes.values() else role
    plain, sharded, segments = [], None, ()
    for name, size in sizes.items():
        if isinstance(size, tuple):
            sharded, segments = name, size
        plain.append((name, sum(segment.size for segment in size) if isinstance(size, tuple) else size))
    return StateArray(tuple(plain), dtype, sharded, segments, unused, role)


class ConvRecurrentState(NamedTuple):
    """Windows of a short convolution and matrices of a linear recurrence; None if absent.

    Attributes:
        conv: last K-1 inputs of the convolution, before its activation, channels [q | k | v] or [x | B | C]; the dtype
            of caches.
        recurrent: S [value, key], float32; in a state space model [head, state].
    """

    conv: ConvState | Any
    recurrent: RecurrentState | Any


def conv_recurrent(kernel: int, channels: tuple[Segment, ...], heads: int, key: int, value: int) -> ConvRecurrentState:
    return ConvRecurrentState(
        state_array(role="conv", tap=kernel - 1, channel=channels),
        state_array(jnp.float32, value_head=(Segment(heads, heads),), value=value, key=key),
    )


class Stateful(nnx.Module):
    """A layer with a description of its state.

    Attributes:
        summed_over: mesh axes of the all-reduce of the outputs; empty for a replicated layer.
        cache_lag: number of last tokens without an entry in the layer's cache; the next step writes them first.
        shared_as: layers with equal keys share the first one's `block`; None: no block.
        norms_input: no norm precedes the layer.
        reads_embedding, reads_tokens: the layer reads `LaneInfo.embedded`, or `LaneInfo.tokens`.
    """

    summed_over: tuple[str, ...] = (MODEL,)
    cache_lag: int = 0
    shared_as: Hashable = None
    block: Any  # only with `shared_as`
    norms_input: bool = False
    reads_embedding: bool = False
    reads_tokens: bool = False

    def sites(self) -> dict[str, int]:
        """Return the number of heads ("attention", "recurrent") and of routed experts ("expert")."""
        return {}

    def state_arrays(self) -> Any:
        """Return a `StateArray` for each array of the state; by default None."""
        return None

    def commit(self, pending: Any, info: LaneInfo, state: Any) -> Any:
        """Return the state after the accepted tokens of a verifying step.

        `info.lengths` counts accepted tokens.

        Raises:
            NotImplementedError: the layer has state and no `commit`.
        """
        if self.without_commit():
            raise NotImplementedError(
                f"{type(self).__name__} has state and no commit(pending, info, state), which returns the state of the "
                "accepted tokens; define it (docs/adding-a-family.md), or do not speculate"
            )
        return state

    def without_commit(self) -> list["Stateful"]:
        """Return the layers with state and without `commit`."""
        has_state = bool(jax.tree.leaves(self.state_arrays()))
        return [self] if has_state and type(self).commit is Stateful.commit else []

    def init_state(self, lanes: int, context: int, dtype: DTypeLike) -> Any:
        """Allocate zero state for steps without slots and page tables (`own_pages`).

        `dtype`: of convolution inputs and KV cache.
        """
        pages = own_page_count(lanes, context)
        return jax.tree.map(lambda array: array.zeros(lanes, pages, dtype), self.state_arrays())


class StateSize(NamedTuple):
    """Size of the state of one sequence.

    Attributes:
        fixed, token: bytes of a sequence, and of each of its tokens.
        unused: bytes of padding (`stored_size`).
        lines: every array's formula, by kind of layer.
    """

    fixed: int
    token: int
    unused: int
    lines: tuple[str, ...]

    def of(self, context: int) -> int:
        """Return the bytes for `context` tokens, in whole pages."""
        return self.fixed + self.token * cache_positions(context)


def state_size(layers: Iterable[Stateful], dtype: DTypeLike) -> StateSize:
    """Compute the size of the state; `dtype`: of caches."""
    fields_of = jax.tree_util.tree_leaves_with_path
    kinds = Counter((type(layer).__name__, *fields_of(layer.state_arrays())) for layer in layers)
    lines, fixed, token, unused = [], 0, 0, 0
    for (name, *fields), count in kinds.items():
        for path, array in fields:
            field = jax.tree_util.keystr(path, simple=True, separator=".")
            lines.append(f"{count} x {name} {field}: {array.formula(dtype)}")
            fixed += 0 if array.grows else count * array.bytes(dtype)
            token += count * array.bytes(dtype) if array.grows else 0
            unused += count * array.unused_bytes(dtype)
    lines.append(f"one sequence: {fixed:,} B and {token:,} B per token")
    return StateSize(fixed, token, unused, tuple(lines))


def name_dims(x: Array, *names: str | None) -> Array:
    """Return `x` with named dimensions, None for no name.

    The proof checks the dimensions of every write to a state. A recurrence's follow from the program; values stored by
    a KV cache or a convolution need names.
    """
    return checkpoint_name(x, "dims:" + ",".join(name or "" for name in names))
