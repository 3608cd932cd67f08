"""Hashes of sources: every byte and every name counts."""

import shutil
from pathlib import Path

from ir_passes.files.sources import hash_of_sources


def test_every_byte_of_every_source_counts(root: Path, tmp_path: Path) -> None:
    packages = [root / name for name in ("hybridlm", "models", "ir_passes")]
    folders = [tmp_path / package.name for package in packages]
    for package, folder in zip(packages, folders, strict=True):
        shutil.copytree(package, folder, ignore=shutil.ignore_patterns("__pycache__", "model"))
    original = hash_of_sources(folders)
    assert original is not None and original == hash_of_sources(packages)
    for folder in folders:
        path = sorted(folder.rglob("*.py"))[-1]
        content = path.read_bytes()
        path.write_bytes(content[:-1] + b" ")
        assert hash_of_sources(folders) != original
        path.write_bytes(content)
        path.rename(path.with_name("other.py"))
        assert hash_of_sources(folders) != original
        path.with_name("other.py").rename(path)
    (folders[0] / "more.py").touch()
    assert hash_of_sources(folders) != original
    (folders[0] / "more.py").unlink()
    assert hash_of_sources(folders) == original
