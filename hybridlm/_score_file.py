"""Scoring a file of texts: JSON lines in, JSON lines out in the same order, nothing half written."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hybridlm._errors import NumericalError
from hybridlm._json_lines import Id, dump, finite, numbered_lines, parse_object, read_id, read_item, windows
from hybridlm._progress import file_progress
from hybridlm._replacing import replacing
from hybridlm._results import Score

Encode = Callable[[Any, str], tuple[int, ...]]
ScoreAll = Callable[[Sequence[tuple[int, ...]]], list[Score]]


@dataclass(frozen=True)
class ScoreFileReport:
    """What `LM.score_file` has done.

    Attributes:
        texts: lines that were scored.
        bad_lines: lines that became a row with `error`.
        tokens: tokens of the texts.
    """

    texts: int
    bad_lines: int
    tokens: int


@dataclass(frozen=True)
class _Line:
    """A line of the input: its token ids, or what is wrong with it."""

    number: int
    id: Id
    token_ids: tuple[int, ...] = ()
    fault: str | None = None


def score_file(
    encode: Encode,
    score: ScoreAll,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    strict: bool = False,
    window: int = 256,
    progress: bool | None = None,
) -> ScoreFileReport:
    """Score every line of a file; see `LM.score_file`.

    Args:
        encode: (text or token ids, what to call it) -> token ids that the model can score; raises ValueError or
            TypeError.
        score: scores of such token ids, in order.
        input, output: the files.
        strict: raise at the first bad line.
        window: lines that are scored together; fewer where they are long.
        progress: None shows a bar where standard error is a terminal.
    """
    texts = bad_lines = tokens = 0
    with (
        open(input, "rb") as source,
        replacing(Path(output), Path(input)) as target,
        file_progress(progress, "scoring") as bar,
    ):
        done, total = 0, os.fstat(source.fileno()).st_size
        for numbered in windows(numbered_lines(source), window):
            lines = [_read(number, line, encode) for number, line in numbered]
            if strict:
                _refuse(lines, input)
            scores = iter(score([line.token_ids for line in lines if line.fault is None]))
            for line in lines:
                scored = next(scores) if line.fault is None else None
                if scored is not None and scored.first_nan is not None:
                    fault = str(NumericalError(f"line {line.number}", scored.first_nan))
                    line, scored = _Line(line.number, line.id, fault=fault), None
                    if strict:
                        _refuse([line], input)
                if scored is None:
                    bad_lines += 1
                    target.write(dump({"id": line.id, "error": line.fault}) + "\n")
                else:
                    texts, tokens = texts + 1, tokens + len(scored.token_ids)
                    target.write(dump(_row(line.id, scored)) + "\n")
            done += sum(len(line) + 1 for _, line in numbered)
            bar(done, total)
    return ScoreFileReport(texts, bad_lines, tokens)


def _read(number: int, line: bytes, encode: Encode) -> _Line:
    id = None
    try:
        value = parse_object(line)
        id = read_id(value)
        key, item = read_item(value, ("text",))
        return _Line(number, id, encode(item, key))
    except (ValueError, TypeError) as error:
        return _Line(number, id, fault=f"line {number}: {error}")


def _refuse(lines: Iterable[_Line], input: str | os.PathLike[str]) -> None:
    for line in lines:
        if line.fault is not None:
            raise ValueError(f"{os.fspath(input)}: {line.fault}")


def _row(id: Id, score: Score) -> dict[str, Any]:
    return {
        "id": id,
        "token_ids": score.token_ids,
        "logprobs": [finite(value) for value in score.logprobs.tolist()],
        "sum_logprob": finite(score.sum_logprob),
        "perplexity": finite(score.perplexity),
    }
