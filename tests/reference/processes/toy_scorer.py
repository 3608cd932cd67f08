"""Tasks without a model: a log-probability identifies its token."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import hybridlm
from hybridlm import FileOptions
from hybridlm.engine.inputs import Inputs
from hybridlm.files.finished import FinishedTexts, finished_files
from hybridlm.openai_batch.answers import answers
from hybridlm.openai_batch.batch_task import BatchTask, batch_rows
from hybridlm.requests.results import first_not_finite
from hybridlm.score_files.run_file import run_file
from hybridlm.score_files.score_task import scored_rows
from hybridlm.score_files.task import RowTask, Task
from hybridlm.scoring.items import ScoredIds

CONTEXT = 8


def encode(item: Any, where: str) -> tuple[int, ...]:
    """Bytes of a text, at most `CONTEXT`."""
    ids = tuple(item.encode()) if isinstance(item, str) else tuple(item)
    if not 0 < len(ids) <= CONTEXT:
        raise ValueError(f"{where}: has {len(ids)} tokens")
    return ids


def score_of(ids: Sequence[int]) -> hybridlm.Score:
    """-t for token t; 255 is NaN, 254 overflows a perplexity, 253 is impossible."""
    values = [math.nan, *(-float(token) for token in ids[1:])]
    values = [math.nan if v == -255 else -1000.0 if v == -254 else -math.inf if v == -253 else v for v in values]
    logprobs = np.array(values, np.float32)
    wrong = first_not_finite([logprobs[1:]])
    return hybridlm.Score(
        list(ids), logprobs, np.zeros(len(ids), bool), None, first_wrong=None if wrong is None else wrong + 1
    )


def score(texts: Sequence[tuple[int, ...]]) -> list[hybridlm.Score]:
    """Scores of every text."""
    return [score_of(ids) for ids in texts]


def toy(
    score: Callable[[Sequence[tuple[int, ...]]], list[hybridlm.Score]] = score,
    encode: Callable[[Any, str], tuple[int, ...]] = encode,
) -> RowTask:
    """The task of scores, by functions of token ids and of texts."""

    scores = lambda texts, question, probes: score(texts)
    return scored_rows(lambda item, where: [ScoredIds(encode(item, where))], scores, {"model": "toy"})


TOY = toy()


def interrupted(function: Callable[..., Any], *calls: int, error: BaseException | None = None) -> Callable[..., Any]:
    """Return the function, interrupted in the calls of these numbers, from 0."""
    numbers = itertools.count()

    def run(*args: Any, **options: Any) -> Any:
        if next(numbers) in calls:
            raise error or KeyboardInterrupt
        return function(*args, **options)

    return run


def run_toy(task: RowTask, input: str | Path, output: str | Path, **options: Any) -> Any:
    """Run a task over a file; returns its report."""
    settings, check = FileOptions(**options), Task.check if task.format is None else BatchTask.check
    return run_file(task, Path(input), check(Path(input), Path(output), settings), settings)


class NoRequests:
    """A run of the engine that never has any."""

    busy = False

    def __enter__(self) -> "NoRequests":
        return self

    def __exit__(self, *error: Any) -> None:
        pass


def toy_model(inputs: Inputs, session: Callable[[], Any], scores: Callable[..., Any], name: str) -> Any:
    """What a batch needs of a `TextModel`."""
    engine = SimpleNamespace(clear_prefix_cache=lambda: None)
    fields = {"path": Path(name), "engine": engine, "keeping": nullcontext}
    return SimpleNamespace(inputs=inputs, session=session, scores=scores, **fields)


NO_MODEL = batch_rows(
    toy_model(Inputs(None, 97, 256, (), lambda snapshot: None), NoRequests, lambda texts, top: [], "none"), {}
)
"""Answers a batch of wrong lines only."""


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    """Write objects, or raw bytes, as lines; returns the path."""
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"".join(line + b"\n" for line in raw))
    return path


def write_texts(path: Path) -> Path:
    """Write forty rows of 1 to 40 tokens, some with common prefixes; returns the path."""
    rng = np.random.default_rng(0)
    stem = rng.integers(3, 90, 12).tolist()
    rows = [[*(stem if i % 4 == 0 else []), *rng.integers(3, 90, 1 + i % 29).tolist()] for i in range(40)]
    return write_lines(path, [{"id": i, "token_ids": row} for i, row in enumerate(rows)])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of strict JSON lines."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    text = path.read_text()
    assert text.isascii() and (not text or text.endswith("\n"))
    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def kill_after_nine_texts(model: str | Path | None, source: Path, output: Path, method: str) -> None:
    """Run a method of a model over a file in a process that is killed after nine finished texts."""
    command = [sys.executable, Path(__file__).with_name("kill_texts.py"), model, source, output, "9", method]
    environment = {**os.environ, "PYTHONPATH": str(Path(hybridlm.__file__).parents[1])}
    killed = subprocess.run([*map(str, command)], env=environment, capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(finished_files(output.with_name(f"{output.name}.parts"))) == 9


def answers_kept_in(
    folder: Path, model: Any, requests: Sequence[Any], clock: Callable[[], float], begun: int = 0
) -> list[Any]:
    """Answers of lines of a batch file, kept in a folder every few seconds of this clock."""
    with FinishedTexts(folder, 0, clock, begun) as texts:
        return answers(model, requests, texts)
