"""Keys of compiled steps agree between processes and change with every ingredient of a step."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from flax import nnx
from paged_shapes import paged
from patched_functions import plant_fault
from text_checkpoint import SETTINGS

import hybridlm
import models
from hybridlm import EngineConfig
from hybridlm.programs import step_key as module
from hybridlm.programs.shapes import Shape
from hybridlm.programs.step_key import PACKAGES, devices_name, step_key, structure_name
from ir_passes import rowwise

SHAPE = Shape("generate", 3, 1, 3)


def key(lm: hybridlm.LM, **other: Any) -> str | None:
    """The key of a decoding step, with other parts."""
    shape = other.pop("shape", SHAPE)
    shape = paged(lm.engine, shape) if isinstance(shape, Shape) else shape
    parts: dict[str, Any] = {
        "shape": shape,
        "args": lm.engine.example_arguments(shape),
        "structure": structure_name(lm.engine.programs.structure),
        "certify": "error",
        "placement": lm.engine.placement,
    }
    return step_key(**(parts | other))


def test_key_is_found_without_tracing_and_is_the_same_again(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    reloaded = hybridlm.load(text_lm.path, **SETTINGS)
    monkeypatch.setattr(jax, "make_jaxpr", None)
    monkeypatch.setattr(jax, "eval_shape", None)
    first = key(text_lm)
    assert first is not None and len(first) == 64
    assert key(reloaded) == first


CHILD = """
import sys
sys.path[:0] = ["tests/reference/checkpoints", "tests/reference/scenes"]
import hybridlm
from paged_shapes import paged
from text_checkpoint import SETTINGS
from hybridlm.programs.shapes import Shape
from hybridlm.programs.step_key import step_key, structure_name
lm, shape = hybridlm.load(sys.argv[1], compilation_cache=False, **SETTINGS), Shape("generate", 3, 1, 3)
shape = paged(lm.engine, shape)
args, name = lm.engine.example_arguments(shape), structure_name(lm.engine.programs.structure)
print(step_key(shape, args, name, "error", lm.engine.placement))
"""


def in_a_process(path: Path, root: Path, **variables: str) -> str:
    command = [sys.executable, "-W", "error", "-c", CHILD, str(path)]
    environment = os.environ | {"PYTHONPATH": str(root)} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=root).stdout.strip()


@pytest.mark.long
def test_key_is_the_same_in_every_process(text_lm: hybridlm.LM, root: Path) -> None:
    """Keys under every seed of hashes; test_warm_start.py shows that another process finds a step."""
    first, two = (in_a_process(Path(text_lm.path), root, PYTHONHASHSEED=seed) for seed in "12")
    assert first == two and len(first) == 64


CHANGES: dict[str, Callable[[hybridlm.LM, pytest.MonkeyPatch], str | None]] = {
    "step": lambda lm, _: key(lm, shape=Shape("score", 3, 1, 3, 0)),
    "lanes": lambda lm, _: key(lm, shape=Shape("generate", 2, 1, 3)),
    "rows": lambda lm, _: key(lm, shape=Shape("generate", 3, 1, 4)),
    "tokens": lambda lm, _: key(lm, shape=Shape("generate", 3, 5, 3)),
    "top": lambda lm, _: key(lm, shape=Shape("generate", 3, 1, 3, top=0)),
    "move": lambda lm, _: key(lm, shape=lm.engine.moves.shapes(3, lm.engine.pages(3))[0]),
    "certify": lambda lm, _: key(lm, certify="warn"),
    "off": lambda lm, _: key(lm, certify="off"),
    "kernels": lambda lm, _: key(lm, placement=EngineConfig(kernels="off").place()),
    "context": lambda lm, _: key(hybridlm.load(lm.path, **{**SETTINGS, "context": 512})),
    "dtype": lambda lm, _: key(hybridlm.load(lm.path, **{**SETTINGS, "dtype": "bfloat16"})),
    "mesh": lambda lm, _: key(lm, placement=EngineConfig(mesh=hybridlm.mesh(data=2)).place()),
    "other mesh": lambda lm, _: key(lm, placement=EngineConfig(mesh=hybridlm.mesh(model=2)).place()),
}


@pytest.mark.cpu_kernels
def test_kernels_are_part_of_a_key_with_their_content() -> None:
    (library,) = (Path(str(models.__file__)).parent / "cpu_kernels").glob("libhybridlm_kernels.*")
    auto, off, interpret = (EngineConfig(kernels=mode).place() for mode in ("auto", "off", "interpret"))
    content, *instructions = auto.kernels_name.split()
    assert content == hashlib.sha256(library.read_bytes()).hexdigest() and instructions[0] == "portable"
    assert auto.kernels_name in devices_name(auto)
    assert (off.kernels_name, interpret.kernels_name) == ("off", "interpret")


@pytest.mark.parametrize("name", CHANGES)
def test_another_part_is_another_key(name: str, text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = CHANGES[name](text_lm, monkeypatch)
    assert changed is not None and changed != key(text_lm)


def changed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Change one ingredient of a process's environment."""
    if name == "sources":
        monkeypatch.setattr(module, "own_sources", lambda: "0" * 64)
    elif name == "jaxlib":
        monkeypatch.setattr(module, "versions", lambda: ("0.0.0",))
    elif name == "processor":
        machine = module._machine()
        monkeypatch.setattr(module, "_machine", lambda: replace(machine, instructions=f"{machine.instructions} new"))
    elif name == "topology":
        monkeypatch.setattr(module.jax_private, "topology_of", lambda devices: "1")
    elif name == "flags":
        monkeypatch.setenv("XLA_FLAGS", f"{os.environ['XLA_FLAGS']} --xla_cpu_enable_fast_math=true")
    elif name == "declared":
        for table in ("_DECLARED", "_FUNCTIONS"):
            plant_fault(monkeypatch, f"ir_passes.contract.declared.{table}", dict)
        rowwise(jax.jit(lambda x: x * 2), inputs=(hybridlm.compiler.Lane(),))


