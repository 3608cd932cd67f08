"""Hashes of the running code; no hash if other code may be imported."""

import importlib.util
import os
import py_compile
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import pytest

import ir_passes
from ir_passes.files.loaded_code import note_code, patched_code
from ir_passes.files.sources import hash_of_sources, note_sources, running_hash

RULES = "TABLE = {'add': sum}\n\n\ndef prove():\n    return 1\n"
NAMES = iter(f"package_{number}" for number in range(1000))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a recorded package, not imported, with modules `__init__` and `rules`."""
    folder = tmp_path / next(NAMES)
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "rules.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    note_sources(folder)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def loaded(package: Path) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(f"{package.name}.rules")


def test_sources_as_they_were_imported_have_a_hash(package: Path) -> None:
    loaded(package)
    assert running_hash([package]) == hash_of_sources([package])
    assert running_hash([package]) == running_hash([package])


def update(package: Path) -> None:
    (package / "rules.py").write_text(RULES.replace("1", "2"))


def update_with_old_times(package: Path) -> None:
    """As tar, rsync and cp -p write files."""
    status = (package / "rules.py").stat()
    update(package)
    os.utime(package / "rules.py", ns=(status.st_atime_ns, status.st_mtime_ns))


def exchange_folders(package: Path) -> None:
    """A release is unpacked elsewhere, long before, and takes the name of the package."""
    package.rename(package.with_name("old"))
    package.with_name("new").rename(package)


def load_from_elsewhere(package: Path) -> None:
    other = package.with_name("elsewhere")
    other.mkdir()
    (other / "more.py").touch()
    sys.modules[package.name].__path__.append(str(other))
    importlib.import_module(f"{package.name}.more")


CHANGES: dict[str, Callable[[Path], object]] = {
    "updated": update,
    "updated with old times": update_with_old_times,
    "replaced": lambda package: (package / "rules.py").with_name("new.py").write_text(RULES) and update(package),
    "a file more": lambda package: (package / "more.py").touch(),
    "a file less": lambda package: (package / "rules.py").unlink(),
    "exchanged": exchange_folders,
    "a module from elsewhere": load_from_elsewhere,
}


@pytest.mark.parametrize("first", [True, False], ids=["hashed before", "hashed after"])
@pytest.mark.parametrize("name", CHANGES)
def test_sources_that_changed_since_have_none(name: str, first: bool, package: Path) -> None:
    new = package.with_name("new")
    new.mkdir()
    (new / "__init__.py").touch()
    (new / "rules.py").write_text(RULES.replace("1", "3"))
    loaded(package)
    assert not first or running_hash([package]) is not None
    CHANGES[name](package)
    assert running_hash([package]) is None


def test_package_that_was_not_noted_has_none(tmp_path: Path) -> None:
    assert running_hash([tmp_path / "unknown"]) is None


def test_package_in_an_archive_has_none(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = package.with_suffix(".zip")
    with zipfile.ZipFile(archive, "w") as file:
        for path in package.iterdir():
            file.write(path, f"zipped/{path.name}")
    monkeypatch.syspath_prepend(str(archive))
    monkeypatch.setitem(sys.modules, "zipped", importlib.import_module("zipped"))
    note_sources(archive / "zipped")
    assert running_hash([archive / "zipped"]) is None


def test_package_without_sources_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "compiled_only"
    folder.mkdir()
    (tmp_path / "source.py").write_text(RULES)
    py_compile.compile(str(tmp_path / "source.py"), str(folder / "__init__.pyc"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "compiled_only", importlib.import_module("compiled_only"))
    note_sources(folder)
    assert running_hash([folder]) is None


def test_older_bytecode_that_python_loads_is_hashed(package: Path) -> None:
    """Python selects bytecode by time and size: here it runs a deleted function."""
    path = package / "rules.py"
    os.utime(path, (1000, 1000))
    py_compile.compile(str(path), doraise=True)
    right = hash_of_sources([package])
    update(package)
    os.utime(path, (1000, 1000))
    assert loaded(package).prove() == 1
    mixed = hash_of_sources([package])
    Path(importlib.util.cache_from_source(str(path))).unlink()
    assert len({right, mixed, hash_of_sources([package])}) == 3


@pytest.mark.parametrize("mode", ["CHECKED_HASH", "UNCHECKED_HASH"])
def test_bytecode_with_the_hash_of_its_source(package: Path, mode: str) -> None:
    """As package managers write it; an unchecked hash is not compared by Python."""
    path = package / "rules.py"
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode[mode])
    with_bytecode = hash_of_sources([package])
    update(package)
    assert mode == "CHECKED_HASH" or loaded(package).prove() == 1
    mixed = hash_of_sources([package])
    Path(importlib.util.cache_from_source(str(path))).unlink()
    assert mixed != hash_of_sources([package])
    path.write_text(RULES)
    assert hash_of_sources([package]) == with_bytecode


def test_patches_in_memory_are_found(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = loaded(package)
    note_code(package.name)
    assert patched_code(package.name) == []
    for patch in (
        lambda: monkeypatch.setattr(rules, "prove", lambda: 2),
        lambda: monkeypatch.setitem(rules.TABLE, "add", max),
        lambda: monkeypatch.setitem(rules.TABLE, "mul", max),
        lambda: monkeypatch.delitem(rules.TABLE, "add"),
    ):
        patch()
        assert len(patched_code(package.name)) == 1 and patched_code("other") == []
        monkeypatch.undo()
        assert patched_code(package.name) == []


def test_certificates_have_the_hash_of_all_sources_of_the_compiler() -> None:
    package = Path(ir_passes.__file__).parent
    assert {path.parent.name for path in package.rglob("*.py")} >= {"ir_passes", "compile", "proof", "rules"}
    contract = ir_passes.LaneContract((ir_passes.Lane(),), (ir_passes.Lane(),))
    certificate = ir_passes.compile_step(lambda x: (x,), (jnp.ones(3),), contract).certificate
    assert certificate.versions.compiler == hash_of_sources([package])
