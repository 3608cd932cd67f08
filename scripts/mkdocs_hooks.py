"""Hooks of mkdocs: pages with results of runs, and notebooks with outputs.

HYBRIDLM_DOCS_RUNS=off builds in seconds: a page of a run then has only the command that makes it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from mkdocs.config.defaults import MkDocsConfig  # pyright: ignore[reportMissingImports]  # extra `docs`
from mkdocs.structure.files import File, Files  # pyright: ignore[reportMissingImports]
from mkdocs.structure.pages import Page  # pyright: ignore[reportMissingImports]
from nbconvert import MarkdownExporter  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).resolve().parents[1]
RUNS = {
    "mutants": ["engine-mutants.md", "mutants.md"],
    "certificates": ["certificates.md"],
    "device_tables": ["device-tables.md"],
}
"""Pages of each script `write_*.py`."""


def pages_of_runs(folder: Path) -> Iterator[tuple[str, str]]:
    """Run the scripts; yield the name and the text of each page."""
    for name, pages in RUNS.items():
        script = Path(__file__).with_name(f"write_{name}.py")
        if os.environ.get("HYBRIDLM_DOCS_RUNS") == "off":
            for page in pages:
                title = page.removesuffix(".md").replace("-", " ").capitalize()
                yield page, f"# {title}\n\n`python scripts/{script.name} FOLDER` makes this page.\n"
        else:
            subprocess.run([sys.executable, str(script), str(folder)], check=True)
            yield from ((page, (folder / page).read_text()) for page in pages)


def notebook_files() -> Iterator[tuple[str, str | bytes]]:
    """Yield the name and the content of each notebook's page and of its pictures."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        text, resources = MarkdownExporter().from_filename(str(path), {"unique_key": f"{path.stem}-output"})
        yield f"notebooks/{path.stem}.md", text.replace("](../docs/", "](../")
        for name, content in resources["outputs"].items():
            yield f"notebooks/{name}", content


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages; raise for an undetected mutant or a refused step."""
    with TemporaryDirectory() as folder:
        for name, content in [*pages_of_runs(Path(folder)), *notebook_files()]:
            files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the pages of runs from their table.

    The table has no links in the repository.
    """
    if page.file.src_uri == "verification.md":
        for name in sum(RUNS.values(), []):
            markdown = markdown.replace(f"| `{name}` |", f"| [{name.removesuffix('.md')}]({name}) |")
    return markdown
