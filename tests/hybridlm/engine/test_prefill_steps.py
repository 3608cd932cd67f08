"""Prefill steps fit their sequences at least cost; completions equal prompts alone."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from instruction_sets import instruction_sets
from paged_shapes import compiled_steps
from random_checkpoint import write_random_checkpoint
from random_traffic import completed

import hybridlm
from hybridlm.engine.warmup import all_shapes, first_shapes
from hybridlm.engine.widths import DEVICE_STEP_COST, STEP_COST, cheapest_step


def cost_alone(count: int, widths: tuple[int, ...], step_cost: int) -> int:
    """Return the least cost of one-row steps, by trying all combinations of widths."""
    ranges = [range(-(-count // width) + 1) for width in widths]
    numbers = (numbers for numbers in itertools.product(*ranges) if np.dot(numbers, widths) >= count)
    return min(int(np.dot(number, widths)) + step_cost * sum(number) for number in numbers)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("widths", [(1,), (4,), (128, 32, 8), (128, 64)], ids=str)
def test_one_prompt_has_the_cheapest_steps(widths: tuple[int, ...], platform: str) -> None:
    step_cost = STEP_COST.get(platform, DEVICE_STEP_COST)
    for tokens in range(1, widths[0] + 1):
        remaining, cost = tokens, 0
        while remaining > 0:
            (first,), lanes, width = cheapest_step([remaining], [0], [1, 2], widths, platform)
            assert first == 0 and lanes == 1
            remaining, cost = remaining - width, cost + width + step_cost
        assert cost == cost_alone(tokens, widths, step_cost)


@pytest.mark.parametrize(
    "counts, chosen, lanes, width",
    [
        ([128] * 4, [0, 1, 2, 3], 4, 128),
        ([100] * 4, [0, 1, 2, 3], 4, 128),
        ([60] * 4, [0, 1, 2, 3], 4, 32),
        ([8] * 4, [0, 1, 2, 3], 4, 8),
        ([20, 30], [0, 1], 2, 32),
        ([20, 30, 25], [0, 1], 2, 32),
        ([128, 128, 128], [0, 1], 2, 128),  # a fourth lane would be idle
        ([128, 8, 128, 120], [0, 2], 2, 128),  # the second prompt waits, with fewest tokens
        ([8, 128, 128, 128], [0], 1, 8),  # the first prompt is in every step
    ],
    ids=str,
)
def test_a_step_has_the_prompts_that_fill_it(counts: list[int], chosen: list[int], lanes: int, width: int) -> None:
    assert cheapest_step(counts, [0] * len(counts), [1, 2, 4], (128, 32, 8), "cpu") == (chosen, lanes, width)


def test_a_step_fits_every_device() -> None:
    """Two devices with two lanes each: the first prompt has one device for itself."""
    step = cheapest_step([128] * 4, [0, 1, 1, 1], [2, 4], (128, 32, 8), "cpu", parts=2)
    assert step == ([0, 1], 2, 128)
    step = cheapest_step([128] * 5, [1, 0, 1, 0, 1], [2, 4], (128, 32, 8), "cpu", parts=2)
    assert step == ([0, 1, 2, 3], 4, 128)


@given(
    counts=st.lists(st.integers(1, 256), min_size=1, max_size=4),
    sizes=st.sampled_from([[1], [1, 2, 4], [4], [1, 3]]),
    widths=st.sampled_from([(128, 32, 8), (4,), (128, 64)]),
)
def test_prompts_end_and_full_steps_are_preferred(counts: list[int], sizes: list[int], widths: tuple[int, ...]) -> None:
    """The first prompt is in every step, so that every prompt ends."""
    remainders, places = list(counts), 0
    while remainders:
        chosen, lanes, width = cheapest_step(remainders, [0] * len(remainders), sizes, widths, "cpu")
        assert 0 in chosen and len(chosen) <= lanes
        smaller = [size for size in sizes if len(chosen) <= size < lanes]
        assert not smaller, "a smaller step has these prompts, too"
        for index in chosen:
            remainders[index] -= width
        remainders = [count for count in remainders if count > 0]
        places += lanes * width
    assert places >= sum(counts)


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> hybridlm.LM:
    directory: Path = write_random_checkpoint("dense_base", tmp_path_factory.mktemp("prefill_steps"))
    return hybridlm.load(directory, lanes=4, context=512, progress=False, certify="off")


def prompt(tokens: int) -> list[int]:
    return [3 + (7 * i * i + 11 * tokens) % 60 for i in range(tokens)]


def completions(lm: hybridlm.LM, arrivals: dict[int, list[int]]) -> tuple[list[hybridlm.Completion], list[str]]:
    """Submit prompts before each step; return the completions and the prefill steps."""
    shapes, run = list[str](), lm.engine.run
    patch = pytest.MonkeyPatch()
    with patch.context() as context, lm.session() as session:

        def record(shape: Any, *args: object, **options: object) -> object:
            shapes.extend([str(shape)] if shape.tokens > 1 else [])
            return run(shape, *args, **options)  # type: ignore[arg-type]

        context.setattr(lm.engine, "run", record)
        completions = {}
        for step in range(200):
            for tokens in arrivals.get(step, []):
                session.submit(prompt(tokens), max_tokens=6, ignore_eos=True, logprobs=0)
            completions |= completed(session)
            if step > max(arrivals) and not session.busy:
                break
    return [completions[index] for index in sorted(completions)], shapes


@pytest.mark.slow
@pytest.mark.parametrize(
    "arrivals, steps",
    [
        ({0: [1]}, ["1x8"]),
        ({0: [8]}, ["1x8"]),
        ({0: [9]}, ["1x32"]),
        ({0: [32]}, ["1x32"]),
        ({0: [33]}, ["1x32", "1x8"]),
        ({0: [128]}, ["1x128"]),
        ({0: [129]}, ["1x128", "1x8"]),
        ({0: [300]}, ["1x128", "1x128", "1x32", "1x32"]),
        ({0: [20, 30]}, ["2x32"]),
        ({0: [20, 200]}, ["2x32", "1x128", "1x32", "1x8"]),  # the second prompt goes on in steps of one lane
        # The first prompt goes on in a step of two lanes and then in steps of one.
        ({0: [300], 1: [20]}, ["1x128", "2x32", "1x128", "1x32"]),
        ({0: [20, 20, 20, 20], 3: [20]}, ["4x32", "1x32"]),  # the last prompt waits for a row
        ({0: [20, 20, 20], 3: [20]}, ["2x32", "1x32", "1x32"]),  # the last prompt is late, the others decode
    ],
    ids=str,
)
def test_steps_fit_prompts(lm: hybridlm.LM, arrivals: dict[int, list[int]], steps: list[str]) -> None:
    results, shapes = completions(lm, arrivals)
    assert [shape.split()[1] for shape in shapes] == steps
    lengths = [tokens for step in sorted(arrivals) for tokens in arrivals[step]]
    assert len(results) == len(lengths)
    for completion, tokens in zip(results, lengths, strict=True):
        (single,) = lm.generate([prompt(tokens)], max_tokens=6, ignore_eos=True, logprobs=0)
        assert completion.token_ids == single.token_ids
        assert completion.logprobs is not None and single.logprobs is not None
        np.testing.assert_allclose(completion.logprobs, single.logprobs, atol=1e-4, rtol=0)


def test_prefill_steps_are_warmed_up(lm: hybridlm.LM) -> None:
    shapes = set(all_shapes(lm.engine))
    assert {lm.engine.shape("generate", lanes, width, 4) for lanes in (1, 2, 4) for width in (8, 32, 128)} <= shapes


@pytest.mark.slow
def test_a_sequence_has_one_row_from_its_first_token_to_its_last(lm: hybridlm.LM) -> None:
    rows: dict[int, set[int]] = {}
    with lm.session() as session:
        for tokens in (300, 20, 40):
            session.submit(prompt(tokens), max_tokens=6, ignore_eos=True)
            session.step()
        while session.busy:
            scheduler: Any = session._scheduler
            for sequence in scheduler.joined:
                row = scheduler._pool.rows_of([sequence.slot])[0]
                rows.setdefault(sequence.request.index, set()).add(row)
            session.step()
    assert sorted(map(len, rows.values())) == [1, 1, 1] and len(set.union(*rows.values())) == 3


@pytest.mark.slow
def test_scoring_is_warmed_up_for_every_number_of_texts(lm: hybridlm.LM) -> None:
    compiled = lm.engine.programs.shapes
    lm.score([prompt(20), prompt(40)])
    shapes = set(compiled_steps(lm))
    scoring = {shape for shape in shapes.difference(compiled) if shape.step == "score"}
    assert {shape.lanes for shape in scoring} == {2} and scoring <= set(all_shapes(lm.engine))


def test_the_step_of_a_short_prompt_is_loaded_first(lm: hybridlm.LM) -> None:
    assert {lm.engine.shape("generate", 1, width, 4) for width in (8, 32, 128)} <= set(first_shapes(lm.engine))


@pytest.mark.slow
def test_places_of_steps_are_counted(lm: hybridlm.LM) -> None:
    names = ("step_tokens", "step_places", "decode_tokens", "decode_places")
    counts = {name: lm.stats[name] for name in names}
    lm.generate([prompt(20)], max_tokens=6, ignore_eos=True)
    # One step of 32 places for 20 tokens, then five steps of one place.
    assert [lm.stats[name] - counts[name] for name in names] == [25, 37, 5, 5]


@pytest.mark.skipif("amx" not in instruction_sets(), reason="without tiles, XLA computes products of many rows")
def test_prompts_in_bfloat16_have_the_bits_of_prompts_alone(lm: hybridlm.LM) -> None:
    """One step of 512 rows for all prompts; alone each has 128 rows."""
    narrow = hybridlm.load(lm.path, lanes=4, context=256, dtype="bfloat16", progress=False, certify="off")
    prompts = [prompt(tokens) for tokens in (128, 90, 100, 118)]
    batched = narrow.generate(prompts, max_tokens=3, ignore_eos=True, logprobs=0)
    for completion, tokens in zip(batched, prompts, strict=True):
        (single,) = narrow.generate([tokens], max_tokens=3, ignore_eos=True, logprobs=0)
        assert completion.token_ids == single.token_ids and completion.logprobs == single.logprobs