@pytest.mark.parametrize("name", ["sources", "jaxlib", "processor", "topology", "flags", "declared"])
def test_another_machine_or_version_is_another_key(
    name: str, text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = key(text_lm)
    monkeypatch.setattr(module, "patched_code", lambda *packages: [])  # the replaced values stand for another machine
    changed(monkeypatch, name)
    assert key(text_lm) not in (None, original)
    monkeypatch.undo()
    assert key(text_lm) == original


@pytest.mark.parametrize("setting", [
    lambda: jax.default_matmul_precision("highest"),
    lambda: jax.numpy_dtype_promotion("standard"),
    lambda: jax.enable_x64(True),
    lambda: jax.default_prng_impl("rbg"),
])  # fmt: skip
def test_settings_of_a_thread_are_in_the_key(setting: Callable[[], Any], text_lm: hybridlm.LM) -> None:
    original, args = key(text_lm), text_lm.engine.example_arguments(paged(text_lm.engine, SHAPE))
    with setting():
        assert key(text_lm, args=args) not in (None, original)
    assert key(text_lm) == original


def test_functions_and_layers_from_elsewhere_have_no_key(text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    processor = Shape("generate", 3, 1, 3, processor=lambda logits, token, position: logits)
    assert key(text_lm, shape=processor) is None
    structure = text_lm.engine.programs.structure

    class Mine(nnx.Module):
        """A layer of the user's."""

    assert structure_name(replace(structure, graph=nnx.graphdef(Mine()))) is None
    assert key(text_lm, structure=None) is None
    monkeypatch.setattr(module, "own_sources", lambda: None)
    assert key(text_lm) is None


def test_a_step_of_patched_code_has_no_key(
    text_lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Functions, methods and constants that a notebook has replaced are in no source file."""
    first, places = key(text_lm), ("models.ops.linear.linear", "models.layers.norms.RMSNorm.__call__")
    for place in (*places, "hybridlm.programs.step_key.ENVIRONMENT"):
        with monkeypatch.context() as patch, caplog.at_level("INFO", "hybridlm"):
            patch.setattr(place, lambda *args: args)
            assert key(text_lm) is None
            assert place.rpartition(".")[2] in caplog.records[-1].getMessage()
        assert key(text_lm) == first


def test_sources_of_all_packages_are_in_the_key() -> None:
    assert {package.name for package in PACKAGES} == {"hybridlm", "models", "ir_passes"}
