"""How long a matrix product takes in each of its forms, alone and fused with the conversion of its weight."""

import functools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import jax
import numpy as np

from hybridlm._words import words_of
from models.linear import (
    MANY_ROWS,
    PAIRS,
    SCREENED,
    SHARED_TERMS,
    VECTOR,
    WORDS,
    Form,
    Product,
    groups_of_terms,
    multiply,
    multiply_words,
)

FUSED: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
"""Options of XLA:CPU under which a product takes in the elementwise operations around it. A narrow weight is converted
to float32 piece by piece, in a cache. Otherwise the library has a kernel for narrow numbers, which is the faster one
where the CPU multiplies such numbers itself. The audit knows what goes wrong under them (`ir_passes.audit_fusions`)."""
CONVERTED: tuple[Form, ...] = ("rows x converted weight", "converted weight x rows")
"""The forms for which a step is compiled with FUSED."""
PAIRS_ROWS = 8
"""Of so few rows there are columns left, of the 16 that are computed, for pairs of a weight's rows."""
WORDS_ROWS = 4
"""Of so few rows a form that reads words can be the fastest."""
FEWEST_TERMS = 16
"""Of its sums: XLA computes the inputs again in each of fewer."""
ROUNDS = 9
READ = 64 << 20
"""Bytes of weights that a round reads, more than caches hold."""
MANY_ROUNDS = 3
CLOSE = 1e-3
"""What forms may differ by, as a part of the largest number: they add in different orders."""

_log = logging.getLogger("hybridlm")


def forms_of(product: Product) -> tuple[Form, ...]:
    """The forms that are worth measuring of a product; those of a converted weight are compiled with FUSED."""
    if product.dtype == "int8":
        return (SCREENED,)
    forms: list[Form] = ["rows x weight"]
    if product.rows != MANY_ROWS:
        forms.append("weight x rows")
    if can_fuse():
        forms += map(converted, tuple(forms))
    if jax.default_backend() == "cpu" and product.rows <= PAIRS_ROWS and product.outputs % 2 == 0:
        forms.append(PAIRS)
    terms, rest = divmod(product.inputs, 2 * VECTOR)
    enough = terms > 0 and not rest and terms // groups_of_terms(terms) >= FEWEST_TERMS
    if enough and product.rows <= WORDS_ROWS and product.dtype == "bfloat16":
        forms.append("words of weight")
        if product.rows > 1 and terms % SHARED_TERMS == 0:
            forms.append("words for all rows")
    return tuple(forms)


def can_fuse() -> bool:
    """Whether XLA knows how to fuse products."""
    return jax.default_backend() == "cpu" and _knows_the_options()


@functools.cache
def _knows_the_options() -> bool:
    try:
        jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((), "float32")).compile(compiler_options=dict(FUSED))
    except jax.errors.JaxRuntimeError as error:
        _log.info("products are not fused with what they read: %s", error)
        return False
    return True


def converted(form: Form) -> Form:
    """The form of a converted weight with the same operand on the left."""
    return "rows x converted weight" if form == "rows x weight" else "converted weight x rows"


def compiled_forms(product: Product) -> dict[Form, jax.stages.Compiled]:
    """The programs of a product, by form; they take the rows in float32 and the weight, or its words."""
    rows = jax.ShapeDtypeStruct((product.rows, product.inputs), "float32")
    weight = jax.ShapeDtypeStruct((product.outputs, product.inputs), product.dtype)
    words = jax.ShapeDtypeStruct((product.outputs, product.inputs // 2), "uint32")
    found: dict[Form, jax.stages.Compiled] = {}
    for form in forms_of(product):
        if form in WORDS:
            found[form] = multiply_words.lower(rows, words, form).compile()
        else:
            lowered = jax.jit(multiply, static_argnums=2).lower(rows, weight, form)
            found[form] = lowered.compile(compiler_options=dict(FUSED) if form in CONVERTED else None)
    return found


def seconds_of(
    product: Product, weights: Sequence[jax.Array], programs: Mapping[Form, jax.stages.Compiled]
) -> dict[Form, float]:
    """The least time of a product in each form, in turns: over weights that no cache holds; many rows over one.

    Args:
        product: what the programs compute.
        weights: some of this shape.
        programs: of `compiled_forms`.

    Returns:
        By forms; those of the words of weights only where they can be shared. A form whose numbers are not those of the
        product is left out, with a warning.
    """
    many = product.rows == MANY_ROWS
    needed = 1 if many else max(1, math.ceil(READ / weights[0].nbytes))
    several = [one if i < len(weights) else one.copy() for i, one in enumerate(islice(cycle(weights), needed))]
    rows = jax.random.normal(jax.random.key(0), (product.rows, product.inputs))
    words = list(map(words_of, several)) if set(WORDS) & set(programs) else []
    read: dict[Form, Sequence[jax.Array | None]] = {form: words if form in WORDS else several for form in programs}
    shared: list[Form] = [form for form in read if all(one is not None for one in read[form])]
    usual = np.asarray(programs["rows x weight"](rows, several[0]))
    least: dict[Form, float] = {
        form: math.inf
        for form in shared
        if form == "rows x weight" or _agrees(product, form, programs[form](rows, read[form][0]), usual)
    }
    for _ in range(MANY_ROUNDS if many else ROUNDS):
        for form in least:
            start = time.perf_counter()
            jax.block_until_ready([programs[form](rows, one) for one in read[form]])
            least[form] = min(least[form], (time.perf_counter() - start) / needed)
    return least


def _agrees(product: Product, form: Form, result: jax.Array, usual: np.ndarray) -> bool:
    """Whether a form has the numbers of the product; what a converted weight is fused by is an experiment of XLA."""
    # A row at a time: of many rows and a large vocabulary all would need as much memory again.
    most = max(np.abs(row[np.isfinite(row)]).max(initial=0.0) for row in usual)
    rows = zip(np.asarray(result), usual, strict=True)
    differ = sum(int((~np.isclose(*pair, rtol=0.0, atol=CLOSE * most, equal_nan=True)).sum()) for pair in rows)
    if differ:
        _log.warning(
            "%s: XLA computes %d of %d numbers otherwise as %r than as 'rows x weight', by more than %.3g; that form "
            "is not used",
            product,
            differ,
            usual.size,
            form,
            CLOSE * most,
        )
    return not differ
