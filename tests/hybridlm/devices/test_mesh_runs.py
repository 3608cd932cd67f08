"""Models over a mesh of virtual devices give the numbers of one device."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from comparison import TOLERANCES
from exchanged import Devices, by_hand, counted, in_bytes
from near_ties import check_same_samples
from paged_shapes import compiled_steps
from random_checkpoint import FAMILIES, MESHES, write_random_checkpoint
from random_traffic import Known, finished
from safetensors.numpy import load_file, save_file

import hybridlm

PROMPTS = [
    [5, 6, 7], [9, 8, 7, 6, 5, 4, 3, 12], [3] * 11, [10, 11], [20] * 17, [6], [8, 9] * 9, [5, 6, 7, 8], [4], [11],
]  # fmt: skip
SHOTS = [5, 9, 33] * 50
SETTINGS: dict[str, Any] = {"context": 200, "dtype": "float32", "chunk": 5, "compilation_cache": False}


def check_same_tokens(
    single: hybridlm.LM, completions: list[hybridlm.Completion], expected: list[hybridlm.Completion]
) -> None:
    """Asserts the same tokens; prompts of `found` may begin after a prefix."""
    full = [replace(a, prompt_token_ids=b.prompt_token_ids) for a, b in zip(completions, expected, strict=True)]
    check_same_samples(single, full, expected, {}, tolerance_of(single))


def check_generation(meshed: hybridlm.LM, single: hybridlm.LM, prompts: list[list[int]]) -> None:
    """Assert that both sample the same tokens, of the same log-probabilities."""
    settings = {"max_tokens": 8, "ignore_eos": True, "logprobs": 0}
    completions, expected = meshed.generate(prompts, **settings), single.generate(prompts, **settings)
    check_same_samples(single, completions, expected, settings, tolerance_of(single))
    for a, b in zip(completions, expected, strict=True):
        if a.token_ids == b.token_ids:
            assert a.logprobs is not None and b.logprobs is not None
            np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=tolerance_of(single))


def check_scores(meshed: hybridlm.LM, single: hybridlm.LM, texts: list[list[int]]) -> None:
    """Assert equal log-probabilities of texts, likely and chosen tokens, and equal embeddings."""
    for a, b in zip(meshed.score(texts, top_logprobs=3), single.score(texts, top_logprobs=3), strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=tolerance_of(single))
        for top, other in zip(a.top_logprobs or [], b.top_logprobs or [], strict=True):
            likely = ([*(each or {}).values()] for each in (top, other))
            np.testing.assert_allclose(*likely, rtol=0, atol=tolerance_of(single))
    query: dict[str, Any] = {"token_ids": [3, 40, 7], "top": 3, "entropy": True, "temperature": 0.8}
    for a, b in zip(meshed.score(texts[:1], **query), single.score(texts[:1], **query), strict=True):
        assert a.chosen and b.chosen and a.top and b.top and a.entropy is not None and b.entropy is not None
        for values, expected in ((a.chosen, b.chosen), (a.top, b.top)):
            np.testing.assert_allclose(values.logprobs, expected.logprobs, rtol=0, atol=tolerance_of(single))
            assert (np.abs(values.ranks - expected.ranks) <= 1).all()
        np.testing.assert_allclose(a.entropy, b.entropy, rtol=0, atol=tolerance_of(single))
    vectors = [lm.embed(texts[:3], pooling="mean") for lm in (meshed, single)]
    np.testing.assert_allclose(*vectors, rtol=0, atol=tolerance_of(single))


def check_drafts_and_cache(
    single: hybridlm.LM,
    directory: Path,
    mesh: jax.sharding.Mesh,
    prompts: list[list[int]],
    expected: list[hybridlm.Completion],
    speculate: Any = None,
) -> None:
    """Assert twice that a drafting, caching model over the mesh samples the expected tokens.

    Args:
        single: the model on one device.
        directory: the checkpoint.
        mesh: the devices.
        prompts, expected: completions of `single`.
        speculate: as for `hybridlm.load`; None for a drafter that proposes the expected tokens, all of them accepted.
    """
    drafter = Known(expected, (8,))
    drafting = hybridlm.load(
        directory, lanes=8, mesh=mesh, speculate=speculate or drafter, draft_tokens=3, prefix_cache="4MB", **SETTINGS
    )
    for _ in range(2):
        check_same_tokens(single, drafting.generate(prompts, max_tokens=8, ignore_eos=True), expected)
    assert drafting.stats["drafted_tokens"] and drafting.stats["prefix_hits"] >= len(prompts)
    assert drafting.stats["accepted_tokens"] or speculate is not None


def tolerance_of(lm: hybridlm.LM) -> float:
    return TOLERANCES[lm.config.family.removesuffix("_text")]


@pytest.mark.long
def test_two_models_are_compared_as_on_one_device(tmp_path: Path) -> None:
    """Each device sums over its shard of the vocabulary; texts share a beginning."""
    fields: dict[str, Any] = {"num_hidden_layers": 2, "full_attention_interval": 2}
    folders = [write_random_checkpoint("dense_base", tmp_path / name, **fields) for name in ("one", "other")]
    tensors, rng = load_file(folders[1] / "model.safetensors"), np.random.default_rng(0)
    noisy = {name: (x * rng.normal(1, 0.2, x.shape)).astype(np.float32) for name, x in tensors.items()}
    save_file(noisy, folders[1] / "model.safetensors")
    texts = [*PROMPTS[:4], SHOTS[:12] + [7, 8], SHOTS[:12] + [9]]
    single, other = (hybridlm.load(folder, lanes=4, certify="off", **SETTINGS) for folder in folders)
    expected = single.divergence(other, texts)
    over = [hybridlm.load(folder, lanes=4, mesh=hybridlm.mesh(data=2, model=2), **SETTINGS) for folder in folders]
    divergence = over[0].divergence(over[1], texts)
    assert divergence.certificate is not None and divergence.certificate.holds
    assert over[1].stats["prefix_tokens_saved"] == other.stats["prefix_tokens_saved"] == 10
    for name in ("kl", "reverse_kl", "js"):
        np.testing.assert_allclose(getattr(divergence, name), getattr(expected, name), rtol=1e-3, atol=1e-5)
    assert divergence.same_top.tolist() == expected.same_top.tolist() and 0 < divergence.same_top.mean() < 1
    with pytest.raises(ValueError, match="other: .*meshes differ"):
        over[0].divergence(other, texts)


@pytest.mark.slow
def test_generation_matches_one_device(tmp_path: Path) -> None:
    """One prompt more than lanes; lanes and heads are split, steps proved and audited.

    The devices exchange the bytes of docs/devices.md.
    """
    directory = write_random_checkpoint("dense_base", tmp_path, num_hidden_layers=2, full_attention_interval=2)
    single = hybridlm.load(directory, lanes=2, certify="off", **SETTINGS)
    over = hybridlm.load(directory, lanes=2, mesh=hybridlm.mesh(data=2, model=2), **SETTINGS)
    check_generation(over, single, PROMPTS[:3])
    assert all(certificate.holds for certificate in over.certificates.values())
    steps = compiled_steps(over)
    assert steps
    for shape in steps:
        expected = by_hand(single.config, Devices(data=2, model=2), shape.lanes, shape.tokens)
        assert counted(over.engine.program(shape).compiled.as_text()) == in_bytes(expected)


@pytest.mark.long
@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_on_every_mesh(tmp_path: Path, name: str, axes: tuple[int, int, int]) -> None:
    """Rows move between pools of several sizes: prompts wait, and few sequences remain.

    Then with drafts that are verified, and prompts that continue cached states.
    """
    directory = write_random_checkpoint(name, tmp_path, **FAMILIES[name])
    single = hybridlm.load(directory, lanes=8, certify="off", **SETTINGS)
    mesh = hybridlm.mesh(*axes)
    over = hybridlm.load(directory, lanes=8, mesh=mesh, **SETTINGS)
    check_generation(over, single, PROMPTS)
    check_scores(over, single, PROMPTS)
    prompts = [[*SHOTS, *prompt] for prompt in PROMPTS]
    expected = single.generate(prompts, max_tokens=8, ignore_eos=True)
    check_drafts_and_cache(single, directory, mesh, prompts, expected)


@pytest.mark.long
@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2), (1, 4, 1)], ids=str)
def test_prefixes_drafts_and_caches(tmp_path: Path, axes: tuple[int, int, int]) -> None:
    """States that are kept and put back into rows, and drafts that are verified."""
    directory = write_random_checkpoint("sparse_base", tmp_path / "model", head=True)
    mesh = hybridlm.mesh(*axes)
    prompts = [[*SHOTS, *prompt] for prompt in PROMPTS]
    single = hybridlm.load(directory, lanes=8, certify="off", **SETTINGS)
    over = hybridlm.load(directory, lanes=8, mesh=mesh, **SETTINGS)
    expected = single.generate(prompts, max_tokens=8, ignore_eos=True)
    prefix = over.prefix(SHOTS)
    check_same_tokens(single, over.generate(PROMPTS, max_tokens=8, ignore_eos=True, prefix=prefix), expected)
    prefix.save(tmp_path / "prefix")
    loaded = over.load_prefix(tmp_path / "prefix")
    check_same_tokens(single, over.generate(PROMPTS, max_tokens=8, ignore_eos=True, prefix=loaded), expected)
    for a, b in zip(over.score(prompts), single.score(prompts), strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=tolerance_of(single))
    assert over.stats["prefix_tokens_saved"]
    if axes[1] > 1:
        with pytest.raises(hybridlm.SnapshotError, match="layout"):
            single.load_prefix(tmp_path / "prefix")
    for speculate in (None, "mtp"):
        check_drafts_and_cache(single, directory, mesh, prompts, expected, speculate)


@pytest.mark.long
@pytest.mark.parametrize("axes", [(8, 1, 1), (2, 2, 2)], ids=str)
def test_steps_have_fewer_lanes_for_fewer_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, axes: tuple[int, int, int]
) -> None:
    monkeypatch.setattr("hybridlm.engine.scheduler.SHRINK_PLACES", 4)
    directory = write_random_checkpoint("sparse_base", tmp_path)
    single = hybridlm.load(directory, lanes=16, certify="off", **SETTINGS)
    over = hybridlm.load(directory, lanes=16, mesh=hybridlm.mesh(*axes), **SETTINGS)
    lengths = [3] * 9 + [40]

    def run(lm: hybridlm.LM) -> list[hybridlm.Completion]:
        with lm.session() as session:
            for prompt, length in zip(PROMPTS, lengths, strict=True):
                session.submit(prompt, max_tokens=length, ignore_eos=True)
            completions = finished(session)
        return [completions[i] for i in range(10)]

    check_same_tokens(single, run(over), run(single))
    lanes = {shape.lanes for shape in compiled_steps(over) if shape.tokens == 1}
    assert {16, axes[0]} <= lanes


@pytest.mark.long
@pytest.mark.parametrize("axes", [(2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 2)], ids=str)
def test_forward_and_its_gradients(tmp_path: Path, axes: tuple[int, int, int]) -> None:
    """Gradients agree where each device looks up its tokens and multiplies its experts' rows."""
    directory = write_random_checkpoint("sparse_base", tmp_path)
    single, over = (hybridlm.load(directory, mesh=mesh, **SETTINGS) for mesh in (None, hybridlm.mesh(*axes)))
    tokens = np.random.default_rng(0).integers(64, size=(2, 15))

    def loss(params: Any, lm: hybridlm.LM) -> Any:
        return jax.nn.log_softmax(lm.forward(tokens, params=params).logits)[:, :, 5].mean()

    for batch in (tokens, tokens[0]):
        meshed, expected = (lm.forward(batch, return_states=True) for lm in (over, single))
        np.testing.assert_allclose(meshed.logits, expected.logits, rtol=0, atol=2e-3)
        for a, b in zip(meshed.hidden_states, expected.hidden_states, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=2e-3)
        assert meshed.states is not None
        continued = over.forward(batch, state=meshed.states).logits
        np.testing.assert_allclose(continued, single.forward(batch, state=expected.states).logits, rtol=0, atol=2e-3)
    meshed, expected = (jax.grad(loss)(lm.params, lm) for lm in (over, single))
    for name in (name for name in expected if "qkv" not in name and "conv" not in name and "gate_up" not in name):
        scale = float(jnp.abs(expected[name]).max())
        np.testing.assert_allclose(meshed[name], expected[name], rtol=0, atol=1e-3 * scale, err_msg=name)
