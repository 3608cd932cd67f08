"""Comparison of hybridlm with stored results (tests/golden, scripts/make_golden.py).

They are those of transformers, or of a float64 forward where transformers has no class.
"""

import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES, Greedy, check_greedy, check_logits, check_logprobs, log_softmax, padded
from float64_delta import FAMILIES as DELTA_FAMILIES
from float64_delta import Float64DeltaModel
from float64_gated import FAMILIES as DRAWN_FAMILIES
from float64_mamba import FAMILIES as MAMBA_FAMILIES
from float64_mamba import Float64MambaModel, Float64Zamba2Model
from float64_reference import FAMILIES, Float64Model
from float64_windowed import FAMILIES as WINDOWED_FAMILIES
from float64_windowed import Float64WindowedModel
from with_head import head_logits, load_with_head

import hybridlm
from models import family_of

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"
FAMILY = {
    path.name: family_of(json.loads((path / "config.json").read_text())).name for path in sorted(GOLDEN.iterdir())
}
NAMES = list(FAMILY)
OTHER_REFERENCES: dict[str, Any] = (
    {family: Float64MambaModel for family in MAMBA_FAMILIES}
    | {family: Float64DeltaModel for family in DELTA_FAMILIES}
    | {family: Float64WindowedModel for family in WINDOWED_FAMILIES}
    | {"zamba2": Float64Zamba2Model}
)
SPELLINGS = {"next_dense_layers", "dense_multimodal", "sparse_base"}
"""Models that differ from another golden in the spelling of config.json, in their container or in one layer."""
WITH_HEAD = ["dense_multimodal", "next_old_fields", "sparse_multimodal"]
QWEN = [name for name in NAMES if FAMILY[name] in FAMILIES]


@dataclasses.dataclass(frozen=True)
class Golden:
    """A checkpoint in `directory`, and the stored results for each of `prompts`."""

    directory: pathlib.Path
    prompts: list[list[int]]
    logits: list[np.ndarray]
    logprobs: list[np.ndarray]
    greedy: list[Greedy]
    mtp_logits: list[np.ndarray]  # none of a prompt of one token, and none where there is no head

    @classmethod
    def read(cls, directory: pathlib.Path) -> "Golden":
        with np.load(directory / "expected.npz") as file:
            expected = dict(file)
        ends = np.cumsum(expected["lengths"])[:-1]
        pairs = np.cumsum(expected["lengths"] - 1)[:-1]
        return cls(
            directory,
            [prompt.tolist() for prompt in np.split(expected["prompts"], ends)],
            np.split(expected["logits"], ends),
            np.split(expected["logprobs"], ends),
            [Greedy(*pair) for pair in zip(expected["greedy"], expected["greedy_margins"], strict=True)],
            np.split(expected["mtp_logits"], pairs) if "mtp_logits" in expected else [],
        )

    @property
    def tolerance(self) -> float:
        return TOLERANCES[FAMILY[self.directory.name]]

    def where(self, index: int) -> str:
        return f"{self.directory.name}, prompt of {len(self.prompts[index])} tokens"


def long_except(*short: str, among: Sequence[str] = NAMES) -> pytest.MarkDecorator:
    """Return all goldens; unnamed ones run by default, as compiling costs most."""
    params = [pytest.param(name, marks=[] if name in short else [pytest.mark.long]) for name in among]
    return pytest.mark.parametrize("golden", params, indirect=True, scope="module")


@pytest.fixture(scope="module", params=NAMES)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden.read(GOLDEN / request.param)


@pytest.fixture(scope="module")
def lm(golden: Golden) -> hybridlm.LM:
    """Three lanes for eight prompts reuse lanes; chunks are shorter than half the prompts."""
    return hybridlm.load(str(golden.directory), lanes=3, dtype="float32", chunk=16)


def test_provenance(golden: Golden):
    """The files record their origin, and no near tie could hide an error."""
    provenance = json.loads((golden.directory / "provenance.json").read_text())
    libraries = set() if FAMILY[golden.directory.name] in DRAWN_FAMILIES else {"torch", "transformers"}
    assert {"command", "seed", "class"} | libraries <= set(provenance)
    assert provenance["smallest_prompt_margin"] > 2 * golden.tolerance
    assert min(greedy.margins.min() for greedy in golden.greedy) > 2 * golden.tolerance


@pytest.mark.parametrize("golden", QWEN, indirect=True, scope="module")
def test_float64(golden: Golden):
    """Two independent implementations, transformers in float32 and NumPy in float64, agree on the files."""
    model = Float64Model(golden.directory)
    for index, (prompt, expected) in enumerate(zip(golden.prompts, golden.logits, strict=True)):
        array = model.forward(prompt).logits.astype(np.float32)
        assert not check_logits(array, expected, golden.where(index), golden.tolerance)


