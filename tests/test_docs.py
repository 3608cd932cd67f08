"""The pages: every public name is in the reference, every page in the navigation."""

import re
from pathlib import Path
from types import ModuleType

import pytest

import hybridlm
import ir_passes

# Constants and modules, which have pages or paragraphs of their own.
NOT_REFERENCED = {"DISTRIBUTION", "__version__", "DEFAULT_PASSES", "compiler", "models", "demo"}


@pytest.mark.parametrize(("page", "package"), [("hybridlm", hybridlm), ("compiler", ir_passes)])
def test_every_public_name_is_in_the_reference(root: Path, page: str, package: ModuleType) -> None:
    text = (root / "docs" / "reference" / f"{page}.md").read_text()
    listed = re.findall(r"^::: \w+\.(\w+)$", text, re.MULTILINE)
    assert sorted(listed) == sorted(set(vars(package)["__all__"]) - NOT_REFERENCED)


def test_every_page_is_in_the_navigation(root: Path) -> None:
    pages = {path.relative_to(root / "docs").as_posix() for path in (root / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", (root / "mkdocs.yml").read_text())) == pages
