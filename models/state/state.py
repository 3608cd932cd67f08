"""What layers keep of a sequence between steps: arrays by the names of their dimensions, and their bytes.

Names for the dimensions of arrays that are put into a layer's state.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from models.sharding.cut import Cut, Part
from models.sharding.devices import MODEL
from models.state.shapes import ConvState, LaneInfo, RecurrentState

KV_BLOCK = 128
"""Positions of a cache that attention visits at a time."""


def kv_blocks(positions: int) -> int:
    """Blocks that hold `positions` positions."""
    return -(-positions // KV_BLOCK)


def cache_positions(context: int) -> int:
    """Positions of a cache for `context` tokens: a whole number of blocks."""
    # Of a cache that is one block XLA takes the block for the cache, computes a write of one row of it once for the
    # result and once more for the block, and copies the cache for each.
    return max(kv_blocks(context), 2) * KV_BLOCK


@dataclass(frozen=True)
class StateArray:
    """One array of a layer's state.

    Attributes:
        sizes: name (as in `models.state.shapes`) and size of each dimension after the lanes; None for a cache's
        positions. dtype: None for the dtype of caches.
        split: name of the dimension that is split over the devices along `model`; None where all have the whole array.
        parts: of that dimension, as in a `Cut`.
    """

    sizes: tuple[tuple[str, int | None], ...]
    dtype: DTypeLike | None
    split: str | None = None
    parts: tuple[Part, ...] = ()

    @property
    def cut(self) -> Cut | None:
        """How the array, lanes first, is split; None where it is not."""
        if self.split is None:
            return None
        return Cut(1 + [name for name, _ in self.sizes].index(self.split), MODEL, self.parts)

    @property
    def grows(self) -> bool:
        """Whether it has something of every token."""
        return any(size is None for _, size in self.sizes)

    def of(self, lanes: int, context: int, dtype: DTypeLike) -> jax.ShapeDtypeStruct:
        """The type of the array of `lanes` sequences of at most `context` tokens."""
        shape = (cache_positions(context) if size is None else size for _, size in self.sizes)
        return jax.ShapeDtypeStruct((lanes, *shape), jnp.dtype(dtype if self.dtype is None else self.dtype))

    def zeros(self, lanes: int, context: int, dtype: DTypeLike) -> Array:
        """The array itself."""
        made = self.of(lanes, context, dtype)
        return jnp.zeros(made.shape, made.dtype)

    def bytes(self, dtype: DTypeLike) -> int:
        """Bytes of one sequence, or of one token where it grows."""
        return math.prod(size for _, size in self.sizes if size is not None) * self._item(dtype)

    def formula(self, dtype: DTypeLike) -> str:
        """`key*value*4 B = 128*64*4 B = 32,768 B`, without the positions of a cache."""
        fixed = [(name, str(size)) for name, size in self.sizes if size is not None]
        names, sizes = ("*".join([*parts, f"{self._item(dtype)} B"]) for parts in zip(*fixed, strict=True))
        return f"{names} = {sizes} = {self.bytes(dtype):,} B" + (" per token" if self.grows else "")

    def _item(self, dtype: DTypeLike) -> int:
        return jnp.dtype(dtype if self.dtype is None else self.dtype).itemsize


def state_array(dtype: DTypeLike | None = None, **sizes: int | None | tuple[Part, ...]) -> Any:
    """A `StateArray`; its type is left open, for it stands in a state where the array will be.

    Args:
        dtype: None for the dtype of caches.
        sizes: of its dimensions; the one that is split is given as its parts.
    """
    split = {name: parts for name, parts in sizes.items() if isinstance(parts, tuple)}
    plain = tuple(
        (name, sum(part.size for part in size) if isinstance(size, tuple) else size) for name, size in sizes.items()
    )
    for name, parts in split.items():
        return StateArray(plain, dtype, name, parts)
    return StateArray(plain, dtype)


class ConvRecurrentState(NamedTuple):
    """State of a layer with a short convolution and a linear recurrence, for N lanes.

    Attributes:
        conv: last K-1 inputs of the convolution, before its activation, channels [q | k | v] or [x | B | C]; the dtype
            of caches.
        recurrent: S [value, key], float32; in a state space model [head, state].
    """

    conv: ConvState
    recurrent: RecurrentState


def conv_recurrent(kernel: int, channels: tuple[Part, ...], heads: int, key: int, value: int) -> ConvRecurrentState:
    """The arrays of a `ConvRecurrentState`."""
    return ConvRecurrentState(
        state_array(tap=kernel - 1, channel=channels),
        state_array(jnp.float32, value_head=(Part(heads, heads),), value=value, key=key),
    )


class Stateful(nnx.Module):
    """A layer that says what it keeps; from that its state is made, and its size is known.

    Attributes:
        summed_over: mesh axes over whose devices the layer's output is a sum, of which a share of it gives one part;
            none where every device computes the same.
    """

    summed_over: tuple[str, ...] = (MODEL,)

    def state_arrays(self) -> Any:
        """The layer's state with a `StateArray` in the place of each array; None where it keeps nothing."""
        raise NotImplementedError

    def commit(self, kept: Any, info: LaneInfo, state: Any) -> Any:
        """The state after a step that was run with `info.verifying`.

        Args:
            kept: what the layer gave in place of its new state.
            info: of the step, its lengths now the tokens that count.
            state: before the step.
        """
        return kept

    def init_state(self, lanes: int, context: int, dtype: DTypeLike) -> Any:
        """Zero state.

        Args:
            lanes: N.
            context: most tokens of a sequence; caches have as many positions, rounded up to whole blocks.
            dtype: dtype of convolution and key/value state; recurrent state is float32.
        """
        return jax.tree.map(lambda array: array.zeros(lanes, context, dtype), self.state_arrays())


class StateSize(NamedTuple):
    """Bytes that are kept of one sequence.

    Attributes:
        fixed: whatever its length.
        token: for each of its tokens.
        lines: the formula of every array, by kind of layer.
    """

    fixed: int
    token: int
    lines: tuple[str, ...]

    def of(self, context: int) -> int:
        """With caches for `context` tokens, which have a whole number of blocks."""
        return self.fixed + self.token * cache_positions(context)


def state_size(layers: Iterable[Stateful], dtype: DTypeLike) -> StateSize:
    """The size of the state of layers, with the dtype of caches."""
    kinds = Counter((type(layer).__name__, *_fields(layer.state_arrays())) for layer in layers)
    lines, fixed, token = [], 0, 0
    for (name, *fields), count in kinds.items():
        for field, array in fields:
            lines.append(f"{count} x {name} {field}: {array.formula(dtype)}")
            fixed += 0 if array.grows else count * array.bytes(dtype)
            token += count * array.bytes(dtype) if array.grows else 0
    lines.append(f"one sequence: {fixed:,} B and {token:,} B per token")
    return StateSize(fixed, token, tuple(lines))


def _fields(arrays: Any) -> list[tuple[str, StateArray]]:
    """Every array with the name of its field."""
    leaves = jax.tree_util.tree_leaves_with_path(arrays)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), array) for path, array in leaves]


def named(x: Array, *names: str | None) -> Array:
    """`x`, its dimensions named; nothing is computed.

    A step is proved to write to each dimension of a layer's state what belongs there, even where sizes agree. Of what a
    recurrence adds to its state the program says so itself; what a cache or a convolution only keeps has to be named.

    Args:
        x: the array.
        names: one for each dimension, those of the `StateArray`; None where nothing needs it.
    """
    return checkpoint_name(x, "dims:" + ",".join(name or "" for name in names))
