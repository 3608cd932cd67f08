"""New weights in a loaded model: replaced, refused, and unchanged parts."""

import gc
import json
import re
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_checkpoint import FAMILIES, write_random_checkpoint
from random_traffic import finished
from safetensors.numpy import load_file, save_file
from text_checkpoint import SETTINGS, load_with_steps

import hybridlm
from hybridlm.checkpoint import CheckpointError

PROMPT = list(range(3, 40))
PARAMETER, TENSOR = "layers.0.branches.1.inner.down_proj", "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def other(text_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model after some training."""
    directory, rng = tmp_path_factory.mktemp("other"), np.random.default_rng(0)
    tensors = load_file(text_path / "model.safetensors")
    moved = {name: x + 0.1 * x.std() * rng.normal(size=x.shape).astype(x.dtype) for name, x in tensors.items()}
    save_file(moved, directory / "model.safetensors")
    (directory / "config.json").write_text((text_path / "config.json").read_text())
    return directory


@pytest.fixture(scope="module")
def trained(text_lm: hybridlm.LM, other: Path) -> hybridlm.LM:
    return load_with_steps(text_lm, other)


@pytest.fixture
def lm(text_lm: hybridlm.LM, text_path: Path) -> hybridlm.LM:
    return load_with_steps(text_lm, text_path, prefix_cache="600kB")


def same(first: hybridlm.LM, second: hybridlm.LM) -> bool:
    contents = {name: np.asarray(array) for name, array in first.params.items()}
    flat: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(first.model)))
    module = [np.asarray(item[...]) for _, item in flat]
    return all(np.array_equal(contents[name], second.params[name]) for name in second.params) and all(
        any(a is b or np.array_equal(a, b) for b in contents.values()) for a in module
    )


def logprobs(lm: hybridlm.LM) -> list[float]:
    return list(lm.score([PROMPT])[0].logprobs)[1:]


class Exported:
    """A tensor of another library: DLPack is its only interface."""

    def __init__(self, array: Any, error: Exception | None = None):
        self.array, self.error = array, error

    def __dlpack__(self, **options: Any) -> Any:
        if self.error is not None:
            raise self.error
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class WithoutMemory(Exported):
    """A tensor like PyTorch's DTensor: DLPack exports uninitialised numbers."""

    def detach(self) -> "WithoutMemory":
        return self

    def data_ptr(self) -> int:
        raise RuntimeError("invalid storage")


GIVEN = {
    "DLPack": lambda trained, other: {name: Exported(x) for name, x in trained.params.items()},
    "DLPack tensors": lambda trained, other: {
        name: Exported(x) for name, x in load_file(other / "model.safetensors").items()
    },
    "state": lambda trained, other: nnx.state(trained.model),
    "parameters": lambda trained, other: dict(trained.params),
    "host parameters": lambda trained, other: {name: np.asarray(x) for name, x in trained.params.items()},
    "tensors": lambda trained, other: load_file(other / "model.safetensors"),
    "directory": lambda trained, other: other,
}


@pytest.mark.parametrize("form", GIVEN)
def test_every_form_is_the_other_model(lm: hybridlm.LM, trained: hybridlm.LM, other: Path, form: str) -> None:
    old = logprobs(lm)
    compiled, certificates, initial = lm.stats["compiled"], lm.certificates, lm.fingerprint
    lm.update(GIVEN[form](trained, other))
    assert same(lm, trained)
    assert logprobs(lm) == logprobs(trained) != old
    assert lm.stats["compiled"] == compiled and lm.certificates == certificates
    assert lm.fingerprint != initial == lm._weights.source_fingerprint
    assert (lm.fingerprint == trained.fingerprint) == (form == "directory")


@pytest.mark.long
@pytest.mark.parametrize("axes", [None, (2, 2, 2)], ids=["one-device", "mesh"])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_becomes_the_other_model(tmp_path: Path, name: str, axes: tuple[int, int, int] | None) -> None:
    """Updates from parameters and checkpoints, on one device and a mesh, without compilation."""
    first, second = (
        write_random_checkpoint(name, tmp_path / str(seed), seed=seed, **FAMILIES[name]) for seed in (0, 1)
    )
    mesh = None if axes is None else hybridlm.mesh(*axes)
    settings: dict[str, Any] = {"lanes": 2, "context": 64, "dtype": "float32", "chunk": 8, "mesh": mesh}
    lm, trained = (hybridlm.load(item, compilation_cache=False, **settings) for item in (first, second))
    old, new = logprobs(lm), logprobs(trained)
    compiled = lm.stats["compiled"]
    for options, expected in ((dict(trained.params), new), (first, old), (second, new)):
        lm.update(options)
        assert logprobs(lm) == expected != (old if expected is new else new)
    assert lm.stats["compiled"] == compiled


