"""Prompts of `hybridlm generate`: arguments, lines of a file, or lines of standard input."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from hybridlm.files.json_lines import Id, parse_object, read_id

MAX_SHOWN_FAULTS = 20
"""Bad lines that an error lists."""
NOT_LINES = (".csv", ".tsv", ".json", ".parquet", ".gz", ".zst")
"""Files with prompts between other characters: their lines would be answered as prompts."""
ITEMS = {"prompt": "a string", "text": "a string", "token_ids": "a list of token ids"}
"""Field of a JSON object -> its value."""


NamedPrompt = tuple[Id, str | list[Any]]
"""Id in the output, and text or token ids."""


def read_prompts(prompts: list[str] | None, file: Path | None) -> list[NamedPrompt]:
    """Return prompts of the command line, a file or standard input.

    Raises:
        ValueError: with all bad lines.
    """
    if prompts and file is not None:
        raise typer.BadParameter("give prompts as arguments or in a file, not both", param_hint="--file")
    if prompts:
        return [(None, prompt) for prompt in prompts]
    if file is not None:
        if file.suffix.lower() in NOT_LINES:
            raise ValueError(
                f"{file}: expected lines of text, or a .jsonl file, got {file.suffix}; write a line with"
                ' {"prompt": ...} for each prompt to a .jsonl file'
            )
        with file.open("rb") as lines:
            return _read_lines(lines, str(file), file.suffix.lower() == ".jsonl")
    if sys.stdin.isatty():
        hint = "give prompts as arguments, with --file or on standard input"
        raise typer.BadParameter(hint, param_hint="PROMPT")
    return _read_lines(sys.stdin.buffer, "standard input", False)


def _read_lines(source: Iterable[bytes], name: str, jsonl: bool) -> list[NamedPrompt]:
    prompts, faults, lines = [], [], list(source)
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, 1):
        line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
        try:
            prompts.append(_read_json(line) if jsonl else _read_text(line))
        except ValueError as error:
            faults.append(f"  line {number}: {error}")
    if faults:
        count = "1 bad line" if len(faults) == 1 else f"{len(faults):,} bad lines"
        hidden = len(faults) - MAX_SHOWN_FAULTS
        lines = faults[:MAX_SHOWN_FAULTS] + ([f"  and {hidden:,} more"] if hidden > 0 else [])
        raise ValueError("\n".join([f"{name}: {count}", *lines]))
    if not prompts:
        raise ValueError(f"{name}: has no prompts")
    return prompts


def _read_json(line: bytes) -> NamedPrompt:
    value = parse_object(line)
    names = [name for name in ITEMS if value.get(name) is not None]
    if len(names) != 1:
        raise ValueError(f"expected exactly one of {', '.join(ITEMS)}, got {', '.join(names) or 'none of them'}")
    item = value[names[0]]
    if not isinstance(item, list if names[0] == "token_ids" else str):
        raise ValueError(f"{names[0]}: expected {ITEMS[names[0]]}, got {type(item).__name__}")
    return read_id(value), item


def _read_text(line: bytes) -> NamedPrompt:
    if not line.strip():
        raise ValueError("expected a prompt, the line is blank")
    try:
        return None, line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"expected UTF-8: {error}") from error
