"""Keys of programs and digests of operands follow from the parts of a step's inputs."""

from typing import Any

import jax
import numpy as np
import pytest
from paged_shapes import paged

import hybridlm
from hybridlm.multiprocess.operand_check import DIGEST_WORDS
from hybridlm.programs.many_processes import digests
from hybridlm.programs.shapes import Shape
from hybridlm.steps.contract import page_table, slot_map, step_contract
from hybridlm.steps.hooks import ProbeShape
from hybridlm.steps.operands import StepInputs
from ir_passes.contract.prefix import spread

PROBES = ProbeShape(2, 1, 1, 1)
SHAPES = [
    Shape("generate", 2, 4, 2, 3), Shape("generate", 3, 1, 3, mtp_drafts=2, changes=64, masked=True, probes=PROBES),
    Shape("generate", 3, 1, 3, probes=ProbeShape(vectors=4)), Shape("verify", 3, 5, 3),
    Shape("verify", 3, 5, 3, changes=64, masked=True), Shape("score", 2, 4, 2, 0), Shape("score", 2, 4, 2, 1, chosen=0),
    Shape("score", 2, 4, 2, 0, chosen=3, probes=ProbeShape(2, 3, 1, 1)),
    Shape("score", 2, 4, 2, 0, probes=ProbeShape(2, 3, 0, 0)), Shape("hidden", 2, 4, 2),
]  # fmt: skip


def inputs_of(lm: hybridlm.LM, shape: Shape) -> StepInputs:
    return lm.engine.example_arguments(paged(lm.engine, shape))[2]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_key_follows_from_the_present_parts(text_lm: hybridlm.LM, shape: Shape) -> None:
    shape = paged(text_lm.engine, shape)
    parts = shape.rows, shape.pages, shape.top, shape.processor, shape.mtp_drafts
    assert Shape.of(inputs_of(text_lm, shape), *parts) == shape


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_absent_parts_have_no_arrays_in_a_contract(text_lm: hybridlm.LM, shape: Shape) -> None:
    inputs, pages = inputs_of(text_lm, shape), page_table(text_lm.engine.pages(shape.rows))
    contract = step_contract(False, text_lm.engine.programs.structure.arrays, slot_map(shape.rows), pages)
    arrays = [path for path, *_ in spread(contract.inputs[2], inputs)]
    assert len(arrays) == len(jax.tree.leaves(inputs))
    assert {path.split(".")[1].split("[")[0] for path in arrays} == {
        name for name, part in inputs._asdict().items() if part is not None
    }


def test_every_array_has_a_separate_digest(text_lm: hybridlm.LM) -> None:
    """Changes of logits have tokens, too, and vectors have indices, as sampling has."""
    inputs: Any = inputs_of(text_lm, SHAPES[1])
    original = digests(inputs)
    assert len(original) == len(jax.tree.leaves(inputs)) <= DIGEST_WORDS - 2
    leaves, tree = jax.tree.flatten(inputs)
    for number, name in enumerate(original):
        changed = [leaf + np.ones_like(leaf) if i == number else leaf for i, leaf in enumerate(leaves)]
        changed_digests = digests(tree.unflatten(changed))
        assert [field for field in original if changed_digests[field] != original[field]] == [name]
