"""Hooks of mkdocs: the pages of mutants are made from a run whenever the site is built, and are not kept."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]  # extra `docs`
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]

SCRIPT = Path(__file__).with_name("write_mutants.py")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; a mutant that nothing finds ends the build."""
    with TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(SCRIPT), folder], check=True)
        for path in sorted(Path(folder).glob("*.md")):
            files.append(File.generated(config, path.name, content=path.read_text()))
    return files
