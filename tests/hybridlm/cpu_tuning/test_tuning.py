"""Models that are loaded with `tune=True`: which steps have which variants, and that tokens and isolation stay."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_checkpoint import write_random_checkpoint
from text_checkpoint import write_text_checkpoint

import hybridlm
from hybridlm.cpu_tuning import check_tune, products, variants
from hybridlm.cpu_tuning.derived_params import TunedWeight, tuned_weight
from hybridlm.cpu_tuning.variants import PACKED, Product, Variant
from hybridlm.programs.shapes import Shape
from models.layers.embedding import embedding_rows
from models.ops.linear import linear

PROMPTS = [[5, 9, 3], [7, 7], [4, 8, 2, 6, 1]]
SETTINGS: dict[str, Any] = {"lanes": 4, "context": 32, "dtype": "bfloat16", "chunk": 4}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Fake measurements instead of the clock, and the products that were measured; for matrices of any size."""
    found: dict[str, Any] = {"rows x weight": 1.0, "weight x rows": 2.0, "measured": []} | dict.fromkeys(PACKED, 3.0)

    def seconds(product: Product, *_: Any) -> dict[Variant, float]:
        found["measured"].append(product)
        return {variant: found[variant] for variant in product.variants}

    monkeypatch.setattr(products, "seconds_of", seconds)
    monkeypatch.setattr(products, "compiled_variants", lambda product: {})
    monkeypatch.setattr(products, "MIN_ELEMENTS", 1)
    monkeypatch.setattr(variants, "MIN_TERMS", 1)
    return found