def test_the_fingerprint_depends_on_every_bit(lm: hybridlm.LM, trained: hybridlm.LM) -> None:
    calls = [lm.fingerprint]
    for params in (trained.params, lm.params, trained.params):
        lm.update(dict(params))
        calls.append(lm.fingerprint)
    assert calls[1] == calls[3] and len(set(calls)) == 3
    moved = np.array(trained.params[PARAMETER])
    moved[-1, -1] = np.nextafter(moved[-1, -1], np.float32(9))
    lm.update({PARAMETER: moved}, partial=True)
    assert lm.fingerprint not in calls and lm.text_model.origin()["model"] == lm.fingerprint


def test_nothing_of_the_weights_as_they_were_is_used(lm: hybridlm.LM, trained: hybridlm.LM) -> None:
    prefix = lm.prefix(PROMPT[:20])
    lm.generate([PROMPT], max_tokens=4)
    lm.update(trained.params)
    completion = lm.generate([PROMPT], max_tokens=4, logprobs=0)[0]
    expected = trained.generate([PROMPT], max_tokens=4, logprobs=0)[0]
    assert (completion.token_ids, completion.logprobs) == (expected.token_ids, expected.logprobs)
    assert lm.stats["prefix_hits"] == 0
    with pytest.raises(ValueError, match="another model"):
        lm.generate([PROMPT], prefix=prefix)
    (after,) = lm.generate([PROMPT[20:]], prefix=lm.prefix(PROMPT[:20]), max_tokens=4)
    assert after.token_ids == expected.token_ids


def test_no_second_copy_is_kept(lm: hybridlm.LM, trained: hybridlm.LM) -> None:
    """Suitably placed arrays are taken without a copy; old arrays are freed."""
    old = [weakref.ref(array) for array in lm.params.values()]
    lm.update(trained.params)
    gc.collect()
    assert not [item for item in old if item() is not None]
    assert all(lm.params[name] is array for name, array in trained.params.items())


