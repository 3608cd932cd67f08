"""Plant one-line faults in a copy of the sources, and print their finders.

python scripts/plant_faults.py                  # all faults of tests/reference/source_faults.toml
python scripts/plant_faults.py --share 3/8      # one of eight shares of them
python scripts/plant_faults.py sampling- prefix-of-another-model

A fault's default tests run first, then those of `--rest`. The exit status is 1 if no test finds a fault.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FAULTS = ROOT / "tests" / "reference" / "source_faults.toml"
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "docs", "notebooks")
SECONDS = 900
"""Longest run of a fault's tests; a hang counts as a finding."""


@dataclass(frozen=True)
class Fault:
    """A fault of one line.

    Attributes:
        file: relative to the repository.
        old, new: text that occurs once in the file, and its replacement.
        tests: test files, to fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]

    def planted(self, source: str) -> str:
        """Return the source with the fault.

        Raises:
            ValueError: `old` does not occur once.
        """
        if source.count(self.old) != 1:
            raise ValueError(f"{FAULTS.name}: {self.name}: expected {self.old!r} once in {self.file}")
        return source.replace(self.old, self.new)


def read_faults() -> list[Fault]:
    return [Fault(name, **fields) for name, fields in tomllib.loads(FAULTS.read_text()).items()]


def pytest_options(default: bool) -> list[str]:
    """Return the options for default tests, or all others."""
    if not default:
        return ["--rest"]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    marks = next(option for option in settings["addopts"] if option.startswith("-m="))
    return ["--of-each", "1", f"{marks} and not slow"]


def first_failure(tree: Path, tests: list[str], default: bool) -> str | None:
    """Return the id of the first failing test in a tree, or None."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *pytest_options(default), *tests]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return f"a test that does not end in {SECONDS} seconds"
    if run.returncode in (0, 5):  # 5: no test was chosen
        return None
    failure = re.search(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    return failure[1] if failure else f"pytest, which ended with status {run.returncode}"


def finders(faults: list[Fault]) -> Iterator[tuple[Fault, str, str]]:
    """Yield each fault with its selection ("default", "--rest" or "none") and test."""
    with tempfile.TemporaryDirectory(prefix="hybridlm-faults-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, ignore=NOT_COPIED)
        for fault in faults:
            file = tree / fault.file
            source = file.read_text()
            file.write_text(fault.planted(source))
            try:
                for selection in ("default", "--rest"):
                    test = first_failure(tree, fault.tests, selection == "default")
                    if test is not None:
                        break
                else:
                    selection, test = "none", ""
            finally:
                file.write_text(source)
            yield fault, selection, test or ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", metavar="K/N", default="0/1", help="one of N shares: number K modulo N")
    parser.add_argument("name", nargs="*", help="prefixes of the names of faults; all by default")
    arguments = parser.parse_args()
    number, shares = map(int, arguments.share.split("/"))
    faults = [fault for fault in read_faults() if fault.name.startswith(tuple(arguments.name) or "")]
    missed = 0
    print("| fault | found by | tests |\n|---|---|---|", flush=True)
    for fault, selection, test in finders(faults[number % shares :: shares]):
        missed += selection == "none"
        print(f"| {fault.name} | {test or 'no test'} | {selection} |", flush=True)
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
