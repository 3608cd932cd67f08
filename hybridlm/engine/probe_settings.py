"""Checked arguments of `score` and `generate` for reads and changes inside the model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probing import Probing, TextProbing, probe_sites
from hybridlm.files.atomic import new_path
from hybridlm.requests.captured_table import TABLE, CaptureTable
from hybridlm.requests.interventions import Intervention
from hybridlm.requests.probes import Probe, interventions_of, runs_of
from hybridlm.requests.sequence import Request
from hybridlm.requests.sites import ProbeSites


@dataclass(frozen=True)
class ProbeSettings:
    """Reads and changes inside the model: arguments of `LM.score`, `LM.generate`, `LM.stream` and `LM.chat`.

    Results have the arrays as `captured`; docs/research.md has examples.

    Attributes:
        hidden_states: indices as in `LM.forward`: 0 after the embedding, i after layer i - 1.
        positions: tokens to read at: "last" or "all"; for `LM.score` also indices or a mask, or one of these for each
            score.
        states: read recurrent states and convolution inputs after these tokens.
        capture_to: new folder for a safetensors file per result, or a Parquet file with a row per position, without
            `captured`. None: in memory.
        interventions: list of `Intervention` for all texts, or one for each score or prompt.
    """

    hidden_states: Any = ()
    positions: Any = "last"
    states: Any = False
    capture_to: Any = None
    interventions: Any = None

    def check(self) -> bool:
        """Return whether there are reads or changes; raise ValueError for fields without effect."""
        nothing = isinstance(self.hidden_states, list | tuple | np.ndarray) and not len(self.hidden_states)
        reads = not nothing or self.states is not False
        elsewhere = not isinstance(self.positions, str) or self.positions != "last"
        if not reads and (self.capture_to is not None or elsewhere):
            raise ValueError("positions, capture_to: expected hidden_states or states with them")
        return reads or self.interventions is not None

    def of_texts(self, engine: Engine, texts: Sequence[range], prefix: Prefix | None) -> TextProbing:
        """Return the reads and changes in texts."""
        sites = probe_sites(engine, "score")
        capture = sites.capture(self.hidden_states, self.states)
        changes = interventions_of(self.interventions, len(texts), "scores")
        if prefix is not None and any(changes):
            raise ValueError("interventions: expected no prefix with them, whose state is made; give whole texts")
        positions = self.positions
        nested = isinstance(positions, list | tuple) and any(
            isinstance(entry, list | tuple | str | np.ndarray) for entry in positions
        )
        if nested and len(positions) != len(texts):
            raise ValueError(f"positions: expected one list for each of {len(texts)} scores, got {len(positions)}")
        probes, lowest = list[Probe | None](), 0 if prefix is None else len(prefix)
        for i, span in enumerate(texts):
            entry, where = (positions[i], f"positions[{i}]") if nested else (positions, f"positions, score {i}")
            runs = runs_of(entry, span, lowest, where)
            probes.append(sites.probe(capture, runs, changes[i], span.stop, f"score {i}: interventions"))
        return TextProbing(engine, sites, self._target(sites, capture), probes, [span.stop for span in texts])

    def of_requests(self, engine: Engine, requests: Sequence[Request], n: int) -> tuple[list[Request], Probing]:
        """Return requests with reads and changes.

        Raises:
            TypeError, ValueError, FileExistsError, OSError: a wrong setting, or a folder that exists or cannot be made.
        """
        sites = probe_sites(engine, "generate")
        changes = interventions_of(self.interventions, len(requests) // n, "prompts")
        numbers = [request.index // n for request in requests]
        probed = [
            self._of_request(sites, request, changes[number], f"prompts[{number}]")
            for number, request in zip(numbers, requests, strict=True)
        ]
        target = self._target(sites, sites.capture(self.hidden_states, self.states))
        return probed, Probing(engine, sites, target)

    def of_request(self, probing: Probing, request: Request) -> Request:
        """Return a request of a session with its reads and changes; raises TypeError or ValueError."""
        (changes,) = interventions_of(self.interventions, 1, "request")
        return self._of_request(probing.sites, request, changes, f"request {request.index}")

    def _of_request(self, sites: ProbeSites, request: Request, changes: Sequence[Intervention], where: str) -> Request:
        capture = sites.capture(self.hidden_states, self.states)
        if self.positions not in ("last", "all"):
            raise ValueError(f"positions: expected last or all, got {self.positions!r}")
        first, context = len(request.prompt) - 1, sites.context
        if changes and request.start is not None:
            raise ValueError("interventions: expected no prefix with them, whose state is made; give whole prompts")
        if capture.captures and request.params.thinking_budget is not None:
            raise ValueError("thinking_budget: expected none with hidden_states or states")
        capture, end = replace(capture, last=self.positions == "last"), first + 1 + request.params.max_tokens
        runs = (range(first, context),)
        probe = sites.probe(capture, runs, changes, min(context, end), f"{where}: interventions")
        return replace(request, probe=probe)

    def _target(self, sites: ProbeSites, capture: Probe) -> Path | CaptureTable | None:
        if self.capture_to is None or Path(self.capture_to).suffix != TABLE:
            return folder_for(self.capture_to)
        states = list(sites.states.values()) if capture.states else []
        return CaptureTable(new_path(Path(self.capture_to)), capture.hidden_states, sites.hidden, states)


def folder_for(capture_to: Any) -> Path | None:
    """Make the folder for captured arrays; raises ValueError for a table's name, or OSError."""
    if capture_to is None:
        return None
    if Path(capture_to).suffix == TABLE:
        raise ValueError(f"capture_to: expected a folder for the requests of a session, got the table {capture_to}")
    folder = new_path(Path(capture_to))
    folder.mkdir()
    return folder
