"""The start of a model: the visible line, the last start's seconds, and its parts."""

from pathlib import Path
from typing import Any

import pytest
from jax_settings import jax_settings
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm import loading
from hybridlm.programs.compilation_cache import cache_of
from hybridlm.programs.start import STARTS, Start


def started(folder: Path | None, show: bool | None = True, settings: tuple[object, ...] = (8,)) -> Start:
    return Start("a model", folder, settings, show, 0.0)


def test_the_next_start_shows_the_seconds_of_this_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = started(tmp_path)
    first.compiling()
    first.compiling()
    output = capsys.readouterr()
    assert not output.out and len(output.err.splitlines()) == 2 and "last time" not in output.err
    first.parts = {"open": 1.0, "weights": 2.0}
    first.answered(3.5)
    first.answered(100.0)
    assert first.parts == {"open": 1.0, "weights": 2.0, "first answer": 3.5}

    second = started(tmp_path)
    assert (second.last.cold, second.last.warm) == (6.5, None) and "6.5 s" in capsys.readouterr().err
    second.parts = {"open": 0.25}
    second.answered(1.0)
    third = started(tmp_path)
    assert (third.last.cold, third.last.warm) == (6.5, 1.25)
    line = capsys.readouterr().err
    assert "6.5 s" in line and "1.2 s" in line and line.count("\n") == 1
    third.compiling()
    assert "6.5 s" in capsys.readouterr().err
    assert started(tmp_path, settings=(4,)).last.warm is None


def test_progress_false_hides_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for show in (False, None):  # standard error is no terminal
        item = started(tmp_path, show)
        item.compiling()
        item.answered(1.0)
    assert capsys.readouterr() == ("", "")


def test_damaged_and_missing_records_are_none(tmp_path: Path) -> None:
    started(tmp_path, False).answered(1.0)
    (path,) = (tmp_path / STARTS).iterdir()
    for content in ("", "{}", path.read_text().replace("1", "2")):
        path.write_text(content)
        assert started(tmp_path, False).last.warm is None
    started(None, False).answered(1.0)


def test_a_user_without_a_home_directory_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one of a container that has no entry in /etc/passwd."""

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", home)
    with jax_settings(jax_compilation_cache_dir=None):
        assert cache_of(None) == cache_of(None) == (None, None)
        (message,) = caplog.messages
        assert message.startswith("compiled steps are not kept: Could not determine home directory. Give ")
        monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
        assert cache_of(None)[1] == Path("/xdg/hybridlm/xla")


def test_parts_follow_one_another(text_lm: hybridlm.LM) -> None:
    lm = hybridlm.load(text_lm.path, **SETTINGS)
    assert lm.start is not None
    assert list(lm.start.parts) == ["open", "weights", "engine", "memory"]
    lm.score([[5, 6, 7]])
    assert list(lm.start.parts)[4:] == ["first answer"] and all(took > 0 for took in lm.start.parts.values())
    assert lm.engine.programs.origins.keys() == set(lm.engine.programs.shapes)


def test_line_comes_before_anything_is_read(
    text_lm: hybridlm.LM, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = hybridlm.load(text_lm.path, compilation_cache=tmp_path, **SETTINGS).start
    assert start is not None
    start.answered(3.25)
    lines = []

    def resolve(path: Path) -> Path:
        lines.append(capsys.readouterr().err)
        raise hybridlm.CheckpointError(path, "nothing is there")

    monkeypatch.setattr(loading, "resolve", resolve)
    rest: dict[str, Any] = SETTINGS | {"lanes": 7}
    for settings in (SETTINGS, rest):
        with pytest.raises(hybridlm.CheckpointError):
            hybridlm.load(text_lm.path, compilation_cache=tmp_path, progress=True, **settings)
    assert [(text.count("\n"), text_lm.path.name in text, "last time" in text) for text in lines] == [
        (1, True, True),
        (1, True, False),
    ]