def tokens_of(lm: hybridlm.LM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    return [one.token_ids for one in lm.generate(prompts, max_tokens=6, ignore_eos=True)]


def lefts(lm: hybridlm.LM, shape: Shape) -> list[tuple[int, ...]]:
    """Shapes of what stands on the left of the products with narrow weights in a step."""
    step, _ = lm.engine.programs.step(shape)
    jaxpr = jax.make_jaxpr(step)(*lm.engine.example_arguments(shape))
    dots = [one for one in jaxpr.eqns if one.primitive.name == "dot_general"]
    return [one.invars[0].aval.shape for one in dots if one.invars[0].aval.dtype == jnp.bfloat16]


def test_nothing_is_measured_without_tune(tmp_path: Path, clock: dict[str, Any]) -> None:
    directory, cache = write_text_checkpoint(tmp_path), tmp_path / "cache"
    lm = hybridlm.load(directory, compilation_cache=cache, **SETTINGS)
    assert lm.engine.tuned is None and not clock["measured"] and not (cache / "products").exists()
    assert all(isinstance(param, jax.Array) for param in lm.engine.params)
    assert lm._scorer.origin["products"] == "default"


@pytest.mark.slow
def test_steps_are_compiled_with_the_chosen_variants(tmp_path: Path, clock: dict[str, Any]) -> None:
    """The tokens stay; what decides the bits of scores says so."""
    directory, cache = write_text_checkpoint(tmp_path), tmp_path / "cache"
    plain = hybridlm.load(directory, **SETTINGS)
    tuned = hybridlm.load(directory, tune=True, compilation_cache=cache, **SETTINGS)
    assert {product.rows for product in clock["measured"]} == {1, 2, 4, 8, 16}
    assert len(list((cache / "products").iterdir())) == len(clock["measured"])
    shape = Shape("generate", 4, 1)
    assert (tuned.config.vocab_size, 32) in lefts(plain, shape)
    assert all(left[0] == 4 for left in lefts(tuned, shape)) and lefts(tuned, shape) != lefts(plain, shape)
    assert tokens_of(plain) == tokens_of(tuned)
    assert all(one.holds for one in tuned.certificates.values())
    assert "bfloat16" in str(tuned._scorer.origin["products"])


@pytest.mark.slow
def test_steps_read_packed_words_where_that_is_the_fastest(tmp_path: Path, clock: dict[str, Any]) -> None:
    """Proved and audited as the others, with the same tokens; no byte is held twice."""
    clock |= {"packed, by row": 0.5}
    directory = write_text_checkpoint(tmp_path)
    plain = hybridlm.load(directory, **SETTINGS)
    tuned = hybridlm.load(directory, tune=True, compilation_cache=tmp_path / "cache", **SETTINGS)
    engine = tuned.engine
    assert engine.tuned is not None and engine.tuned.weights
    for one in engine.tuned.weights:
        assert one.packed is not None and one.packed.unsafe_buffer_pointer() == one.array.unsafe_buffer_pointer()
    assert engine.parameters_on_a_device == plain.engine.parameters_on_a_device
    for shape, expected in ((Shape("generate", 2, 1), True), (Shape("score", 4, 4, 0), False)):
        step, _ = engine.programs.step(shape)
        text = str(jax.make_jaxpr(step)(*engine.example_arguments(shape)))
        assert ("4294901760" in text) == expected, shape  # the mask of the upper half of a word
    together = tokens_of(tuned)
    assert tokens_of(plain) == together and all(one.holds for one in tuned.certificates.values())
    assert [tokens_of(tuned, [prompt])[0] for prompt in PROMPTS] == together
    np.testing.assert_allclose(
        plain.score([[5, 9, 3, 4]])[0].logprobs, tuned.score([[5, 9, 3, 4]])[0].logprobs, atol=0.02
    )


@pytest.mark.slow
def test_a_router_and_an_embedding_read_a_tuned_weight_as_the_array_that_it_is(
    tmp_path: Path, clock: dict[str, Any]
) -> None:
    directory = write_random_checkpoint("next_base", tmp_path / "checkpoint")
    plain = hybridlm.load(directory, **SETTINGS)
    tuned = hybridlm.load(directory, tune=True, compilation_cache=tmp_path / "cache", **SETTINGS)
    kinds = dict(zip(tuned.params, tuned.engine.params, strict=True))
    assert any(isinstance(one, TunedWeight) for name, one in kinds.items() if name.endswith("router.weight"))
    assert isinstance(kinds["embed_tokens"], TunedWeight)
    assert tokens_of(plain) == tokens_of(tuned)


def left(count: int, weight: Any) -> tuple[int, ...] | None:
    """The shape of what stands on the left of the product of some rows; None where there is no such operation."""
    jaxpr = jax.make_jaxpr(linear)(jnp.zeros((count, 512)), weight)
    dots = [one for one in jaxpr.eqns if one.primitive.name == "dot_general"]
    return dots[0].invars[0].aval.shape if dots else None


@pytest.mark.parametrize(
    ("variant", "rows", "expected"),
    [
        ("rows x weight", 2, (2, 512)),
        ("weight x rows", 40, (64, 512)),
        (PACKED[0], 3, None),
        (PACKED[1], 3, None),
    ],
)
def test_a_product_has_the_variant_of_its_number_of_rows_and_others_the_default(
    variant: Variant, rows: int, expected: tuple[int, ...] | None
) -> None:
    rng = np.random.default_rng(0)
    weight = jnp.asarray(rng.normal(size=(64, 512)), jnp.bfloat16)
    tuned = tuned_weight(weight, {Product.of(rows, weight): variant, Product(rows, 63, 512, "bfloat16"): PACKED[0]})
    assert isinstance(tuned, TunedWeight) and tuned.variants == ((rows, variant),)
    for count in (1, 2, 3, 40, 41):
        assert left(count, tuned) == (expected if count == rows else left(count, weight))
        x = jnp.asarray(rng.normal(size=(count, 512)), jnp.float32)
        np.testing.assert_allclose(linear(x, tuned), linear(x, weight), atol=1e-3)
    assert np.asarray(tuned.astype(jnp.float32)).tobytes() == np.asarray(weight.astype(jnp.float32)).tobytes()
    ids = jnp.asarray([3, 0])
    assert np.asarray(embedding_rows(tuned, ids)).tobytes() == np.asarray(embedding_rows(weight, ids)).tobytes()


def test_a_parameter_whose_variants_are_the_defaults_stays_an_array() -> None:
    weight = jnp.zeros((64, 32), jnp.bfloat16)
    defaults: dict[Product, Variant] = {Product.of(rows, weight): Product.of(rows, weight).default for rows in (1, 64)}
    assert tuned_weight(weight, defaults) is weight
    assert tuned_weight(jnp.zeros(64), defaults).shape == (64,)


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    """Processes of a mesh that measured by themselves would run different programs."""
    directory = write_text_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"^tune: expected False, got True: .*mesh.*; .*compilation_cache"):
        hybridlm.load(directory, tune=True, mesh=hybridlm.mesh(data=2), compilation_cache=False, **SETTINGS)
    check_tune(tmp_path, None, "cpu")
    with pytest.raises(ValueError, match=r"^tune: expected False, got True: .*run on gpu$"):
        check_tune(tmp_path, None, "gpu")
