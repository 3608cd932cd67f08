"""Expert mixtures with rows that miss their lanes."""

from functools import partial

import jax.numpy as jnp
from jax import lax
from mutants.mutant import Evidence, Kind, wrong
from zoo.experts import EXPERTS, TOP, grouped, mixture, recur
from zoo.program import HIDDEN

SORTED = "sorted experts, argsort of argsort"
LIST = "JAX"


def mixed(w, x, chosen, expert, *, order_of=None, keys=None, count=None, inverse_of=None):
    """The sorted mixture with one part replaced."""
    flat = expert.reshape(-1) if keys is None else keys(expert)
    order = jnp.argsort(flat)
    selection = x[order // TOP] if order_of is None else order_of(x, order)
    counted = flat if count is None else count(flat, expert)
    y = grouped(w, selection, jnp.bincount(counted, length=EXPERTS).astype(jnp.int32))
    inverse = jnp.argsort(order) if inverse_of is None else inverse_of(order)
    return x + jnp.einsum("nkd,nk->nd", y[inverse].reshape(-1, TOP, HIDDEN), chosen)


@mixture
def capacity(w, x, chosen, expert):
    """Each expert takes two rows of the batch and drops the rest."""
    total = jnp.sum(expert[:, :, None] == jnp.arange(EXPERTS)[None, None], axis=1)
    room = jnp.cumsum(total, axis=0) <= 2
    rows = jnp.take_along_axis(room, expert, axis=1)
    hidden = jnp.einsum("nd,nkdf->nkf", x, w["up"][expert])
    return x + jnp.einsum("nkf,nkfd,nk->nd", hidden, w["down"][expert], jnp.where(rows, chosen, 0.0))


def balanced(w, pool, slots, x):
    """The router is corrected by how many rows of the batch an expert has got."""
    x, pool = recur(pool, slots, x)
    load = jnp.mean(x @ w["router"], axis=0, keepdims=True)
    chosen, expert = lax.top_k(x @ w["router"] - load, TOP)
    hidden = jnp.einsum("nd,nkdf->nkf", x, w["up"][expert])
    return x + jnp.einsum("nkf,nkfd,nk->nd", hidden, w["down"][expert], chosen), pool


@mixture
def scattered_to_sorted(w, x, chosen, expert):
    """Results stay where the sort has put them."""
    order = jnp.argsort(expert.reshape(-1))
    y = grouped(w, x[order // TOP], jnp.bincount(expert.reshape(-1), length=EXPERTS).astype(jnp.int32))
    return x.at[jnp.arange(order.size) // TOP].add(y * chosen.reshape(-1)[:, None])


def placed(use):
    """Return a step that uses where the sort has put each row: `use` of rows and places."""

    def mix(w, x, chosen, expert):
        order = jnp.argsort(expert.reshape(-1))
        return use(x, jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=order.dtype)))

    return mixture(mix)


def _sorted(id, description, **parts):
    return wrong(SORTED, id, LIST, description, mixture(partial(mixed, **parts)), Kind.CROSS_LANE)


@mixture
def _declared_unique(w, x, chosen, expert):
    """Devices may add once for equal indices."""
    flat = expert.reshape(-1)
    order, groups = jnp.argsort(flat), jnp.zeros(EXPERTS, jnp.int32).at[flat].add(1, unique_indices=True)
    y = grouped(w, x[order // TOP], groups)[jnp.argsort(order)]
    return x + jnp.einsum("nkd,nk->nd", y.reshape(-1, TOP, HIDDEN), chosen)


MUTANTS = (
    wrong(SORTED, "capacity", LIST, "experts drop what is over their capacity", capacity, Kind.CROSS_LANE),
    wrong(SORTED, "load-balanced-routing", "SGLang#27869", "routing depends on the batch's load", balanced,
          Kind.CROSS_LANE),
    wrong(SORTED, "left-in-sorted-order", LIST, "results stay in the order of the sort", scattered_to_sorted,
          Kind.CROSS_LANE),
    wrong(SORTED, "place-as-data", LIST, "the place of a row in the sorted batch is data",
          placed(lambda x, place: x + place.reshape(-1, TOP).sum(1, keepdims=True).astype(jnp.float32)),
          Kind.CROSS_LANE),
    wrong(SORTED, "place-in-a-branch", LIST, "a branch on the place of a row in the sorted batch",
          placed(lambda x, place: lax.cond(place[0] > 3, lambda: x, lambda: 2.0 * x)),
          Kind.CROSS_LANE, Kind.CONTROL),
    _sorted("permutation-not-inverse", "the permutation in the place of its inverse", inverse_of=lambda order: order),
    _sorted("inverse-of-inverse", "the inverse of the inverse",
            inverse_of=lambda order: jnp.argsort(jnp.argsort(order))),
    _sorted("inverse-by-minus", "order[::-1] in the place of the inverse", inverse_of=lambda order: order[::-1]),
    _sorted("other-histogram", "groups counted by another key", count=lambda flat, expert: (flat + 1) % EXPERTS),
    wrong(SORTED, "unique-histogram", LIST, "equal keys are declared unique and counted", _declared_unique,
          Kind.CROSS_LANE, evidence=Evidence.TRACED),
    _sorted("first-choice-histogram", "groups counted by the first choice alone, twice",
            count=lambda flat, expert: jnp.concatenate([expert[:, 0], expert[:, 0]])),
    _sorted("modulo-lanes", "rows taken at order % N, not order // k", order_of=lambda x, order: x[order % x.shape[0]]),
    _sorted("k-major-keys", "keys by choice first, rows by lane first", keys=lambda expert: expert.T.reshape(-1)),
    _sorted("rows-not-sorted", "rows are repeated and not sorted",
            order_of=lambda x, order: jnp.repeat(x, TOP, axis=0)),
)  # fmt: skip
