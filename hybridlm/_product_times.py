"""How long a matrix product takes in each of its forms, alone and fused with the conversion of its weight."""

import math
import time
from collections.abc import Mapping, Sequence
from itertools import cycle, islice

import jax

from hybridlm._words import words_of
from models.linear import MANY_ROWS, VECTOR, Form, Product, multiply, multiply_words

FUSED: dict[str, str | bool] = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_DOT"}
"""Options of XLA:CPU under which a product takes in the elementwise operations around it. A narrow weight is converted
to float32 piece by piece, in a cache. Otherwise the library has a kernel for narrow numbers, which is the faster one
where the CPU multiplies such numbers itself."""
CONVERTED: tuple[Form, ...] = ("rows x converted weight", "converted weight x rows")
"""The forms for which a step is compiled with FUSED."""
WORDS_ROWS = 4
"""Of so few rows the form that reads words can be the fastest."""
TERMS = range(16, 73)
"""Of how many terms its sums may be: XLA computes the inputs again in each of fewer, LLVM takes seconds over more."""
ROUNDS = 9
READ = 64 << 20
"""Bytes of weights that a round reads, more than caches hold."""
MANY_ROUNDS = 3


def forms_of(product: Product) -> tuple[Form, ...]:
    """The forms that are worth measuring of a product; those of a converted weight are compiled with FUSED."""
    forms: list[Form] = ["rows x weight"]
    if product.rows != MANY_ROWS:
        forms.append("weight x rows")
    if jax.default_backend() == "cpu":
        forms += map(converted, tuple(forms))
    terms, rest = divmod(product.inputs, 2 * VECTOR)
    if product.rows <= WORDS_ROWS and product.dtype == "bfloat16" and terms in TERMS and not rest:
        forms.append("words of weight")
    return tuple(forms)


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
        if form == "words of weight":
            found[form] = multiply_words.lower(rows, words).compile()
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
        By forms; that of the words of weights only where they can be shared.
    """
    many = product.rows == MANY_ROWS
    needed = 1 if many else max(1, math.ceil(READ / weights[0].nbytes))
    several = [one if i < len(weights) else one.copy() for i, one in enumerate(islice(cycle(weights), needed))]
    rows = jax.random.normal(jax.random.key(0), (product.rows, product.inputs))
    words = list(map(words_of, several)) if "words of weight" in programs else []
    read: dict[Form, Sequence[jax.Array | None]] = {
        form: words if form == "words of weight" else several for form in programs
    }
    least: dict[Form, float] = {form: math.inf for form in read if all(one is not None for one in read[form])}
    for _ in range(MANY_ROUNDS if many else ROUNDS):
        for form in least:
            start = time.perf_counter()
            jax.block_until_ready([programs[form](rows, one) for one in read[form]])
            least[form] = min(least[form], (time.perf_counter() - start) / needed)
    return least
