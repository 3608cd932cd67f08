"""`hybridlm.load`: arguments, stored dtypes, messages, and the place of compiled steps."""

import gc
import json
import logging
import os
import pathlib
import shutil
import subprocess
import sys
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import hybridlm
from hybridlm.checkpoint import CheckpointError
from hybridlm.progress import load_progress

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
SMALL = GOLDEN / "sparse_base"
ROOT = GOLDEN.parents[1]


def load(directory: pathlib.Path = SMALL, **arguments: Any) -> hybridlm.LM:
    small: dict[str, Any] = {"lanes": 1, "context": 16, "chunk": 4}
    return hybridlm.load(directory, **small | arguments)


@pytest.fixture
def copied(tmp_path: pathlib.Path) -> pathlib.Path:
    """A checkpoint that may be changed."""
    return pathlib.Path(shutil.copytree(SMALL, tmp_path / "checkpoint"))


def change(file: pathlib.Path, **fields: Any) -> None:
    contents = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(contents | fields))


def test_default_context_and_chunk(copied: pathlib.Path) -> None:
    assert hybridlm.load(SMALL).context == 512
    change(copied / "config.json", max_position_embeddings=1 << 18)
    lm = hybridlm.load(copied)
    assert (lm.context, lm.engine.lanes, lm.engine.chunk) == (4096, 8, 128)
    change(copied / "config.json", max_position_embeddings=100)
    lm = hybridlm.load(copied)
    assert (lm.context, lm.engine.chunk) == (100, 100)
    assert load(copied, context=100).context == 100


@pytest.mark.parametrize("dtype", [None, "bfloat16", "float16", "float32"])
def test_matrices_have_the_dtype_and_vectors_are_float32(dtype: str | None) -> None:
    """None is the dtype of the checkpoint, bfloat16 here."""
    lm = load(dtype=dtype)
    wide = {name: array for name, array in lm.params.items() if array.ndim > 1}
    narrow = {name: array for name, array in lm.params.items() if array.ndim == 1}
    assert {array.dtype for array in wide.values()} == {jnp.dtype(dtype or "bfloat16")}
    assert {array.dtype for array in narrow.values()} == {jnp.dtype("float32")}
    assert {name.split(".")[-1] for name in narrow} == {"A_log", "dt_bias", "norm", "weight"}


def test_the_dtype_follows_the_tensors_not_the_config(copied: pathlib.Path) -> None:
    change(copied / "config.json", dtype="float32")
    assert load(copied).params["embed_tokens"].dtype == jnp.bfloat16


