"""Scoring of a file of texts, window by window: in order, and without loss or duplicates if the run is killed."""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypedDict

from hybridlm.files.atomic import replaceable
from hybridlm.files.parts import Origin, Parts, parts_of
from hybridlm.progress import FileProgress
from hybridlm.requests.validation import check_count
from hybridlm.score_files.formats import check_source, format_version, open_source, target_for
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW, Limits, SortWindow, check_sort_window, in_windows, plan
from hybridlm.score_files.row_progress import Amount, score_progress
from hybridlm.score_files.rows import InputRow, OutputRow, ScoreTarget, TextSource
from hybridlm.score_files.score_rows import RowScorer, StepPlaces, score_rows
from hybridlm.score_files.survey import MAX_WINDOW_BYTES, Survey, identity, survey, used_twice

DEFAULT_WINDOW = 4096
"""Rows that are scored together, if they are short."""

MAX_WINDOW_IDS = 1 << 24
"""Ids reported about a window, if its tokens have a byte each; with many of them windows are shorter."""
MAX_SORT_IDS = 1 << 26
"""Ids reported about a sort window, whose rows are put back into their places together."""

SEVERAL = "expected one completion, a Parquet output has no column for a list of them; write .jsonl"
"""Fault of a row whose completions do not fit the output."""


class FileOptions(TypedDict, total=False):
    """Options of every file of texts; see `LM.score_file`."""

    strict: bool
    window: int
    shard: str | None
    restart: bool
    progress: FileProgress
    sort_window: int


@dataclass(frozen=True)
class ScoreFileReport:
    """Result of `LM.score_file`.

    Attributes:
        output: the file that was written; the name includes the shard.
        texts: rows that were scored.
        errors: rows that have an error instead.
        tokens: tokens of the texts.
        kept: how many of these rows an earlier, interrupted run had done.
        prefix_tokens_saved: tokens that were not computed again because rows begin alike, by earlier runs too.
        shifted: completions that are scored from within the prompt, because a token spans both.
        step_tokens: tokens that the steps consumed, by earlier runs too; not compared.
        step_places: places for tokens in these steps, lanes x chunk each; not compared.
    """

    output: Path
    texts: int
    errors: int
    tokens: int
    kept: int
    prefix_tokens_saved: int = 0
    shifted: int = 0
    step_tokens: int = field(default=0, compare=False)
    step_places: int = field(default=0, compare=False)

    @property
    def token_share(self) -> float | None:
        """Share of tokens among the computed places, the rest is padding; None without a step."""
        return self.step_tokens / self.step_places if self.step_places else None


