"""Numbers behind pictures: additive parts of states, known ranks, a lens ending in the model."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from random_checkpoint import FAMILIES, write_random_checkpoint

import hybridlm
from hybridlm.pictures import StateHistory, draw_held, draw_lens, draw_states, logit_lens, state_history

TOKENS = [int(integer) for integer in np.random.default_rng(0).integers(3, 90, 23)]


@pytest.fixture(scope="module")
def history(text_lm: hybridlm.LM) -> StateHistory:
    return state_history(text_lm, TOKENS, group=4)


@pytest.mark.slow
def test_the_history_ends_with_the_state_of_a_forward_pass(text_lm: hybridlm.LM, history: StateHistory) -> None:
    states = text_lm.forward(TOKENS, return_states=True).states
    assert states is not None and history.layers.tolist() == [0] and history.ends.tolist() == [4, 8, 12, 16, 20, 23]
    matrices = np.asarray(states.layers[0][0].recurrent[0])
    np.testing.assert_allclose(history.norms[0, -1], np.sqrt((matrices**2).sum((1, 2))), rtol=1e-4)
    values = np.linalg.svd(matrices.astype(np.float64), compute_uv=False)
    shares = values / values.sum(-1, keepdims=True)
    np.testing.assert_allclose(history.ranks[0, -1], np.exp(-(shares * np.log(shares)).sum(-1)), rtol=1e-3)


@pytest.mark.slow
def test_the_part_of_a_group_is_the_difference_without_it(text_lm: hybridlm.LM, history: StateHistory) -> None:
    """The first group's part is the state minus the other groups' state."""
    first = text_lm.forward(TOKENS[:4], return_states=True).states
    states = text_lm.forward(TOKENS, return_states=True).states
    assert first is not None and states is not None
    state, rest = first.layers[0][0], first.layers[1:]
    emptied = ((state._replace(recurrent=0 * state.recurrent), *first.layers[0][1:]), *rest)
    final = text_lm.forward(TOKENS[4:], state=hybridlm.SequenceState(4, emptied), return_states=True).states
    assert final is not None
    lacking = np.asarray(states.layers[0][0].recurrent - final.layers[0][0].recurrent)[0]
    np.testing.assert_allclose(history.written[0, -1, 0], np.sqrt((lacking**2).sum((1, 2))), rtol=1e-3, atol=1e-6)


def test_memory_begins_with_one_group_and_shares_add_up(history: StateHistory) -> None:
    np.testing.assert_allclose(history.memory[:, 0], 4, rtol=1e-5)
    assert (history.memory <= 4 * np.arange(1, 7)[None, :, None] + 1e-3).all() and (history.memory[:, -1] > 4).all()
    np.testing.assert_allclose(history.held.sum(1), 1, rtol=1e-5)
    assert not np.triu(history.written[0, :, :, 0], 1).any(), "nothing is written before it is read"


def test_the_last_row_of_the_lens_is_the_model(text_lm: hybridlm.LM) -> None:
    lens = logit_lens(text_lm, TOKENS, top=3)
    out = text_lm.forward(TOKENS)
    assert lens.top.shape == (text_lm.config.num_layers + 1, len(TOKENS), 3)
    assert lens.top[-1, :, 0].tolist() == np.asarray(out.logits).argmax(-1).tolist()
    np.testing.assert_allclose(lens.next_logprobs[-1], out.logprobs, atol=1e-4)
    assert not np.array_equal(lens.top[0], lens.top[-1])


def test_arguments_are_checked(text_lm: hybridlm.LM) -> None:
    for wrong in (0, 98, True):
        with pytest.raises(ValueError, match="top: expected"):
            logit_lens(text_lm, TOKENS, top=wrong)
    with pytest.raises(ValueError, match="group: expected"):
        state_history(text_lm, TOKENS, group=0)
    with pytest.raises(ValueError, match="tokens"):
        state_history(text_lm, [97])


BEGIN_WITH_A_RECURRENCE = {"zamba2_base": [0]}
"""Layers in the history where others have a state: Mamba2 after a shared block reads its output, too."""


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(tmp_path: Path, name: str) -> None:
    """Final norms, added group parts and the lens agree with the model."""
    directory = write_random_checkpoint(name, tmp_path, **FAMILIES[name])
    lm = hybridlm.load(directory, lanes=1, context=64, chunk=16, dtype="float32", compilation_cache=False)
    tokens = [token % 64 for token in TOKENS]
    out, lens = lm.forward(np.array(tokens), return_states=True), logit_lens(lm, tokens)
    assert lens.top[-1, :, 0].tolist() == np.asarray(out.logits).argmax(-1).tolist()
    assert out.states is not None
    leaves = jax.tree_util.tree_leaves_with_path(out.states.layers)
    matrices = {
        path[0].idx: np.asarray(x)[0]
        for path, x in leaves
        if getattr(path[-1], "name", "") == "recurrent" and path[1].idx == 0
    }
    if not matrices or lm.config.mixes_sources:
        with pytest.raises(ValueError, match="of a recurrence; this model has none"):
            state_history(lm, tokens)
        return
    history = state_history(lm, tokens, group=8)
    assert history.layers.tolist() == BEGIN_WITH_A_RECURRENCE.get(name, sorted(matrices))
    expected = np.stack([np.linalg.norm(matrices[layer], axis=(1, 2)) for layer in history.layers])
    np.testing.assert_allclose(history.norms[:, -1], expected, rtol=1e-3)
    assert (history.written.sum(2) >= history.norms * (1 - 1e-3)).all()


@pytest.mark.notebooks
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures_are_files(text_lm: hybridlm.LM, history: StateHistory, tmp_path, ending: str) -> None:
    lens = logit_lens(text_lm, "a $b$ c")
    cases: list[tuple[Any, Any]] = [(draw_states, history), (draw_held, history), (draw_lens, lens)]
    for draw, settings in cases:
        path = tmp_path / f"{draw.__name__}.{ending}"
        assert draw(settings, path)._repr_png_().startswith(b"\x89PNG")
        begins = path.read_bytes()[:200]
        assert begins.startswith(b"\x89PNG") if ending == "png" else b"<?xml" in begins