def test_matrices_that_are_stored_otherwise_are_counted(copied: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint in two dtypes is reported, unless the caller has chosen one."""
    (file,) = copied.glob("*.safetensors")
    tensors = load_file(file)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float32)
    save_file(tensors, file)
    assert load(copied).params["lm_head"].dtype == jnp.bfloat16
    (record,) = caplog.records
    assert f"{copied}: 1 of the parameters are stored as F32 and kept as bfloat16" in record.getMessage()
    caplog.clear()
    load(copied, dtype="bfloat16")
    assert not caplog.records


def test_a_narrow_model_is_near_transformers_in_float32() -> None:
    """The checkpoint is bfloat16, so that only activations are rounded."""
    with np.load(SMALL / "expected.npz") as expected:
        ends = np.cumsum(expected["lengths"])
        (prompt,) = [i for i in range(len(ends)) if expected["lengths"][i] == 3]
        tokens, want = (expected[name][ends[prompt] - 3 : ends[prompt]] for name in ("prompts", "logits"))
    logits = load(dtype="bfloat16").forward(tokens).logits
    assert logits.dtype == jnp.float32 and logits.shape == want.shape
    assert 2e-3 < np.abs(np.asarray(logits) - want).max() < 0.05 * np.abs(want).max()


def test_parameters_are_named_by_their_path() -> None:
    lm = load()
    assert lm.params["layers.0.branches.0.inner.in_proj_qkv"] is lm.model.layers[0].branches[0].inner.in_proj_qkv[...]
    assert "lm_head" in lm.params


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    pytest.param({}, marks=pytest.mark.long, id="plain"),
    pytest.param({"speculate": "ngram", "prefix_cache": "1MB"}, id="all"),
])  # fmt: skip
def test_the_arrays_and_programs_of_a_model_go_when_it_does(options: dict[str, Any]) -> None:
    """Memory is freed immediately, without the cycle collector."""
    lm = load(**options)
    lm.generate([[5, 6, 7]], max_tokens=2, prefix=lm.prefix([5, 6, 7, 8, 9]))
    lm.score([[5, 6, 7]])
    with lm.session() as session:
        session.submit([5, 6], max_tokens=2)
        session.step()
    del session
    contents = [lm.engine, lm.engine.programs, *lm.params.values()]
    removed = [weakref.ref(item) for item in contents]
    collects = gc.isenabled()
    gc.disable()
    try:
        del lm, contents
        assert [item() for item in removed] == [None] * len(removed)
    finally:
        if collects:
            gc.enable()


def test_faults_of_the_config_and_of_the_weights_come_at_once(copied: pathlib.Path) -> None:
    change(copied / "config.json", hidden_act="gelu_new", num_hidden_layers=0)
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CheckpointError) as refused:
        load(copied)
    header, *config = refused.value.faults
    assert header.startswith(f"{weights}: ")
    assert any("hidden_act: expected" in fault for fault in config)
    assert any("num_hidden_layers: expected a whole number" in fault for fault in config)
    change(copied / "config.json", model_type="nothing")
    with pytest.raises(CheckpointError, match="supported are: .*bailing_hybrid") as refused:
        load(copied)
    assert refused.value.faults[0] == header and len(refused.value.faults) == 2
    (copied / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load(copied)


def test_unknown_fields_are_warned_of_once(copied: pathlib.Path) -> None:
    change(copied / "config.json", novel_gate=True, novel_norm=2)
    with pytest.warns(UserWarning) as warned:
        hybridlm.load(copied, lanes=1, context=16)
    (warning,) = warned
    assert str(warning.message) == (
        f"{copied}: config.json has fields that qwen3_5_moe does not know and that are not used: novel_gate, novel_norm"
    )
    assert warning.filename == __file__


def test_skipped_tensors_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "hybridlm"):
        load(GOLDEN / "dense_multimodal")
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    message = record.getMessage()
    assert message.startswith(str(GOLDEN / "dense_multimodal")) and "tensors are not used by this model: " in message
    assert r"15 of mtp\..*" in message and r"of model\.visual\..*" in message
    caplog.clear()
    load(SMALL)
    assert not caplog.records


@pytest.mark.parametrize(("local", "generation", "expected"), [
    (2, None, (2,)), (None, None, ()), (2, 3, (3,)), (None, [5, 3], (5, 3)), ([2, 4], [4, 2, 7], (4, 2, 7)),
    (0, [], (0,)),
])  # fmt: skip
def test_end_tokens_of_generation_config_or_else_config(
    copied: pathlib.Path, local: Any, generation: Any, expected: tuple[int, ...]
) -> None:
    change(copied / "config.json", eos_token_id=local)
    change(copied / "generation_config.json", eos_token_id=generation)
    assert load(copied).eos_token_ids == expected


@pytest.mark.parametrize("value", [-1, "2", [2, 1.5], True, {"id": 2}])
def test_faulty_end_tokens(copied: pathlib.Path, value: Any) -> None:
    change(copied / "generation_config.json", eos_token_id=value)
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id: expected a token id or a list of"):
        load(copied)


@pytest.mark.parametrize(("fields", "named"), [
    ({"do_sample": True, "temperature": 0.6, "top_k": 20}, ["do_sample True", "temperature 0.6", "top_k 20"]),
    ({"repetition_penalty": 1.05, "suppress_tokens": [3]}, ["repetition_penalty 1.05", "suppress_tokens [3]"]),
    ({"forced_bos_token_id": 0, "num_beams": 4, "stop_strings": ["a"]}, ["forced_bos_token_id 0", "num_beams 4"]),
    ({"temperature": 0.6, "top_p": 0.9}, []),  # without do_sample transformers chooses the likeliest token, too
    ({"do_sample": False, "repetition_penalty": 1.0, "suppress_tokens": [], "bad_words_ids": None, "pad_token_id": 0,
      "num_beams": 1, "max_new_tokens": 9, "transformers_version": "5"}, []),
])  # fmt: skip
def test_settings_of_generation_config_are_named(
    copied: pathlib.Path, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], named: list[str]
) -> None:
    change(copied / "generation_config.json", **fields)
    with caplog.at_level("WARNING"):
        load(copied)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == bool(named) and all(name in messages[0] for name in named)


def test_progress_is_written_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    load()
    load(progress=False)
    assert capfd.readouterr() == ("", "")
    load(progress=True)
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("loading") and "kB" in err


def test_progress_where_there_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with load_progress(None) as report:
        assert report is not None
    with load_progress(False) as report:
        assert report is None


CHILD = """
import json, logging, sys
import jax, jax.numpy as jnp
import hybridlm

found = []
logging.getLogger("hybridlm").setLevel(logging.INFO)
handler = logging.Handler()
handler.emit = lambda record: found.append(record) if "from the store" in record.getMessage() else None
logging.getLogger("hybridlm").addHandler(handler)
for count, cache in enumerate(json.loads(sys.argv[2])):
    lm = hybridlm.load(sys.argv[1], lanes=1, context=16, compilation_cache=cache)
    cheapest = lm.engine.moves.shapes(1, lm.engine.pages(1))[0]
    lm.engine.programs.compiled(cheapest, lm.engine.example_arguments)

    def of_the_user(x):
        return x * 2 + count

    jax.jit(of_the_user)(jnp.ones(4))
    print(jax.config.jax_compilation_cache_dir, len(found))
"""


def child(home: pathlib.Path, *caches: str | bool | None, **variables: str) -> list[str]:
    """Load in a process with each of `caches`; return directories and counts of stored steps.

    Returns JAX's directory after each, and how many steps were found in the store by then.
    """
    variables = {"XDG_CACHE_HOME": str(home / "xdg"), "HOME": str(home), "JAX_PLATFORMS": "cpu"} | variables
    variables |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "PYTHONPATH": str(ROOT)}
    saved = {key: value for key, value in os.environ.items() if key not in ("JAX_COMPILATION_CACHE_DIR", "XLA_FLAGS")}
    command = [sys.executable, "-W", "error", "-c", CHILD, str(SMALL), json.dumps(caches)]
    result = subprocess.run(command, env=saved | variables, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def compiled(directory: pathlib.Path) -> set[str]:
    """Return names of programs in a JAX cache, and "step" for stored steps."""
    steps = {"step" for _ in directory.glob("steps/*.step")}
    return steps | {path.name.partition("-")[0] for path in directory.glob("**/*-cache")}


@pytest.mark.slow
def test_steps_are_stored_in_the_given_folder_and_jax_keeps_its_setting(tmp_path: pathlib.Path) -> None:
    """One process switches folders; user programs are stored nowhere; a later process finds steps."""
    default, first, second = tmp_path / "xdg" / "hybridlm" / "xla", tmp_path / "first", tmp_path / "second"
    caches = False, None, str(first), str(second)
    assert child(tmp_path, *caches) == ["None 0"] * 4
    assert compiled(default) == compiled(first) == compiled(second) == {"step"}
    assert child(tmp_path, *caches) == ["None 0", "None 1", "None 2", "None 3"]


@pytest.mark.long
def test_without_a_compilation_cache_nothing_is_written(tmp_path: pathlib.Path) -> None:
    assert child(tmp_path, False) == ["None 0"]
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_compilation_cache_that_jax_was_given_is_respected(tmp_path: pathlib.Path) -> None:
    """User programs stay in JAX's given cache, also after loads with another cache."""
    actual, other = tmp_path / "mine", tmp_path / "other"
    assert child(tmp_path, str(other), None, JAX_COMPILATION_CACHE_DIR=str(actual)) == [f"{actual} 0"] * 2
    assert compiled(actual) >= {"step", "jit_of_the_user"} and not (tmp_path / "xdg").exists()
    assert compiled(other) == {"step"}


@pytest.mark.long
def test_the_default_cache_is_in_the_home_directory(tmp_path: pathlib.Path) -> None:
    assert child(tmp_path, None, XDG_CACHE_HOME="") == ["None 0"]
    assert compiled(tmp_path / ".cache" / "hybridlm" / "xla") == {"step"}


def setting() -> str | None:
    """JAX's setting as this thread has it."""
    return jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]  # made when JAX is imported


@pytest.mark.parametrize("name", ["context", "eos_token_ids"])
def test_an_option_cannot_be_set_later(text_lm: hybridlm.LM, name: str) -> None:
    """It had no effect on completions."""
    with pytest.raises(AttributeError, match=name):
        setattr(text_lm, name, getattr(text_lm, name))
