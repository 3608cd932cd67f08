"""`hybridlm verify` and `hybridlm inspect`."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command_line import run_command
from leaking_steps import plant_leak

from ir_passes import Certificate, Claim

SMALL = ("--lanes", "2", "--context", "32", "--chunk", "4", "--dtype", "float32")


def run(command: str, text_path: Path, *options: str | Path, code: int = 0) -> str:
    return run_command(command, "--model", text_path, *SMALL, *options, code=code).output


@pytest.mark.slow
def test_every_step_is_verified(text_path: Path, tmp_path: Path) -> None:
    output = run("verify", text_path, "--full", "--out", tmp_path / "new" / "folder")
    rows = re.findall(r"(generate|verify|score)\s*│\s*(\d+)\s*│\s*(\d+)\s*│\s*\d+\s*│\s*(\w+)\s*│\s*(\w+)", output)
    assert [row[:3] for row in rows] == [
        ("generate", "2", "4"),
        ("generate", "2", "1"),
        ("verify", "2", "5"),
        ("score", "2", "4"),
    ]
    assert all(proved in ("yes", "reused") and audited == "yes" for *_, proved, audited in rows)
    assert "all 4 steps are proved and audited" in output
    assert Claim.NON_INTERFERENCE in output and "not covered:" in output
    report = [Certificate.from_json(path.read_text()) for path in sorted((tmp_path / "new" / "folder").iterdir())]
    assert [certificate.lanes for certificate in report] == [2, 2, 2, 2]
    assert all(certificate.holds for certificate in report)


@pytest.mark.slow
def test_failure_is_the_exit_status(text_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leak = plant_leak(monkeypatch, "score_step")
    output = run("verify", text_path, "--full", code=1)
    assert re.search(r"score\s*│\s*2\s*│\s*4\s*│\s*│\s*NO", output)
    assert "1 of 4 steps failed" in output
    assert leak in output and "The step is score 2x4 of 2" in output


class Page(HTMLParser):
    """Tags that open and close, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "rect", "line"):
            self.open.append(tag)
        self.fetched += [f"{tag} {name}={value}" for name, value in attrs if name in ("src", "href", "xlink:href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.slow
def test_page(text_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    output = run("inspect", text_path, "--html", path)
    assert "generate 2x1 of 2, certified" in output
    text = path.read_text()
    page = Page()
    page.feed(text)
    assert not page.open and not page.fetched
    assert "url(" not in text and "<script" not in text and "http" not in re.sub(r"openxla/xla#\d+", "", text)
    for part in ("Which lane may reach which", "args[1].layers[0][0].recurrent", "Rewrites", "live at once"):
        assert part in text
    assert len(re.findall('<td class="own">own<small>changed</small></td>', text)) == 2
    assert len(re.findall('<td class="apart">apart<small>same</small></td>', text)) == 2


def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path: Path) -> None:
    output = run("inspect", Path("no-such-model"), "--html", tmp_path / "absent" / "page.html", code=1)
    assert "absent: no such directory" in output


def test_inspection_in_words(text_path: Path) -> None:
    output = run("inspect", text_path, "--step", "score")
    state, _, step = output.partition("\n\n")
    assert step.startswith("score 2x4 of 2\nstep: certified, 2 lanes")
    assert "1 x GatedDeltaNet recurrent: value_head*value*key*4 B = 8*8*16*4 B = 4,096 B" in state
    assert state.endswith("one sequence: 5,632 B and 128 B per token")
    assert "scratch before fusion" in output


@pytest.mark.slow
def test_page_of_a_step_on_a_mesh(text_path: Path, tmp_path: Path) -> None:
    """Dependence is not measured on a mesh, because a device counts its own rows."""
    output = run("inspect", text_path, "--mesh", "data=2", "--html", tmp_path / "page.html")
    assert "generate 2x1 of 2, certified" in output
    text = (tmp_path / "page.html").read_text()
    assert '<td class="apart">apart</td>' in text and "<small>same</small>" not in text


def test_step_that_is_refused_is_shown(text_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant_leak(monkeypatch, "score_step")
    output = run("inspect", text_path, "--step", "score", "--html", tmp_path / "page.html")
    assert "NOT CERTIFIED" in output
    text = (tmp_path / "page.html").read_text()
    assert "NOT CERTIFIED" in text and "<h2>Faults</h2>" in text
    assert '<td class="open">open<small>changed</small></td>' in text