def score_file(
    scorer: RowScorer,
    input: str | os.PathLike[str],
    output: str | os.PathLike[str],
    strict: bool = False,
    window: int = DEFAULT_WINDOW,
    shard: str | None = None,
    restart: bool = False,
    progress: FileProgress = None,
    sort_window: int = DEFAULT_SORT_WINDOW,
) -> ScoreFileReport:
    """Score every row of a file; see `LM.score_file` for the other arguments.

    Args:
        scorer: scores the texts.
        progress: None shows a bar where standard error is a terminal; "lines" prints a line now and then elsewhere.
    """
    texts, (index, count) = Path(input), _shard(shard)
    requests = scorer.request is not None
    path = check_file(texts, Path(output), requests=requests, window=window, shard=shard, sort_window=sort_window)
    make_target, source = target_for(path), open_source(texts, scorer.row_fields, scorer.request)
    window = window if scorer.most_rows is None else min(window, scorer.most_rows)
    window_bytes = min(MAX_WINDOW_BYTES, MAX_WINDOW_IDS // scorer.ids)
    limits = Limits(window, window_bytes, min(sort_window, MAX_SORT_IDS // scorer.ids))
    with parts_of(path) as parts, score_progress(progress, scorer.computed) as bar:
        before = identity(texts)
        found = survey(texts, source, window, strict, bar.read, window_bytes)
        target = make_target(found.ids, {**scorer.columns, **(scorer.prompt_columns if found.prompts else {})})
        parts.resume(_origin(scorer, path, found, limits, shard), restart)
        kept = sum(part.rows for part in parts.done)
        if strict:
            _refuse(texts, (part.error for part in parts.done))
        mine = found.windows[len(found.windows) * index // count : len(found.windows) * (index + 1) // count]
        try:
            total = Amount(sum(rows.rows for rows in mine), sum(rows.size for rows in mine))
            bar.begin(total, Amount(kept, sum(part.size for part in parts.done)))
            order, number = list[SortWindow](), 0
            for sort, parts_of_rows in () if parts.joined else plan(source, mine, limits):
                order.append(sort)
                if number + sort.parts <= len(parts.done):
                    number += sort.parts
                    continue
                for rows in parts_of_rows:
                    number += 1
                    if number <= len(parts.done):
                        continue
                    size = sum(row.size for row in rows)
                    finished = parts.finished()
                    bar.begin_part(Amount(len(rows), size), lambda finished=finished: finished.tokens)
                    saved, computed = scorer.saved(), scorer.step_places()
                    with scorer.keeping(finished):
                        scored = score_rows(scorer, _checked(source, target, found, rows), source.unit)
                    if strict:
                        _refuse(texts, _errors(rows, scored))
                    places = scorer.step_places() - computed
                    _add(parts, target, scored, scorer.saved() - saved, size, places)
                    bar.end_part()
            if identity(texts) != before:
                raise ValueError(
                    f"{texts}: was changed while it was read; give it the content that it had, or --restart"
                )
            if not parts.joined:
                parts.join(lambda contents, file: target.join(in_windows(contents, order), file))
        except BaseException as error:
            parts.note(error, "rows")
            raise
        return _report(path, parts, kept)


def check_file(
    input: Path,
    output: Path,
    *,
    requests: bool = False,
    window: int = DEFAULT_WINDOW,
    shard: str | None = None,
    sort_window: int = DEFAULT_SORT_WINDOW,
) -> Path:
    """Return the path of the output; check what needs no model, so that none is loaded for a wrong name.

    Args:
        input, output, window, shard, sort_window: as for `LM.score_file`.
        requests: the rows are requests, which JSON lines alone can hold.

    Raises:
        ValueError, OSError, MissingExtra: as `LM.score_file`, of the names and places of the files and of the options.
    """
    check_count(window, "window")
    check_sort_window(sort_window)
    path = _output(output, input, *_shard(shard))
    target_for(path)
    check_source(input, requests)
    return path


def _shard(shard: str | None) -> tuple[int, int]:
    """Parse a shard into its index and the number of shards; (0, 1) for None."""
    match = re.fullmatch(r"(\d+)/(\d+)", "0/1" if shard is None else shard)
    if match is None or not int(match[1]) < int(match[2]):
        raise ValueError(f"shard: expected i/n, of 0/n to n-1/n, got {shard!r}")
    return int(match[1]), int(match[2])


def _output(output: Path, input: Path, index: int, count: int) -> Path:
    """Return the output's path; a shard has its number in the name, so that all can be given the same output."""
    if count > 1:
        output = output.with_name(f"{output.stem}-{index:05}-of-{count:05}{output.suffix}")
    return replaceable(output, input)


def _origin(scorer: RowScorer, output: Path, found: Survey, limits: Limits, shard: str | None) -> Origin:
    """Return everything that the bytes of the output depend on."""
    return {
        "input": f"sha256 {found.sha256}",
        **scorer.depends_on,
        "window": f"{limits.rows} rows, {limits.bytes} bytes",
        "sort window": f"{limits.sorted} bytes",
        "shard": shard or "none",
        "output": format_version(output),
    }


def _checked(source: TextSource, target: ScoreTarget, found: Survey, rows: list[InputRow]) -> list[InputRow]:
    """Return the same rows, with a fault for what the output cannot hold, or an id that an earlier row has."""
    faults = {row.number: SEVERAL for row in rows if row.several and not target.several}
    faults |= {
        row.number: used_twice(source, found.repeated[row.number]) for row in rows if row.number in found.repeated
    }
    return [row._replace(fault=row.fault or faults.get(row.number)) for row in rows] if faults else rows


def _errors(rows: Sequence[InputRow], scored: Sequence[OutputRow]) -> list[str | None]:
    """Return the errors of scored rows in the order of the input."""
    return [one.error for _, one in sorted(zip(rows, scored, strict=True), key=lambda pair: pair[0].number)]


def _refuse(input: Path, errors: Iterable[str | None]) -> None:
    for error in errors:
        if error is not None:
            raise ValueError(f"{input}: {error}")


def _add(parts: Parts, target: ScoreTarget, rows: list[OutputRow], saved: int, size: int, places: StepPlaces) -> None:
    errors = [row.error for row in rows if row.error is not None]
    tokens, shifted = sum(row.tokens for row in rows), sum(row.shifted for row in rows)
    error = errors[0] if errors else None
    counts = {"saved": saved, "shifted": shifted, "size": size, **asdict(places)}
    parts.add(target.part(rows), len(rows), tokens, len(errors), error, **counts)


def _report(output: Path, parts: Parts, kept: int) -> ScoreFileReport:
    names = "rows", "tokens", "errors", "saved", "shifted", "step_tokens", "step_places"
    rows, tokens, errors, saved, shifted, *places = (sum(getattr(part, name) for part in parts.done) for name in names)
    return ScoreFileReport(output, rows - errors, errors, tokens, kept, saved, shifted, *places)
