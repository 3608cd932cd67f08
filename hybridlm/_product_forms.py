"""The fastest form of each large matrix product on this machine, measured when a model is loaded for the first time."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp

from hybridlm._form_store import FORMS, FormStore
from hybridlm._machine import Machine, cores
from hybridlm._progress import counting_progress
from models.linear import Form, Product, multiply

MOST_ROWS = 64
"""Of more rows than these the usual form was the fastest for every weight."""
LARGE = 1 << 20
"""Elements of a weight from which on the form of its product is worth measuring."""
SHARE = 0.01
"""Of the bytes of all large weights: those of a shape that have less are not worth it either."""
GAIN = 1.1
"""So many times as fast as the usual form another one has to be."""
ROUNDS = 9
READ = 64 << 20
"""Bytes of weights that a round reads, if there are so many: more than caches hold."""

_log = logging.getLogger("hybridlm")


def large_products(params: Iterable[jax.Array], rows: Iterable[int]) -> dict[Product, list[jax.Array]]:
    """The products of a model that are worth measuring, with their weights.

    Args:
        params: its parameters; an embedding counts as the head that it may be.
        rows: numbers of rows that the model's steps have; of the larger ones nothing is measured.
    """
    weights: dict[tuple[int, int, str], list[jax.Array]] = {}
    for one in params:
        if one.ndim == 2 and one.size >= LARGE and one.dtype in (jnp.bfloat16, jnp.float16):
            weights.setdefault((one.shape[0], one.shape[1], str(one.dtype)), []).append(one)
    least = SHARE * sum(one.nbytes for same in weights.values() for one in same)
    few = sorted({max(count, 2) for count in rows if count <= MOST_ROWS})
    return {
        Product(count, *shape): same
        for shape, same in weights.items()
        if sum(one.nbytes for one in same) >= least
        for count in few
    }


def chosen_forms(
    products: Mapping[Product, Sequence[jax.Array]], directory: Path, progress: bool | None = None
) -> dict[Product, Form]:
    """The form of each product: the one that is kept in a directory, or else the faster one, which is kept then.

    Args:
        products: with their weights.
        directory: of a `FormStore`.
        progress: show a bar if anything is measured; None shows one where standard error is a terminal.
    """
    store = FormStore(directory, Machine.here())
    forms: dict[Product, Form] = {}
    missing: list[Product] = []
    for product in products:
        if (form := store.find(product)) is None:
            missing.append(product)
        else:
            forms[product] = form
    if not missing:
        return forms
    with counting_progress(progress, "measuring products", len(missing)) as done:
        with ThreadPoolExecutor(cores()) as pool:
            programs = list(pool.map(_compiled, missing))
        for count, product in enumerate(missing):
            seconds = _seconds(product, products[product], programs[count])
            forms[product] = faster(product, seconds)
            _keep(store, product, forms[product], seconds)
            done(count + 1, _name(product))
    return forms


def faster(product: Product, seconds: Mapping[Form, float]) -> Form:
    """The form of least time, or the usual one where that is about as fast."""
    best = min(FORMS, key=lambda form: seconds[form])
    return best if seconds[best] * GAIN < seconds[product.usual_form] else product.usual_form


def in_words(forms: Mapping[Product, Form]) -> str:
    """Which products have another form than the usual one."""
    other = sorted(product for product, form in forms.items() if form != product.usual_form)
    return ", ".join(map(_name, other)) or "usual"


def _name(product: Product) -> str:
    return f"{product.rows}x{product.inputs}x{product.outputs} {product.dtype}"


def _compiled(product: Product) -> dict[Form, jax.stages.Compiled]:
    rows, weight = (jax.ShapeDtypeStruct((n, product.inputs), product.dtype) for n in (product.rows, product.outputs))
    return {form: jax.jit(multiply, static_argnums=2).lower(rows, weight, form).compile() for form in FORMS}


def _seconds(
    product: Product, weights: Sequence[jax.Array], programs: Mapping[Form, jax.stages.Compiled]
) -> dict[Form, float]:
    """The least time of a product in each form over several weights, in turns."""
    several = weights[: max(1, math.ceil(READ / weights[0].nbytes))]
    rows = jax.random.normal(jax.random.key(0), (product.rows, product.inputs)).astype(product.dtype)
    least = dict.fromkeys(FORMS, math.inf)
    for _ in range(ROUNDS):
        for form in FORMS:
            start = time.perf_counter()
            for weight in several:
                programs[form](rows, weight).block_until_ready()
            least[form] = min(least[form], (time.perf_counter() - start) / len(several))
    return least


def _keep(store: FormStore, product: Product, form: Form, seconds: Mapping[Form, float]) -> None:
    try:
        store.keep(product, form, tuple(seconds[one] for one in FORMS))
    except OSError as error:
        _log.warning("the form of a product was not kept, the next process measures it again: %s", error)
