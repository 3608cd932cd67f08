"""Keys of programs and digests of operands follow from the parts of a step's inputs."""

from typing import Any

import jax
import numpy as np
import pytest
from disturbed_lanes import step_shape

import hybridlm
from hybridlm.programs.many_processes import digests
from hybridlm.programs.shapes import Shape, lane_bucket

MANY: dict[str, Any] = {
    "step": "generate",
    "tokens": 1,
    "mtp_drafts": 2,
    "changes": 64,
    "masked": True,
    "probes": (2, 1, 1, 1),
}
STEPS: list[dict[str, Any]] = [
    {"step": "generate", "tokens": 4, "lanes": 2, "top": 3}, MANY,
    {"step": "generate", "tokens": 1, "probes": (0, 0, 4, 0)}, {"step": "verify", "tokens": 5},
    {"step": "verify", "tokens": 5, "changes": 64, "masked": True},
    *({"step": "score", "tokens": 4, "lanes": 2, "top": top, "chosen": chosen, "probes": probes}
      for top, chosen, probes in ((0, None, ()), (1, 0, ()), (0, 3, (2, 3, 1, 1)), (0, None, (2, 3, 0, 0)))),
    {"step": "hidden", "tokens": 4, "lanes": 2},
]  # fmt: skip


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_key_follows_from_the_present_parts(text_lm: hybridlm.LM, step: dict[str, Any]) -> None:
    shape = step_shape(text_lm, **step)
    parts = shape.rows, shape.pages, shape.top, shape.processor, shape.mtp_drafts
    assert Shape.of(text_lm.engine.example_arguments(shape)[2], *parts) == shape


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_absent_parts_have_no_arrays_in_a_contract(text_lm: hybridlm.LM, step: dict[str, Any]) -> None:
    shape = step_shape(text_lm, **step)
    arguments = text_lm.engine.example_arguments(shape)
    function, contract = text_lm.engine.programs.step(shape)
    inputs = arguments[2]
    arrays = [each.path for each in contract.bind(function, arguments).inputs if each.path.startswith("args[2]")]
    assert len(arrays) == len(jax.tree.leaves(inputs))
    assert {path.split(".")[1].split("[")[0] for path in arrays} == {
        name for name, part in inputs._asdict().items() if part is not None
    }


def test_every_array_has_a_separate_digest(text_lm: hybridlm.LM) -> None:
    """Changes of logits have tokens, too, and vectors have indices, as sampling has."""
    inputs = text_lm.engine.example_arguments(step_shape(text_lm, **MANY))[2]
    original = digests(inputs)
    assert len(original) == len(jax.tree.leaves(inputs))
    leaves, tree = jax.tree.flatten(inputs)
    for number, name in enumerate(original):
        changed = [leaf + np.ones_like(leaf) if i == number else leaf for i, leaf in enumerate(leaves)]
        changed_digests = digests(tree.unflatten(changed))
        assert [field for field in original if changed_digests[field] != original[field]] == [name]


def test_lane_rungs_leave_at_most_a_third_idle_above_eight_lanes() -> None:
    assert [lane_bucket(n, 6) for n in (1, 2, 3, 4, 5, 6, 7, 100)] == [1, 2, 4, 4, 6, 6, 6, 6]
    rungs = [lane_bucket(n, 64) for n in range(1, 65)]
    assert sorted(set(rungs)) == [1, 2, 4, 8, 12, 16, 24, 32, 48, 64]
    assert all(count <= rung and (rung <= 8 or 3 * count > 2 * rung) for count, rung in enumerate(rungs, 1))
