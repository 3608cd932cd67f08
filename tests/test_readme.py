"""README's testable promises: two commands on the first screen, a running example."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_first_block_is_the_two_commands():
    first = re.search(r"^```.*?^```$", README, flags=re.MULTILINE | re.DOTALL)
    assert first is not None and README[: first.start()].count("\n") < 10
    commands = first.group().splitlines()[1:-1]
    assert len(commands) == 2
    expected = (("-e .", "hybridlm demo"), ('-e ".[test]"', "pytest -n auto --dist worksteal"))
    for command, (needs, ends) in zip(commands, expected, strict=True):
        assert f"pip install {needs}" in command
        assert command.endswith(f"&& {ends}")


@pytest.mark.slow
@pytest.mark.usefixtures("stored_steps")  # as for users
def test_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (example,) = blocks("python")
    assert len(example.splitlines()) <= 12
    monkeypatch.chdir(ROOT)
    scope: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), scope)
    (printed,) = blocks("text")
    number = re.compile(r"-?\d+\.\d+")
    output = capsys.readouterr().out
    assert number.sub("", output) == number.sub("", printed)
    # Bits differ between instruction sets of CPUs.
    assert list(map(float, number.findall(output))) == pytest.approx(list(map(float, number.findall(printed))), abs=0.1)
    assert scope["output"] is not None
