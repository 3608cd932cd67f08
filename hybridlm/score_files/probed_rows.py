"""Rows of a file that are scored with reads and changes inside the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridlm.requests.captured import HIDDEN
from hybridlm.requests.interventions import Intervention, digest, read_interventions
from hybridlm.requests.probes import Probe, runs_of
from hybridlm.requests.sites import ProbeSites
from hybridlm.score_files.rows import Columns
from hybridlm.scoring.items import ScoredIds

MAX_CAPTURED_BYTES = 1 << 28
"""Maximum bytes that the rows of a window read, if they have as many tokens as the context; one row may read more."""


@dataclass(frozen=True)
class ProbedRows:
    """Reads and changes inside the model, the same for all rows or by row.

    Attributes:
        sites: of the model.
        capture: the arrays that are read.
        positions: "last" or "all".
        interventions: what is changed in all rows, or the name of the field that has it for each row.
    """

    sites: ProbeSites
    capture: Probe
    positions: Any
    interventions: list[Intervention] | str

    def __post_init__(self) -> None:
        if self.positions not in ("last", "all"):
            raise ValueError(f"positions: expected last or all for the rows of a file, got {self.positions!r}")
        if isinstance(self.interventions, list):
            # A position beyond the context fits no row.
            self.sites.probe(Probe(), (), self.interventions, self.sites.context, "interventions")

    @property
    def field(self) -> str | None:
        """The field or column that has the interventions of each row; None for none."""
        return self.interventions if isinstance(self.interventions, str) else None

    @property
    def columns(self) -> Columns:
        """The columns of what is read."""
        return {"positions": "ids", **dict.fromkeys(self._arrays(), "floats")} if self.capture.captures else {}

    @property
    def most_rows(self) -> int | None:
        """Maximum number of rows of a window; None where nothing is read."""
        if not self.capture.captures:
            return None
        numbers = sum(self._arrays().values())
        row = 4 * numbers * (self.sites.context if self.positions == "all" else 1)
        return max(1, MAX_CAPTURED_BYTES // row)

    @property
    def origin(self) -> dict[str, str | int]:
        """Everything that the bytes of the output depend on, but the rows."""
        reads = {"reads": f"{', '.join(self._arrays())} at {self.positions}"} if self.capture.captures else {}
        changes = f"field {self.interventions}" if isinstance(self.interventions, str) else digest(self.interventions)
        return {**reads, "interventions": changes}

    def _arrays(self) -> dict[str, int]:
        """Return the names of what is read, and how many numbers each has at a position."""
        hidden = {HIDDEN.format(i): self.sites.hidden for i in self.capture.hidden_states}
        return hidden | {
            site.name: int(np.prod(site.shape)) for site in self.sites.states.values() if self.capture.states
        }

    def probes(self, texts: Sequence[ScoredIds], given: Any, where: str) -> list[Probe | None]:
        """Return what is read and changed in the texts of a row.

        Args:
            texts: one for each completion.
            given: value of the row's field of interventions.
            where: name of the text in messages.

        Raises:
            TypeError, ValueError: an intervention is wrong or does not fit, or there are several texts to read from.
        """
        if self.capture.captures and len(texts) != 1:
            raise ValueError(f"{where}: expected one completion with hidden_states or states, got {len(texts)}")
        name = self.field or "interventions"
        changes = self.interventions if isinstance(self.interventions, list) else read_interventions(given, name)
        found = []
        for text in texts:
            span = range(text.prompt, len(text.token_ids))
            runs = runs_of(self.positions, span, 0, "positions") if self.capture.captures else ()
            found.append(self.sites.probe(self.capture, runs, changes, span.stop, name))
        return found
