"""Files of a release: one version everywhere, a readable change log, a workflow of checks."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import hybridlm

MAX_WORDS = 2500
"""Words of CHANGELOG.md, written for users of the previous version."""


def test_one_version_everywhere(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    citation = (root / "CITATION.cff").read_text()
    headings = re.findall(r"^## \[([\d.]+)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    versions = [project["version"], *re.findall(r"^version: (\S+)$", citation, re.MULTILINE), headings[0]]
    assert versions == [hybridlm.__version__] * 3


def test_the_citation_has_the_fields_of_its_format(root: Path) -> None:
    citation = (root / "CITATION.cff").read_text()
    fields = set(re.findall(r"^([a-z-]+):", citation, re.MULTILINE))
    assert {"cff-version", "message", "title", "authors", "version", "date-released", "license"} <= fields


def test_the_change_log_begins_with_ten_lines_and_is_short(root: Path) -> None:
    text = (root / "CHANGELOG.md").read_text()
    _, _, release = text.partition(f"## [{hybridlm.__version__}]")
    summary = release.split("\n### ")[0]
    assert re.findall(r"^(\d+)\. ", summary, re.MULTILINE) == [str(number) for number in range(1, 11)]
    assert len(text.split()) <= MAX_WORDS, "lines of earlier versions came back, or too many lines were added"


def test_the_workflow_calls_the_checks(root: Path) -> None:
    workflow = (root / ".github" / "workflows" / "ci.yml").read_text()
    for script in (".ci/run", ".ci/long"):
        assert re.search(rf"^ +- run: .*{re.escape(script)}$", workflow, re.MULTILINE)
        assert (root / script).stat().st_mode & 0o111


def test_emulated_wheels_name_a_missing_emulator(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(root / "scripts" / "build_wheels.py"), str(tmp_path), "--emulate"]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    assert result.returncode == 2 and not any(tmp_path.iterdir())
    message = " ".join(result.stderr.split())
    assert re.search(r"missing qemu-(aarch64|x86_64), apt-get, dpkg-deb; install the package qemu-user", message)
