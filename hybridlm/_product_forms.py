"""The fastest form of each large matrix product on this machine, measured when a model is loaded for the first time."""

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import jax
import jax.numpy as jnp

from hybridlm._form_store import FORMS, FormStore
from hybridlm._machine import Machine, cores
from hybridlm._progress import counting_progress
from hybridlm._words import words_of
from models.linear import VECTOR, Form, Product, groups_of_terms, multiply, multiply_words

MOST_ROWS = 64
"""Of more rows than these the usual form was the fastest for every weight."""
WORDS_ROWS = 4
"""Of so few rows the form that reads words can be the fastest."""
FEWEST_TERMS = 16
"""Of its sums: XLA computes the inputs again in each of fewer."""
LARGE = 1 << 17
"""Elements of a weight from which on the form of its product is worth measuring."""
SHARE = 0.005
"""Of the bytes of all large weights: those of a shape that have less are not worth it either."""
GAIN = 1.1
"""So many times as fast as the usual form another one has to be."""
ROUNDS = 9
READ = 64 << 20
"""Bytes of weights that a round reads, more than caches hold."""

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
    few = sorted({count for count in rows if count <= MOST_ROWS})
    return {
        Product(count, *shape): same
        for shape, same in weights.items()
        if sum(one.nbytes for one in same) >= least
        for count in few
    }


def forms_of(product: Product) -> tuple[Form, ...]:
    """The forms that a product can have, some of FORMS."""
    terms, rest = divmod(product.inputs, 2 * VECTOR)
    enough = terms > 0 and not rest and terms // groups_of_terms(terms) >= FEWEST_TERMS
    return FORMS if enough and product.rows <= WORDS_ROWS and product.dtype == "bfloat16" else FORMS[:2]


def read_as_words(forms: Mapping[Product, Form], params: Sequence[jax.Array]) -> dict[int, jax.Array]:
    """The words of the parameters that products of these forms read as such, by the places of the parameters."""
    shapes = {(one.outputs, one.inputs, one.dtype) for one, form in forms.items() if form == "words of weight"}
    found = {i: words_of(one) for i, one in enumerate(params) if (*one.shape, str(one.dtype)) in shapes}
    return {i: words for i, words in found.items() if words is not None}


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
    best = min(seconds, key=lambda form: seconds[form])
    return best if seconds[best] * GAIN < seconds[product.usual_form] else product.usual_form


def in_words(forms: Mapping[Product, Form]) -> str:
    """Which products have another form than the usual one."""
    other = sorted(product for product, form in forms.items() if form != product.usual_form)
    return ", ".join(map(_name, other)) or "usual"


def _name(product: Product) -> str:
    return f"{product.rows}x{product.inputs}x{product.outputs} {product.dtype}"


def _compiled(product: Product) -> dict[Form, jax.stages.Compiled]:
    rows = jax.ShapeDtypeStruct((product.rows, product.inputs), "float32")
    weight = jax.ShapeDtypeStruct((product.outputs, product.inputs), product.dtype)
    words = jax.ShapeDtypeStruct((product.outputs, product.inputs // 2), "uint32")
    found: dict[Form, jax.stages.Compiled] = {}
    for form in forms_of(product):
        if form == "words of weight":
            found[form] = multiply_words.lower(rows, words).compile()
        else:
            found[form] = jax.jit(multiply, static_argnums=2).lower(rows, weight, form).compile()
    return found


def _seconds(
    product: Product, weights: Sequence[jax.Array], programs: Mapping[Form, jax.stages.Compiled]
) -> dict[Form, float]:
    """The least time of a product in each form over several weights, in turns."""
    needed = max(1, math.ceil(READ / weights[0].nbytes))
    several = [one if i < len(weights) else one.copy() for i, one in zip(range(needed), cycle(weights), strict=False)]
    rows = jax.random.normal(jax.random.key(0), (product.rows, product.inputs))
    words = list(map(words_of, several)) if "words of weight" in programs else []
    read: dict[Form, Sequence[jax.Array | None]] = {
        form: words if form == "words of weight" else several for form in programs
    }
    least: dict[Form, float] = {form: math.inf for form in read if all(one is not None for one in read[form])}
    for _ in range(ROUNDS):
        for form in least:
            start = time.perf_counter()
            jax.block_until_ready([programs[form](rows, one) for one in read[form]])
            least[form] = min(least[form], (time.perf_counter() - start) / needed)
    return least


def _keep(store: FormStore, product: Product, form: Form, seconds: Mapping[Form, float]) -> None:
    try:
        store.keep(product, form, tuple(seconds[one] for one in FORMS if one in seconds))
    except OSError as error:
        _log.warning("the form of a product was not kept, the next process measures it again: %s", error)
