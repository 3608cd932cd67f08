"""Certificates are for the sources that made them: all of the package, whatever the folder."""

import hashlib
from pathlib import Path

import ir_passes
from ir_passes.compile.versions import sources_hash


def test_every_source_of_the_package_is_in_the_hash():
    package = Path(ir_passes.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    assert {path.parent.name for path in package.rglob("*.py")} >= {"ir_passes", "compile", "proof", "rules"}
    assert sources_hash() == digest.hexdigest()