@pytest.mark.parametrize(
    "golden", [name for name in NAMES if FAMILY[name] in OTHER_REFERENCES], indirect=True, scope="module"
)
def test_float64_of_other_families(golden: Golden):
    """The same for families that only the transformers module specifies."""
    model = OTHER_REFERENCES[FAMILY[golden.directory.name]](golden.directory)
    for index, (prompt, expected) in enumerate(zip(golden.prompts, golden.logits, strict=True)):
        array = model.forward(prompt).astype(np.float32)
        assert not check_logits(array, expected, golden.where(index), golden.tolerance)


@long_except(*(name for name in NAMES if name not in SPELLINGS))
def test_logits(golden: Golden, lm: hybridlm.LM):
    batch = np.asarray(lm.forward(padded(golden.prompts)).logits)
    for index, (row, expected) in enumerate(zip(batch, golden.logits, strict=True)):
        assert not check_logits(row[: len(expected)], expected, golden.where(index), golden.tolerance)


@pytest.mark.slow
@long_except(*(name for name in QWEN if name not in SPELLINGS), among=QWEN)
def test_states(golden: Golden, lm: hybridlm.LM):
    """States of delta nets after the longest prompt, without padding."""
    states = lm.forward(padded(golden.prompts), return_states=True).states
    assert states is not None and states.position == len(golden.prompts[-1])
    expected = Float64Model(golden.directory).forward(golden.prompts[-1]).delta_nets
    assert expected
    for layer, delta_net in expected.items():
        actual = states.layers[layer][0]
        np.testing.assert_allclose(actual.recurrent[-1], delta_net.recurrent, rtol=0, atol=1e-4)
        np.testing.assert_allclose(actual.conv[-1], delta_net.conv, rtol=0, atol=1e-4)


@pytest.mark.slow
@long_except("sparse_multimodal", among=WITH_HEAD)
def test_logits_of_the_multi_token_prediction_head(golden: Golden):
    """Dense and expert heads; the float64 reference for drafts agrees."""
    actual, reference = head_logits(load_with_head(golden.directory), golden.prompts), Float64Model(golden.directory)
    for index, (prompt, expected) in enumerate(zip(golden.prompts, golden.mtp_logits, strict=True)):
        if len(prompt) > 1:
            where = f"{golden.where(index)}, head"
            assert not check_logits(actual[index], expected, where, golden.tolerance)
            check_logits(reference.mtp_logits(prompt).astype(np.float32), expected, where, golden.tolerance)


@long_except("dense_interval")
def test_scores(golden: Golden, lm: hybridlm.LM):
    """Eight prompts queued over three lanes, against the log-probabilities of each alone."""
    for index, score in enumerate(lm.score(golden.prompts)):
        check_logprobs(score.logprobs, golden.logprobs[index], golden.where(index), golden.tolerance)
        best = golden.logits[index][:-1].argmax(axis=-1)
        assert score.greedy[1:].tolist() == (best == np.asarray(golden.prompts[index][1:])).tolist()


@pytest.mark.slow
@long_except("dense_interval")
def test_prompt_logprobs(golden: Golden, lm: hybridlm.LM):
    """Log-probabilities of prompts with completions equal transformers' numbers."""
    for index, completion in enumerate(lm.generate(golden.prompts, max_tokens=1, prompt_logprobs=2)):
        prompt, logprobs = golden.prompts[index], log_softmax(golden.logits[index])
        assert completion.prompt_logprobs is not None
        first, *entries = completion.prompt_logprobs
        assert first is None and len(entries) == len(prompt) - 1
        pairs = zip(entries, prompt[1:], strict=True)
        array = np.array([np.nan, *(entry[token] for entry, token in pairs if entry is not None)], np.float32)
        check_logprobs(array, golden.logprobs[index], golden.where(index), golden.tolerance)
        for entry, row, token in zip(entries, logprobs, prompt[1:], strict=False):
            assert entry is not None
            best = np.argsort(-row)[:2].tolist()
            assert list(entry)[:2] == best and set(entry) == {*best, token}, golden.where(index)


@pytest.mark.slow
@long_except("next_old_fields")
def test_generates(golden: Golden, lm: hybridlm.LM):
    """Eight prompts queued over three lanes, against the greedy continuation of each alone: every token."""
    for index, completion in enumerate(lm.generate(golden.prompts, max_tokens=32, ignore_eos=True)):
        assert not check_greedy(completion.token_ids, golden.greedy[index], golden.where(index), golden.tolerance)
