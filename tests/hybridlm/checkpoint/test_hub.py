"""Location of a checkpoint: directories, the Hub's cache offline, and errors with remedies."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors

from hybridlm.checkpoint import CheckpointError, resolve
from hybridlm.checkpoint.hub import FILES, IGNORED

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cache(directory: Path, name: str = "models--org--tiny") -> Path:
    """A cache as huggingface_hub leaves it; gives the snapshot in it."""
    repository = directory / name
    snapshot = repository / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    blob = repository / "blobs" / "b"
    blob.parent.mkdir()
    blob.write_text("{}")
    os.symlink(blob, snapshot / "config.json")
    return snapshot


def refused(name: Any, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        resolve(name, **options)
    return str(caught.value)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Fake calls of the Hub that stay on this machine."""
    calls: list[dict[str, Any]] = []

    def snapshot_download(hub_id: str, **options: Any) -> str:
        calls.append({"id": hub_id, **options})
        return "/snapshot"

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def test_a_directory_is_used_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: list[dict[str, Any]]):
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(tmp_path) == tmp_path
    assert resolve("org/name") == Path("org/name")
    assert resolve("~/org") == tmp_path / "org"
    assert not hub


@pytest.mark.parametrize(
    "name", ["/no/where", "./x", "../x", "~/x", "~nobody-here/x", "a/b/c", "name/", "a\\b", Path("x")]
)
def test_a_path_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: list[dict[str, Any]], name: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refused(name)
    assert "no such directory" in message and "looked at /" in message
    assert not hub


def test_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert "is a file" in refused(tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["", "a b", "org/na me", "org/a..b", "org/a--b", "-x/y", "org/name?x", "x" * 5000])
def test_neither(hub: list[dict[str, Any]], name: str) -> None:
    assert f"model {name!r}: neither a directory nor a Hub id" in refused(name)
    assert not hub


def test_downloaded_files(hub: list[dict[str, Any]]) -> None:
    from huggingface_hub.utils import filter_repo_objects

    assert resolve("org/name", revision="r", cache_dir="c") == Path("/snapshot")
    (call,) = hub
    assert call["id"] == "org/name" and call["revision"] == "r" and call["cache_dir"] == "c"
    assert call["allow_patterns"] == FILES and call["ignore_patterns"] == IGNORED
    offered = [
        "config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json",
        "chat_template.jinja", "additional_chat_templates/tool_use.jinja", "pytorch_model.bin",
        "original/model.safetensors", "original/config.json", "additional_chat_templates/run.py", "run.py",
    ]  # fmt: skip
    assert list(filter_repo_objects(offered, allow_patterns=FILES, ignore_patterns=IGNORED)) == offered[:6]


@pytest.mark.parametrize(
    ("files", "downloads"),
    [(["config.json"], 2), (["config.json", "model-1.safetensors"], 1), (["adapter_config.json"], 1)],
)
def test_files_of_torch_are_downloaded_only_without_safetensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: list[str], downloads: int
) -> None:
    calls = []

    def snapshot_download(hub_id: str, **options: Any) -> str:
        calls.append((hub_id, options["revision"], options["allow_patterns"], options["ignore_patterns"]))
        for name in files:
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve("org/name", revision="r") == tmp_path
    torch = ("org/name", "r", ["pytorch_model.bin"], ["*/pytorch_model.bin"])
    assert calls == [("org/name", "r", FILES, IGNORED), torch][:downloads]


def failure(kind: type[Exception]) -> Exception:
    # Without __init__, which wants a response of the HTTP library that this release of huggingface_hub uses.
    return kind.__new__(kind, "no")


@pytest.mark.parametrize(("kind", "message"), [
    (errors.GatedRepoError, "hf auth login"),
    (errors.RepositoryNotFoundError, "neither a directory here (/"),
    (errors.RevisionNotFoundError, "no revision 'v9'"),
    (errors.LocalEntryNotFoundError, "hf download org/name"),
    (errors.HfHubHTTPError, "could not be fetched"),
    (OSError, "could not be fetched"),
])  # fmt: skip
def test_errors_of_the_hub(monkeypatch: pytest.MonkeyPatch, kind: type[Exception], message: str) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise failure(kind)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    result = refused("org/name", revision="v9")
    assert result.startswith("org/name: ") and message in result


OFFLINE = """
import sys
from hybridlm.checkpoint import CheckpointError, resolve
print(resolve("org/tiny"))
for name in ("org/other", "org/tiny-2"):
    try:
        resolve(name)
    except CheckpointError as error:
        print(str(error).replace(chr(10), " "))
"""


@pytest.mark.slow
def test_offline(tmp_path: Path, root: Path) -> None:
    snapshot = cache(tmp_path / "hub")
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE], cwd=root, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    result, *messages = run.stdout.splitlines()
    assert Path(result).samefile(snapshot)
    for message in messages:
        assert "nor complete in the Hub's cache" in message and "hf download org/" in message
    assert len(messages) == 2
