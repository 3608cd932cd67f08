"""Hooks of mkdocs: generate the pages with results of runs in every build."""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]  # extra `docs`
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]

SCRIPTS = [Path(__file__).with_name(f"write_{name}.py") for name in ("mutants", "certificates", "device_tables")]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; raise for an undetected mutant or a refused step."""
    with TemporaryDirectory() as folder:
        for script in SCRIPTS:
            subprocess.run([sys.executable, str(script), folder], check=True)
        for path in sorted(Path(folder).glob("*.md")):
            files.append(File.generated(config, path.name, content=path.read_text()))
    return files
