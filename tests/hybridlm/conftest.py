"""One small model for the tests of behaviour, so that its steps are compiled once."""

from pathlib import Path

import pytest
from text_checkpoint import GOLDEN, SETTINGS, load_with_steps, write_text_checkpoint

import hybridlm
from hybridlm.engine import scheduler
from hybridlm.engine.engine import Engine
from hybridlm.programs.programs import Programs

Engine.checked = True  # every row has one holder, after every step of every test
Programs.use_store = False  # tests replace parts of steps; a step compiled by an earlier test lacks the replacement


@pytest.fixture(scope="session")
def text_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random text model, which no test changes."""
    return write_text_checkpoint(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="session")
def text_lm(text_path: Path) -> hybridlm.LM:
    """Three lanes, 256 tokens of context, chunks of 5."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Programs, "use_store", False)  # also where the first test that wants it has `stored_steps`
        return hybridlm.load(text_path, **SETTINGS)


@pytest.fixture(scope="module")
def larger_lm() -> hybridlm.LM:
    """A model with more layers, another chunk and another context, and no tokenizer."""
    return hybridlm.load(GOLDEN, lanes=4, context=128, dtype="float32", chunk=7)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences join with hardly more than their prompts, so that they soon need more."""
    monkeypatch.setattr(scheduler, "ROOM", 3)


@pytest.fixture(scope="session")
def cached_lm(text_lm: hybridlm.LM) -> hybridlm.LM:
    """The same model with a prefix cache; tests replace it by an empty one."""
    return load_with_steps(text_lm, text_lm.path, prefix_cache="600kB")


@pytest.fixture(scope="session")
def sanitized_lm(text_lm: hybridlm.LM) -> hybridlm.LM:
    """The same with the sanitizer."""
    return hybridlm.load(text_lm.path, sanitize=True, **SETTINGS)
