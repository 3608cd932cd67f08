"""A run over the rows of a file, part by part."""

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hybridlm.files.parts import Origin, Parts, parts_of
from hybridlm.score_files.formats import format_version, target_for
from hybridlm.score_files.options import FileOptions
from hybridlm.score_files.order import Limits, SortWindow, in_windows, plan
from hybridlm.score_files.row_progress import score_progress
from hybridlm.score_files.rows import Columns, InputRow, OutputRow, ScoreTarget
from hybridlm.score_files.survey import MAX_WINDOW_BYTES, Survey, identity, survey
from hybridlm.score_files.task import RowTask, run_rows
from hybridlm.text_model import TokenCounts

MAX_WINDOW_IDS = 1 << 24
"""Ids in the reports of a window, one byte for each token; more ids shorten windows."""
MAX_SORT_IDS = 1 << 26
"""Ids in the reports of a sort window; its rows are joined in memory."""

SEVERAL = "expected one completion, an output with columns has none for a list of them; write .jsonl"


def run_file(task: RowTask, input: Path, path: Path, options: FileOptions) -> Any:
    """Compute every row of a file; return the task's report.

    Args:
        path: of the output, from `Task.check`.

    Raises:
        ValueError: a wrong row if `strict`; an input without rows or of another format; the output is the input or no
            regular file; its parts have another owner, input, model or settings.
        OSError: finished parts stay.
    """
    index, count = options.share
    window_rows = task.window if options.window is None else options.window
    limits = Limits(
        window_rows if task.most_rows is None else min(window_rows, task.most_rows),
        task.window_bytes or min(MAX_WINDOW_BYTES, MAX_WINDOW_IDS // task.ids),
        min(options.sort_window, MAX_SORT_IDS // task.ids),
    )
    with (
        closing(task.open(input, task.row_fields)) as source,
        parts_of(path) as parts,
        score_progress(options.progress, task.verb, lambda: task.counts().computed) as bar,
    ):
        version = identity(source.path)
        surveyed = survey(input, source, limits, options.strict, bar.read, task.rows)
        columns: Columns = {**task.columns, **(task.prompt_columns if surveyed.prompts else {})}
        target = target_for(path)(surveyed.ids, columns)
        parts.resume(_origin(task, path, surveyed, limits, options.shard), options.restart)
        earlier_rows = sum(part.rows for part in parts.done)
        if options.strict:
            _refuse(input, (part.error for part in parts.done))
        windows = surveyed.windows
        windows = windows[len(windows) * index // count : len(windows) * (index + 1) // count]
        try:
            all_rows, all_bytes = sum(window.rows for window in windows), sum(window.size for window in windows)
            bar.begin(all_rows, all_bytes, earlier_rows, sum(part.size for part in parts.done))
            order, number = list[SortWindow](), 0
            for sort, rows_of_parts in () if parts.joined else plan(source, windows, limits):
                order.append(sort)
                if number + sort[0] <= len(parts.done):
                    number += sort[0]
                    continue
                for rows in rows_of_parts:
                    number += 1
                    if number <= len(parts.done):
                        continue
                    size = sum(row.size for row in rows)
                    begin = task.counts()
                    with parts.finished() as finished, task.during(finished):
                        bar.begin_part(len(rows), size, lambda finished=finished: finished.tokens)
                        computed = run_rows(task, _checked(target, surveyed, rows), source.unit)
                    if options.strict:
                        _refuse(input, _errors(rows, computed))
                    _add(parts, target, computed, size, task.counts().since(begin))
                    bar.end_part()
            if identity(source.path) != version:
                raise ValueError(f"{input}: was changed during the run; restore its content, or use --restart")
            if not parts.joined:
                parts.join(lambda contents, file: target.join(in_windows(contents, order), file))
        except BaseException as error:
            parts.note(error, task.rows)
            raise
        return task.report(path, parts, earlier_rows)


def _origin(task: RowTask, output: Path, surveyed: Survey, limits: Limits, shard: str | None) -> Origin:
    return {
        "input": f"sha256 {surveyed.sha256}",
        **task.origin,
        "window": f"{limits.rows} {task.rows}, {limits.bytes} bytes",
        "sort window": f"{limits.sorted} bytes",
        # Parts of another format have an entry for a shard only.
        **({"shard": shard or "none"} if shard or task.format is None else {}),
        "output": format_version(output) if task.format is None else f"{task.format} in {format_version(output)}",
    }


def _checked(target: ScoreTarget, surveyed: Survey, rows: list[InputRow]) -> list[InputRow]:
    faults = {row.number: SEVERAL for row in rows if row.several and not target.several}
    faults |= {row.number: surveyed.repeated[row.number] for row in rows if row.number in surveyed.repeated}
    return [row._replace(fault=row.fault or faults.get(row.number)) for row in rows] if faults else rows


def _errors(rows: Sequence[InputRow], computed: Sequence[OutputRow]) -> list[str | None]:
    pairs = sorted(zip(rows, computed, strict=True), key=lambda pair: pair[0].number)
    return [output.error for _, output in pairs]


def _refuse(input: Path, errors: Iterable[str | None]) -> None:
    for error in errors:
        if error is not None:
            raise ValueError(f"{input}: {error}")


def _add(parts: Parts, target: ScoreTarget, rows: list[OutputRow], size: int, counts: TokenCounts) -> None:
    errors = [row.error for row in rows if row.error is not None]
    tokens, shifted, generated = (
        sum(getattr(row, name) for row in rows) for name in ("tokens", "shifted", "generated")
    )
    parts.add(
        target.part(rows), len(rows), tokens, len(errors), errors[0] if errors else None,
        saved=counts.saved, shifted=shifted, generated=generated, size=size,
        step_tokens=counts.step_tokens, step_places=counts.step_places,
    )  # fmt: skip
