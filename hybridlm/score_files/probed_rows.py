"""Reads and changes inside the model for the rows of a file."""

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
"""Reads of a window of rows as long as the context; a single row may read more."""


@dataclass(frozen=True)
class ProbedRows:
    """Reads and changes inside the model, for all rows or by row."""

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
        return self.interventions if isinstance(self.interventions, str) else None

    @property
    def columns(self) -> Columns:
        return {"positions": "ids", **dict.fromkeys(self._arrays(), "floats")} if self.capture.captures else {}

    @property
    def most_rows(self) -> int | None:
        """Maximum rows of a window; None without reads."""
        if not self.capture.captures:
            return None
        numbers = sum(self._arrays().values())
        row = 4 * numbers * (self.sites.context if self.positions == "all" else 1)
        return max(1, MAX_CAPTURED_BYTES // row)

    @property
    def origin(self) -> dict[str, str | int]:
        reads = {"reads": f"{', '.join(self._arrays())} at {self.positions}"} if self.capture.captures else {}
        changes = f"field {self.interventions}" if isinstance(self.interventions, str) else digest(self.interventions)
        return {**reads, "interventions": changes}

    def _arrays(self) -> dict[str, int]:
        hidden = {HIDDEN.format(i): self.sites.hidden for i in self.capture.hidden_states}
        return hidden | {
            site.name: int(np.prod(site.shape)) for site in self.sites.states.values() if self.capture.states
        }

    def probes(self, texts: Sequence[ScoredIds], field: Any, where: str) -> list[Probe | None]:
        """Return the reads and changes in a row's texts, one per completion.

        Raises:
            TypeError, ValueError: a wrong intervention, or several texts to read from.
        """
        if self.capture.captures and len(texts) != 1:
            raise ValueError(f"{where}: expected one completion with hidden_states or states, got {len(texts)}")
        name = self.field or "interventions"
        changes = self.interventions if isinstance(self.interventions, list) else read_interventions(field, name)
        probes: list[Probe | None] = []
        for text in texts:
            span = range(text.prompt, len(text.token_ids))
            runs = runs_of(self.positions, span, 0, "positions") if self.capture.captures else ()
            probes.append(self.sites.probe(self.capture, runs, changes, span.stop, name))
        return probes
