"""The fastest form of each large matrix product on this machine, measured when a model is loaded for the first time."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jax.numpy as jnp

from hybridlm._form_store import FormStore
from hybridlm._machine import Machine, cores
from hybridlm._product_times import CONVERTED, compiled_forms, converted, forms_of, seconds_of
from hybridlm._progress import counting_progress
from hybridlm._words import words_of
from models.linear import WORDS, Form, Product, counted_as

LARGE = 1 << 17
"""Elements of a weight from which on the form of its product is worth measuring."""
SHARE = 0.005
"""Of the bytes of all large weights: those of a shape that have less are not worth it either."""
GAIN = 1.05
"""So many times as fast as the usual one another form has to be."""
GAIN_OF_ALL = 1.03
"""So many times as fast all products of a step have to be where they are fused."""

_log = logging.getLogger("hybridlm")


@dataclass(frozen=True)
class ChosenForms:
    """How the steps of a model compute their products.

    Attributes:
        plain: of products; others have their usual form.
        fused: of products in a step that is compiled with FUSED, for each number of rows for which that is faster.
    """

    plain: Mapping[Product, Form] = field(default_factory=dict)
    fused: Mapping[Product, Form] = field(default_factory=dict)

    def fuse(self, rows: int) -> bool:
        """Whether a step of so many tokens, all lanes together, is faster if it is compiled with FUSED."""
        return any(product.rows == counted_as(rows) for product in self.fused)

    @property
    def read_as_words(self) -> set[tuple[int, int, str]]:
        """Shapes and dtypes of the weights whose words some products read."""
        either = (*self.plain.items(), *self.fused.items())
        return {(one.outputs, one.inputs, one.dtype) for one, form in either if form in WORDS}

    def __str__(self) -> str:
        other = [f"{_name(one)} as {form}" for one, form in sorted(self.plain.items()) if form != one.usual_form]
        other += [f"{_name(one)} fused as {form}" for one, form in sorted(self.fused.items())]
        return ", ".join(other) or "usual"


def large_products(params: Iterable[jax.Array], rows: Iterable[int]) -> dict[Product, list[jax.Array]]:
    """The products of a model that are worth measuring, with their weights.

    Args:
        params: its parameters; an embedding counts as the head that it may be.
        rows: numbers of rows that the model's steps have; MANY_ROWS are measured for all larger ones.
    """
    weights: dict[tuple[int, int, str], list[jax.Array]] = {}
    for one in params:
        if one.ndim == 2 and one.size >= LARGE and one.dtype in (jnp.bfloat16, jnp.float16):
            weights.setdefault((one.shape[0], one.shape[1], str(one.dtype)), []).append(one)
    least = SHARE * sum(one.nbytes for same in weights.values() for one in same)
    products = {
        Product(count, *shape): same
        for shape, same in weights.items()
        if sum(one.nbytes for one in same) >= least
        for count in sorted(set(map(counted_as, rows)))
    }
    return {product: same for product, same in products.items() if len(forms_of(product)) > 1}


def read_as_words(forms: ChosenForms, params: Sequence[jax.Array]) -> dict[int, jax.Array]:
    """The words of the parameters that products of these forms read as such, by the places of the parameters."""
    shapes = forms.read_as_words
    found = {i: words_of(one) for i, one in enumerate(params) if (*one.shape, str(one.dtype)) in shapes}
    return {i: words for i, words in found.items() if words is not None}


def chosen_forms(
    products: Mapping[Product, Sequence[jax.Array]], directory: Path, progress: bool | None = None
) -> ChosenForms:
    """The fastest forms of products: by the times that are kept in a directory, or else are measured and kept.

    Args:
        products: with their weights.
        directory: of a `FormStore`.
        progress: show a bar if anything is measured; None shows one where standard error is a terminal.
    """
    store = FormStore(directory, Machine.here())
    times = {product: store.find(product) for product in products}
    missing = [product for product, found in times.items() if found is None]
    if missing:
        with counting_progress(progress, "measuring products", len(missing)) as done:
            with ThreadPoolExecutor(cores()) as pool:
                programs = list(pool.map(compiled_forms, missing))
            for count, product in enumerate(missing):
                times[product] = measured = seconds_of(product, products[product], programs[count])
                keep_times(store, product, measured)
                done(count + 1, _name(product))
    known = {product: found for product, found in times.items() if found is not None}
    return fastest(known, {product: len(weights) for product, weights in products.items()})


def fastest(times: Mapping[Product, Mapping[Form, float]], count: Mapping[Product, int]) -> ChosenForms:
    """What is the fastest by these times; where it makes little difference, the usual.

    Args:
        times: of products, by the forms that were measured.
        count: how many weights of each shape there are.
    """
    plain: dict[Product, Form] = {one: _best(one, found, fused=False) for one, found in times.items()}
    fused: dict[Product, Form] = {one: _best(one, found, fused=True) for one, found in times.items()}
    faster: set[int] = set()
    for rows in {product.rows for product in times}:
        same = [product for product in times if product.rows == rows]
        apart, together = (sum(count[one] * times[one][forms[one]] for one in same) for forms in (plain, fused))
        possible = all(set(CONVERTED) & set(times[one]) for one in same)
        if possible and together * GAIN_OF_ALL < apart:
            faster.add(rows)
    return ChosenForms(plain, {one: form for one, form in fused.items() if one.rows in faster})


def _best(product: Product, seconds: Mapping[Form, float], fused: bool) -> Form:
    """The form of least time in a step that is fused or not, or the usual one there where that is about as fast.

    XLA has no kernel for narrow numbers in a step that is fused.
    """
    can: list[Form] = [form for form in seconds if form in WORDS or (form in CONVERTED) == fused]
    usual = converted(product.usual_form) if fused else product.usual_form
    if not can:
        return product.usual_form
    best = min(can, key=lambda form: seconds[form])
    return usual if usual in can and seconds[usual] <= seconds[best] * GAIN else best


def _name(product: Product) -> str:
    return f"{product.rows}x{product.inputs}x{product.outputs} {product.dtype}"


def keep_times(store: FormStore, product: Product, seconds: Mapping[Form, float]) -> None:
    """Keep what was measured, or say why not."""
    try:
        store.keep(product, seconds)
    except OSError as error:
        _log.warning("the time of a product was not kept, the next process measures it again: %s", error)
