"""Hooks of a step: reads and changes of hidden states, ablations of heads and experts.

A lane without a token in a slot keeps its numbers.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Bool, Float32, Int32

from models.sharding.devices import MODEL, Devices
from models.state.shapes import Activations, HeadKind, Hooks

SITE_KINDS = ("attention", "recurrent", "expert")
"""Kinds of ablated units; `site` is `layer * len(SITE_KINDS)` plus an index."""
EMPTY_SLOT = -1
"""Index or site of an unused slot."""


def site_of(layer: int, kind: str) -> int:
    return layer * len(SITE_KINDS) + SITE_KINDS.index(kind)


class ProbeShape(NamedTuple):
    """Part of the compilation key of a step with `ProbeInputs`.

    Attributes:
        places: tokens of a lane with returned hidden states; in a generating step 1, the last.
        hidden_states, vectors, ablations: slots of each lane.
    """

    hidden_states: int = 0
    places: int = 0
    vectors: int = 0
    ablations: int = 0

    def __str__(self) -> str:
        hidden = f"hidden_states={self.hidden_states}@{self.places}" if self.places else ""
        slots = [f"{name}={count}" for name, count in zip(self._fields[2:], self[2:], strict=True) if count]
        return " ".join([hidden, *slots] if hidden else slots)


class Vectors(NamedTuple):
    """Vectors added to the residual stream, or replacing it, in slot order.

    Attributes:
        index: 0 after the embedding, i after layer i - 1.
        first, end: positions in [first, end).
    """

    index: Int32[Array | np.ndarray, "lane slot"]
    first: Int32[Array | np.ndarray, "lane slot"]
    end: Int32[Array | np.ndarray, "lane slot"]
    replaces: Bool[Array | np.ndarray, "lane slot"]
    vector: Float32[Array | np.ndarray, "lane slot hidden"]


class Ablations(NamedTuple):
    """Heads and experts with outputs replaced by zero."""

    site: Int32[Array | np.ndarray, "lane slot"]
    unit: Int32[Array | np.ndarray, "lane slot"]
    first: Int32[Array | np.ndarray, "lane slot"]
    end: Int32[Array | np.ndarray, "lane slot"]


class ProbeInputs(NamedTuple):
    """Operands of reads and changes inside the model; None for absent parts.

    Attributes:
        places: tokens with returned hidden states; T for none, with zeros; None for the last token.
        layers: index per slot, as in `LM.forward`.
    """

    places: Int32[Array | np.ndarray, "lane place"] | None
    layers: Int32[Array | np.ndarray, "lane slot"] | None
    vectors: Vectors | None
    ablations: Ablations | None

    @property
    def shape(self) -> ProbeShape:
        hidden_states = 0 if self.layers is None else self.layers.shape[1]
        places = min(hidden_states, 1) if self.places is None else self.places.shape[1]
        vectors, ablations = self.vectors, self.ablations
        return ProbeShape(
            hidden_states,
            places,
            0 if vectors is None else vectors.index.shape[1],
            0 if ablations is None else ablations.site.shape[1],
        )


HiddenRows = tuple[Float32[Array, "lane places_hidden"], ...]
"""Hidden states of some tokens of each lane, by slot. No state array has this shape: XLA would write hidden states in
its place."""


class ProbeHooks(Hooks):
    """Hooks of one step.

    Attributes:
        hidden_states: so far, by slot, zeros in empty slots and places; None if not returned.
    """

    def __init__(
        self,
        probes: ProbeInputs,
        positions: Int32[Array, "lane"],
        tokens: int,
        devices: Devices,
        last: Int32[Array, "lane one"] | None = None,
    ):
        self._probes, self._devices = probes, devices
        self._at = positions[:, None] + jnp.arange(tokens, dtype=jnp.int32)[None]
        self._places = last if probes.places is None else jnp.asarray(probes.places)
        self.hidden_states: HiddenRows | None = None

    def residual(self, x: Activations, index: int) -> Activations:
        vectors = self._probes.vectors
        if vectors is not None:
            hit = self._hit(vectors.index, index, vectors.first, vectors.end)
            for slot in range(hit.shape[2]):
                # A sum with zero would turn -0.0 into 0.0.
                vector = jnp.asarray(vectors.vector)[:, slot][:, None]
                replaces = jnp.asarray(vectors.replaces)[:, slot][:, None, None]
                x = jnp.where(hit[:, :, slot, None], jnp.where(replaces, vector, x + vector), x)
        if self._probes.layers is not None:
            self._read(x, index, jnp.asarray(self._probes.layers))
        return x

    def _read(self, x: Activations, index: int, layers: Int32[Array, "lane slot"]) -> None:
        assert self._places is not None
        rows = jnp.take_along_axis(x, self._places[:, :, None], axis=1, mode="fill", fill_value=0)
        rows = rows.reshape((len(rows), -1))
        previous = self.hidden_states or (jnp.zeros_like(rows),) * layers.shape[1]
        self.hidden_states = tuple(
            jnp.where((layers[:, slot] == index)[:, None], rows, value) for slot, value in enumerate(previous)
        )

    def heads(
        self, x: Float32[Array, "lane token head size"], layer: int, kind: HeadKind
    ) -> Float32[Array, "lane token head size"]:
        head = jnp.arange(x.shape[2], dtype=jnp.int32)[None, None]
        if self._devices.model > 1:
            # Heads are split in their order.
            head = head + lax.axis_index(MODEL) * x.shape[2]
        ablated = self._ablated(layer, kind, head)
        return x if ablated is None else jnp.where(ablated[..., None], 0.0, x)

    def experts(
        self, weight: Float32[Array, "lane token choice"], expert: Int32[Array, "lane token choice"], layer: int
    ) -> Float32[Array, "lane token choice"]:
        ablated = self._ablated(layer, "expert", expert)
        return weight if ablated is None else jnp.where(ablated, 0.0, weight)

    def _hit(self, index: Array | np.ndarray, value: int, first: Array | np.ndarray, end: Array | np.ndarray) -> Array:
        """Return the slots meant at each token, bool [lane, token, slot]."""
        token = self._at[:, :, None]
        is_unit = (jnp.asarray(index) == value)[:, None]
        return is_unit & (token >= jnp.asarray(first)[:, None]) & (token < jnp.asarray(end)[:, None])

    def _ablated(
        self, layer: int, kind: str, unit: Int32[Array, "lanes tokens units"]
    ) -> Bool[Array, "lane token unit"] | None:
        ablations = self._probes.ablations
        if ablations is None:
            return None
        hit = self._hit(ablations.site, site_of(layer, kind), ablations.first, ablations.end)
        by_slot = [
            hit[:, :, slot, None] & (unit == jnp.asarray(ablations.unit)[:, slot][:, None, None])
            for slot in range(hit.shape[2])
        ]
        ablated = by_slot[0]
        for slot_ablated in by_slot[1:]:
            ablated = ablated | slot_ablated
        return ablated