def test_layers_are_replaced_one_after_the_other(lm: hybridlm.LM, other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a layer is read, old arrays of it and earlier layers are free."""
    from hybridlm import update

    alive = {name: weakref.ref(array) for name, array in lm.params.items()}
    reads: list[list[str]] = []
    read = update._read

    def watched(*args: Any) -> dict[str, jax.Array]:
        reads.append([name for name in alive if alive[name]() is None])
        return read(*args)

    monkeypatch.setattr(update, "_read", watched)
    lm.update(other)
    assert len(reads) >= 4 and [len(read) for read in reads] == sorted({len(read) for read in reads}) and reads[0]


def test_wider_numbers_are_converted(text_path: Path, trained: hybridlm.LM) -> None:
    """A trainer's float32 weights, in a model that holds bfloat16."""
    settings: dict[str, Any] = SETTINGS | {"dtype": "bfloat16"}
    lm = hybridlm.load(text_path, **settings)
    kinds = {name: array.dtype for name, array in lm.params.items()}
    lm.update(trained.params)
    assert {name: array.dtype for name, array in lm.params.items()} == kinds
    assert np.array_equal(lm.params[PARAMETER], trained.params[PARAMETER].astype(jnp.bfloat16))
    fingerprint, huge = lm.fingerprint, trained.params[PARAMETER].at[0, 0].set(3.4e38)
    with pytest.raises(CheckpointError) as caught:
        lm.update({PARAMETER: huge}, partial=True)
    assert PARAMETER in caught.value.faults[0] and lm.fingerprint == fingerprint


def test_bfloat16_tensors_and_their_memory(text_path: Path, trained: hybridlm.LM) -> None:
    """NumPy's DLPack lacks bfloat16; foreign memory is copied, as its owner may write."""
    settings: dict[str, Any] = SETTINGS | {"dtype": "bfloat16"}
    lm = hybridlm.load(text_path, **settings)
    half = trained.params[PARAMETER].astype(jnp.bfloat16)
    lm.update({PARAMETER: Exported(half)}, partial=True)
    assert np.array_equal(lm.params[PARAMETER], half)
    memory = np.array(trained.params[PARAMETER])
    lm.update({PARAMETER: Exported(memory)}, partial=True)
    memory[:] = 0
    assert np.array_equal(lm.params[PARAMETER], half)


def test_tensors_that_cannot_be_exported_are_named_at_once(lm: hybridlm.LM) -> None:
    fingerprint, array = lm.fingerprint, lm.params[PARAMETER]
    tensors = {PARAMETER: Exported(array, BufferError("cuda")), "norm.weight": WithoutMemory(array)}
    with pytest.raises(CheckpointError) as caught:
        lm.update(tensors, partial=True)
    assert len(caught.value.faults) == 2 and lm.fingerprint == fingerprint
    assert all(name in fault for name, fault in zip(tensors, sorted(caught.value.faults), strict=True))


def test_everything_that_does_not_fit_is_named_at_once(lm: hybridlm.LM, trained: hybridlm.LM, other: Path) -> None:
    names = list(trained.params)
    wrong: dict[str, Any] = dict(trained.params)
    wrong["layers.9.nothing"] = wrong[names[0]]
    wrong[names[1]] = np.zeros((3, 2), np.float32)
    wrong[names[2]] = np.zeros(trained.params[names[2]].shape, np.int32)
    del wrong[names[3]]
    fingerprint, contents = lm.fingerprint, dict(lm.params)
    with pytest.raises(CheckpointError) as caught:
        lm.update(wrong)
    faults = "\n".join(caught.value.faults)
    assert len(caught.value.faults) == 4
    assert all(name in faults for name in ("layers.9.nothing", *names[1:4]))
    tensors = load_file(other / "model.safetensors")
    del tensors[TENSOR]
    with pytest.raises(CheckpointError, match=TENSOR):
        lm.update(tensors | {"model.layers.9.x": np.zeros(2, np.float32)})
    for settings in ({PARAMETER: 1.0}, {PARAMETER: [1.0]}):
        with pytest.raises(CheckpointError, match="expected an array"):
            lm.update(settings, partial=True)
    with pytest.raises(TypeError, match="nnx.State"):
        lm.update(3)  # type: ignore[arg-type]
    assert lm.fingerprint == fingerprint and all(lm.params[name] is contents[name] for name in contents)


def test_some_tensors_of_a_checkpoint(lm: hybridlm.LM, trained: hybridlm.LM, other: Path) -> None:
    settings = dict(lm.params)
    lm.update({TENSOR: load_file(other / "model.safetensors")[TENSOR]}, partial=True)
    assert [name for name in settings if settings[name] is not lm.params[name]] == [PARAMETER]
    assert np.array_equal(lm.params[PARAMETER], trained.params[PARAMETER])


def test_refused_while_requests_run(lm: hybridlm.LM, trained: hybridlm.LM) -> None:
    with lm.session() as session:
        session.submit(PROMPT, max_tokens=3)
        with pytest.raises(RuntimeError, match="1 requests"):
            lm.update(trained.params)
        while session.busy:
            session.step()
        lm.update(trained.params)  # an open session without requests is no hindrance
        session.submit(PROMPT, max_tokens=3, logprobs=0)
        (result,) = finished(session).values()
    assert result.token_ids == trained.generate([PROMPT], max_tokens=3)[0].token_ids


def test_refused_while_prompts_are_scored(lm: hybridlm.LM, trained: hybridlm.LM) -> None:
    """Between the steps of a prompt and of its completion no sequence has a row or waits for one."""
    prompts, places, tokens = [PROMPT, PROMPT, PROMPT[::-1]], 0, 0
    with lm.session() as session:
        for prompt in prompts:
            session.submit(prompt, max_tokens=2, ignore_eos=True, prompt_logprobs=0)
        while session.busy:
            if not tokens and not session._scheduler.unfinished:
                with pytest.raises(RuntimeError, match="3 requests of open sessions are not finished"):
                    lm.update(trained.params)
                places += 1
            tokens += len(session.step())
        assert places == 2, "before the first step, and after the last one that scores"
        session.submit(PROMPT, prompt_logprobs=0)
        session.cancel(3)
        lm.update(trained.params)
        session.submit(PROMPT, prompt_logprobs=0)
    lm.update(trained.params)  # the session is closed


def test_a_failure_on_the_way_is_loud_until_the_next_update(
    lm: hybridlm.LM, trained: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridlm import update

    with monkeypatch.context() as patch:
        patch.setattr(update, "_converted", lambda *args: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lm.update(trained.params)
    for use in (
        lambda: lm.score([PROMPT]),
        lambda: lm.generate([PROMPT], max_tokens=1),
        lambda: lm.forward(PROMPT),
        lambda: lm.update({PARAMETER: trained.params[PARAMETER]}, partial=True),
    ):
        with pytest.raises(RuntimeError, match="no weights"):
            use()
    lm.update(trained.params)
    assert logprobs(lm) == logprobs(trained)


def test_an_updated_model_is_saved_and_takes_no_adapter(
    lm: hybridlm.LM, trained: hybridlm.LM, tmp_path: Path, text_lm: hybridlm.LM
) -> None:
    lm.update(trained.params)
    lm.save(tmp_path / "saved")
    saved = hybridlm.load(tmp_path / "saved", **SETTINGS)
    assert same(saved, trained) and saved.fingerprint == lm.fingerprint
    with pytest.raises(ValueError, match="merge_adapter"):
        lm.merge_adapter(tmp_path)
    text_lm_fingerprint = text_lm.fingerprint
    lm.update(tmp_path / "saved")
    assert lm.fingerprint == saved.fingerprint != text_lm_fingerprint


def test_another_configuration_is_refused(lm: hybridlm.LM, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="configuration"):
        lm.update(write_random_checkpoint("dense_base", tmp_path))


def swapped(file: dict[str, Any]) -> dict[str, Any]:
    vocabulary = file["model"]["vocab"]
    return {"model": file["model"] | {"vocab": vocabulary | {"A": vocabulary["B"], "B": vocabulary["A"]}}}


OTHER_TEXTS: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "end tokens: expected [2], found [2, 5]": ("generation_config.json", lambda file: {"eos_token_id": [2, 5]}),
    "end tokens: expected [2], found [7]": ("config.json", lambda file: {"eos_token_id": 7}),
    "tokenizer: expected those": ("tokenizer.json", swapped),
    "chat templates: expected": ("tokenizer_config.json", lambda file: {"chat_template": "{{ messages }}"}),
    "special tokens: expected": ("tokenizer_config.json", lambda file: {"bos_token": "<begin>"}),
}


@pytest.mark.parametrize("fault", OTHER_TEXTS)
def test_another_tokenizer_template_or_end_token_is_refused(
    lm: hybridlm.LM, text_path: Path, other: Path, tmp_path: Path, fault: str
) -> None:
    """The loaded ones stay in use: texts would be cut, or ended, otherwise than by the new files."""
    for file in (*text_path.iterdir(), *other.iterdir()):
        shutil.copy(file, tmp_path)
    old = logprobs(lm)
    lm.update(tmp_path)
    new = logprobs(lm)
    lm.update(text_path)
    name, fields = OTHER_TEXTS[fault]
    path = tmp_path / name
    file = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(file | fields(file)))
    with pytest.raises(CheckpointError, match=re.escape(fault)):
        lm.update(tmp_path)
    assert logprobs(lm) == old != new
    lm.update(load_file(tmp_path / "model.safetensors"))
    assert logprobs(lm) == new


@pytest.mark.slow
def test_over_a_mesh_parameters_are_sharded_as_loaded(tmp_path: Path) -> None:
    """Segments of an array have another order on devices than in the whole parameter."""
    first, second = (write_random_checkpoint("dense_base", tmp_path / str(seed), seed=seed) for seed in range(2))
    settings: dict[str, Any] = SETTINGS | {"lanes": 2, "mesh": hybridlm.mesh(model=2)}
    lm, expected = (hybridlm.load(path, **settings) for path in (first, second))
    full = hybridlm.load(second, **SETTINGS)
    for options in (second, load_file(second / "model.safetensors"), dict(expected.params), dict(full.params)):
        lm.update(first)
        assert not np.array_equal(lm.params[PARAMETER], expected.params[PARAMETER])
        lm.update(options)
        for name, array in expected.params.items():
            assert lm.params[name].sharding == array.sharding and np.array_equal(lm.params[name], array), name
    assert any(not np.array_equal(full.params[name], expected.params[name]) for name in full.params)
    lm.update({name: np.asarray(array) for name, array in expected.params.items()})
    moved = [name for name, array in expected.params.items() if not np.array_equal(lm.params[name], array)]
    assert moved == [name for name, array in full.params.items() if not np.array_equal(array, expected.params[name])]
    weight, norm = full.params[PARAMETER], "norm.weight"
    devices: Any = jax.make_mesh((4,), ("x",), (jax.sharding.AxisType.Auto,))
    replicated, rows = (jax.sharding.NamedSharding(devices, jax.P(*axes)) for axes in ((), ("x",)))
    lm.update(first)
    lm.update({PARAMETER: jax.device_put(weight, replicated)}, partial=True)
    assert np.array_equal(lm.params[PARAMETER], expected.params[PARAMETER])
    assert lm.params[PARAMETER].sharding == expected.params[PARAMETER].sharding
    wrong = {
        PARAMETER: jax.device_put(weight[:4].astype(jnp.int32), rows),
        norm: jax.device_put(np.zeros(3, np.int32), replicated),
    }
    with pytest.raises(CheckpointError) as caught:
        lm.update(wrong, partial=True)
    assert len(caught.value.faults) == 2
    assert [name in fault for name, fault in zip(wrong, caught.value.faults, strict=True)] == [True, True]
    assert "sharded" in caught.value.faults[0] and "mis-shaped" in caught.value.faults[1]
