"""Every command refuses a checkpoint of a class that is not implemented."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import run_command
from planned_engines import planned_engine

import hybridlm
from hybridlm import UnsupportedModel
from hybridlm.checkpoint import CheckpointError
from hybridlm.checkpoint.quantise import quantise_checkpoint

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
NAME = "Lfm2BidirectionalModel"
SETTINGS: dict[str, Any] = {"lanes": 1, "context": 32, "chunk": 5}


def named(folder: Path, **fields: Any) -> Path:
    """Write fields of the config.json in a folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LFM2 checkpoint that names its bidirectional encoder."""
    folder = shutil.copytree(GOLDEN / "lfm2_base", tmp_path_factory.mktemp("encoder") / "m")
    return named(folder, architectures=[NAME])


def refused(*command: str | Path) -> None:
    raise UnsupportedModel(run_command(*command, code=1).output)


USES: dict[str, Callable[[Path], Any]] = {
    "load": lambda path: hybridlm.load(path, **SETTINGS),
    "abstract": lambda path: planned_engine(path / "config.json"),
    "verify": lambda path: refused("verify", "--abstract", "--config", path / "config.json"),
    "inspect": lambda path: refused("inspect", "--model", path),
    "quantise": lambda path: quantise_checkpoint(path, path / "quantised", scheme="int8"),
}


@pytest.mark.parametrize("use", USES)
def test_directory(encoder: Path, use: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        USES[use](encoder)
    message = " ".join(str(caught.value).split())
    assert NAME in message and "lfm2" in message
    assert {path.name for path in encoder.iterdir()} == {path.name for path in (GOLDEN / "lfm2_base").iterdir()}


def test_update(encoder: Path) -> None:
    lm = hybridlm.load(GOLDEN / "lfm2_base", **SETTINGS)
    fingerprint = lm.fingerprint
    with pytest.raises(UnsupportedModel, match=NAME):
        lm.update(encoder)
    assert lm.fingerprint == fingerprint


def test_faults_of_files_and_the_class_are_reported_together(encoder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(encoder, tmp_path / "m")
    for path in folder.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError) as caught:
        hybridlm.load(folder, **SETTINGS)
    assert NAME in str(caught.value) and "truncated" in str(caught.value)
