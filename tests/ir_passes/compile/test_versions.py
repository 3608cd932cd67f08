"""Certificates are for the sources that made them: all of the package, whatever the folder."""

from pathlib import Path

import ir_passes
from ir_passes.compile.versions import sources_hash
from ir_passes.files.sources import hash_of_sources


def test_every_source_of_the_package_is_in_the_hash():
    package = Path(ir_passes.__file__).parent
    assert {path.parent.name for path in package.rglob("*.py")} >= {"ir_passes", "compile", "proof", "rules"}
    assert sources_hash() == hash_of_sources([package])
