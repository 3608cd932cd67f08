"""The result of a run over the rows of a file."""

from dataclasses import dataclass, field
from pathlib import Path

from hybridlm.files.parts import Parts


@dataclass(frozen=True)
class ScoreFileReport:
    """Result of a run over the rows of a file, as of `LM.score_file`.

    Attributes:
        output: the file that was written; the name includes the shard.
        texts: rows that were computed.
        errors: rows that have an error instead.
        tokens: tokens of the texts.
        kept: number of these rows that an earlier, interrupted run had finished.
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


def total(parts: Parts, *names: str) -> list[int]:
    """Return sums over all parts of fields of their records."""
    return [sum(getattr(part, name) for part in parts.done) for name in names]


def file_report(output: Path, parts: Parts, earlier_rows: int) -> ScoreFileReport:
    """Return the report of a run.

    Args:
        output: the written file.
        parts: all parts of the output.
        earlier_rows: rows that an earlier run had finished.
    """
    rows, tokens, errors, *counts = total(
        parts, "rows", "tokens", "errors", "saved", "shifted", "step_tokens", "step_places"
    )
    return ScoreFileReport(output, rows - errors, errors, tokens, earlier_rows, *counts)
