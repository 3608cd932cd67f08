"""The pages: public names in the reference, pages in the navigation, tested audit rules."""

import dataclasses
import re
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

import hybridlm
from hybridlm import compiler

# Constants and modules, with separate pages or paragraphs.
NOT_REFERENCED = {"DISTRIBUTION", "__version__", "DEFAULT_PASSES", "compiler", "models", "demo", "families"}
# Made by scripts/mkdocs_hooks.py when the site is built.
GENERATED = {"certificates.md", "device-tables.md", "engine-mutants.md", "mutants.md"}
COMPILER = ["hybridlm.compiler", *(f"hybridlm.compiler.{module.name}" for module in iter_modules(compiler.__path__))]


@pytest.mark.parametrize(
    ("page", "modules"), [("hybridlm", [hybridlm.__name__]), ("compiler", COMPILER)], ids=["hybridlm", "compiler"]
)
def test_every_public_name_is_in_the_reference(root: Path, page: str, modules: list[str]) -> None:
    text = (root / "docs" / "reference" / f"{page}.md").read_text()
    listed = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    names = {f"{module}.{name}" for module in modules for name in set(import_module(module).__all__) - NOT_REFERENCED}
    assert sorted(listed) == sorted(names)


def test_every_page_is_in_the_navigation(root: Path) -> None:
    pages = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")} | GENERATED
    pages |= {f"notebooks/{path.stem}.md" for path in (root / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"[\w/-]+\.md", (root / "mkdocs.yml").read_text())) == pages


PAGES = [
    *sorted((Path(__file__).resolve().parents[1] / "docs").rglob("*.md")),
    Path("README.md"),
    Path("CONTRIBUTING.md"),
]


@pytest.mark.parametrize("page", [*PAGES, Path("CHANGELOG.md")], ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings_of_the_repository(root: Path, page: Path) -> None:
    page = root / page
    text = re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forge and site make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_file_of_the_structure_exists(root: Path) -> None:
    text = (root / "docs" / "structure.md").read_text()
    _, _, table = text.partition("## Where is ...")
    named = re.findall(r"`([^`]+)`", table)
    assert len(named) > 20 and [item for item in named if not (root / item).exists()] == []


def test_every_rule_of_the_audit_names_what_breaks_it(root: Path) -> None:
    """Each table row of docs/tables/audit-rules.md ends with existing tests or mutants."""
    text = (root / "docs" / "tables" / "audit-rules.md").read_text()
    _, _, table = text.partition("| platform | rule | found when broken, by |\n|---|---|---|\n")
    rows = [line.split(" | ")[-1] for line in table.partition("\n\n")[0].splitlines()]
    named = [re.findall(r"`(test_\w+\.py): (\w+)`", row) for row in rows]
    assert len(rows) > 10 and all(named), named
    files = {path.name: path for path in (root / "tests").rglob("test_*.py")}
    assert [item for row in named for item in row if f"def {item[1]}(" not in files[item[0]].read_text()] == []


@pytest.mark.parametrize("options", [hybridlm.EngineConfig, hybridlm.SamplingParams, hybridlm.FileOptions])
def test_every_option_is_documented(options: type) -> None:
    _, _, attributes = (options.__doc__ or "").partition("Attributes:")
    documented = re.findall(r"^ +((?:\w+, )*\w+):", attributes.partition("Raises:")[0], re.MULTILINE)
    names = [name for entry in documented for name in entry.split(", ")]
    assert sorted(names) == sorted(option.name for option in dataclasses.fields(options))
