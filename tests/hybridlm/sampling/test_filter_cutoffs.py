"""The kernel of filter cutoffs agrees with the plain form and separates lanes."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from traced_operations import traced_operations

from hybridlm.sampling import filter_cutoffs as module
from hybridlm.sampling.filter_cutoffs import KERNEL, MIN_VOCAB, ordered
from hybridlm.sampling.sampling import FILTERED, SAMPLED, Sampling, kept_by_filters, sample_tokens
from ir_passes import Lane, LaneContract, Note, Shared, prove_isolation
from models import Devices

LANES = 60
"""All combinations of the settings."""
VOCABULARIES = (16, 17, 300, 10_000)
"""One block, a prime number, blocks that do not divide it, and three parts in four instances."""
KERNELS = Devices(platform="gpu", kernels="interpret")


def lanes(vocab: int, ties: bool = False) -> tuple[np.ndarray, Sampling]:
    rng = np.random.default_rng(vocab)
    logits = (rng.integers(-3, 3, (LANES, vocab)) if ties else 3 * rng.normal(size=(LANES, vocab))).astype(np.float32)
    settings = Sampling(
        temperature=np.resize(np.array([0.5, 1.0, 1.7], np.float32), LANES),
        top_k=np.resize(np.array([0, 1, 7, vocab], np.int32), LANES),
        top_p=np.resize(np.array([1.0, 0.3, 0.9, 1e-9, 0.999], np.float32), LANES),
        min_p=np.resize(np.array([0.0, 0.2], np.float32), LANES),
        seed=np.zeros((LANES, 2), np.uint32),
        index=np.arange(LANES, dtype=np.uint32),
    )
    return logits, settings


def cutoffs(logits: Any, of: Sampling) -> np.ndarray:
    run = jax.jit(partial(module.filter_cutoffs, devices=KERNELS))
    return np.asarray(run(jnp.asarray(logits), jnp.max(logits, axis=1), *map(jnp.asarray, of[:3])))


def sampled(logits: Any, of: Sampling, mode: int = FILTERED, devices: Devices = KERNELS) -> np.ndarray:
    positions = np.zeros(len(logits), np.int32)
    return np.asarray(jax.jit(partial(sample_tokens, devices=devices))(logits, of, positions, np.int32(mode)))


@pytest.mark.each_value
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_tokens_are_kept(vocab: int, ties: bool) -> None:
    logits, of = lanes(vocab, ties)
    of = of._replace(min_p=np.zeros(LANES, np.float32))
    matches = np.asarray(ordered(jnp.asarray(logits))) >= cutoffs(logits, of)[:, None]
    expected = kept_by_filters(jnp.asarray(logits / of.temperature[:, None]), of)
    np.testing.assert_array_equal(matches, expected)


@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize("vocab", VOCABULARIES)
@pytest.mark.parametrize("mode", [SAMPLED, FILTERED])
def test_the_same_tokens_are_sampled(vocab: int, mode: int) -> None:
    logits, of = lanes(vocab)
    logits[3, 5], logits[4, 2], of.temperature[5] = np.inf, np.nan, 0.0
    logits[6, 1:] = -np.inf
    if mode == SAMPLED:
        of = of._replace(**{name: np.full(LANES, value, getattr(of, name).dtype) for name, value in
                            (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0))})  # fmt: skip
    np.testing.assert_array_equal(sampled(logits, of, mode), sampled(logits, of, mode, Devices(platform="gpu")))


def test_lanes_keep_their_bits() -> None:
    logits, of = lanes(300)
    expected = cutoffs(logits, of)
    for bad in (0, 1):
        poisoned = logits.copy()
        poisoned[bad::2] = np.nan
        mask = np.arange(LANES) % 2 != bad
        np.testing.assert_array_equal(cutoffs(poisoned, of)[mask], expected[mask])


def test_kernel_is_proved_from_the_inside() -> None:
    logits, of = lanes(300)
    contract = LaneContract((Lane(), jax.tree.map(lambda _: Lane(), of), Lane(), Shared()), (Lane(),))
    step = lambda *args: (sample_tokens(*args, devices=KERNELS),)
    proof = prove_isolation(step, (logits, of, np.zeros(LANES, np.int32), np.int32(FILTERED)), contract)
    notes = [note for note in proof.notes if note.id == Note.KERNEL_READ.value]
    assert all(note.about.startswith(KERNEL.name) for note in notes) and notes


@pytest.mark.slow
def test_a_lanes_cutoff_does_not_depend_on_the_number_of_lanes() -> None:
    logits, of = lanes(10_000)
    expected = cutoffs(logits, of)
    for lane in range(3):
        alone = Sampling(*(setting[lane : lane + 1] for setting in of))
        np.testing.assert_array_equal(cutoffs(logits[lane : lane + 1], alone), expected[lane : lane + 1])


@pytest.mark.parametrize("lanes", [1, 64])
def test_a_vocabulary_has_many_instances(lanes: int) -> None:
    """A pass over 248,320 logits of one lane occupies 64 processors."""
    vector = np.ones(lanes, np.float32)
    settings = vector, vector, vector.astype(np.int32), vector
    run = partial(module.filter_cutoffs, devices=KERNELS)
    operations = traced_operations(run, jax.ShapeDtypeStruct((lanes, 248_320), np.float32), *settings)
    grids = {item.params["grid_mapping"].grid for item in operations if item.name == "pallas_call"}
    assert grids == {(lanes, 64)}


def test_a_small_vocabulary_is_left_to_the_plain_form() -> None:
    assert KERNEL.supports(np.zeros((1, MIN_VOCAB)))
    assert not KERNEL.supports(np.zeros((1, MIN_VOCAB - 1)))
