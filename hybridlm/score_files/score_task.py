"""The task of scores: log-probabilities, distributions, and probes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridlm.engine.config import option
from hybridlm.engine.probe_settings import ProbeSettings
from hybridlm.engine.probing import TextProbing, probe_sites
from hybridlm.files.parts import Origin
from hybridlm.requests.captured import HIDDEN
from hybridlm.requests.interventions import Intervention, read_interventions
from hybridlm.requests.probes import Probe, interventions_of
from hybridlm.requests.results import Score
from hybridlm.score_files.probed_rows import ProbedRows
from hybridlm.score_files.rows import Columns, InputRow, Kind, Lists, RowFields
from hybridlm.score_files.task import RowResult, RowTask, Task, row_result
from hybridlm.scoring.distributions import NOTHING_ASKED, DistributionSettings, Question, TextQuestion, about
from hybridlm.scoring.items import ScoredIds, own
from hybridlm.text_model import TextModel
from ir_passes.files.strict_json import parse_json

SCORES: dict[str, Kind] = {"token_ids": "ids", "logprobs": "floats", "sum_logprob": "number", "perplexity": "number"}
PROMPTS: dict[str, Kind] = {"boundary_shift": "count"}
"""Further columns with prompts or messages; null for a text."""
DISTRIBUTIONS: dict[str, Kind] = {
    "ranks": "ranks",
    "entropy": "floats",
    "top_token_ids": "id lists",
    "top_logprobs": "float lists",
    "chosen_token_ids": "id lists",
    "chosen_logprobs": "float lists",
    "chosen_ranks": "id lists",
}
"""Without a prediction, or before `start`, rank and entropy are null and lists empty."""


def score_columns(settings: DistributionSettings) -> Columns:
    if not settings.given:
        return SCORES
    groups = {"entropy": bool(settings.entropy), "top": bool(settings.top), "chosen": settings.token_ids is not None}
    names = [name for name in DISTRIBUTIONS if groups.get(name.partition("_")[0], True)]
    return {**SCORES, **{name: DISTRIBUTIONS[name] for name in names}}


def score_fields(score: Score) -> dict[str, Any]:
    """Return the columns of a score; reads inside the model are flat."""
    fields: dict[str, Any] = {}
    if score.prefix_tokens:
        fields = {"prompt_tokens": score.prefix_tokens, "boundary_shift": score.boundary_shift}
    fields |= {name: getattr(score, name) for name in ("ranks", "entropy")}
    for name, part in (("top", score.top), ("chosen", score.chosen)):
        if part is not None:
            fields[f"{name}_token_ids"] = Lists(part.token_ids, part.offsets)
            fields[f"{name}_logprobs"] = Lists(part.logprobs, part.offsets)
            fields[f"{name}_ranks"] = Lists(part.ranks, part.offsets)
    columns = {name: value for name, value in fields.items() if value is not None and name != "top_ranks"}
    fields = {name: getattr(score, name) for name in SCORES} | columns  # a perplexity may be None
    if score.captured is not None:
        hidden = {HIDDEN.format(i): rows for i, rows in score.captured.hidden_states.items()}
        arrays = {**hidden, **score.captured.states}
        fields |= {"positions": score.captured.positions}
        fields |= {name: np.asarray(array, np.float32).reshape(-1) for name, array in arrays.items()}
    return fields


def _ids(text: str) -> str | list[int]:
    parts = text.split(",")
    numbers = [part.strip().removeprefix("-").isdecimal() for part in parts]
    if any(numbers) and not all(numbers):
        wrong = parts[numbers.index(False)]
        raise ValueError(f"{text}: expected whole numbers with commas between them, got {wrong!r}")
    return [int(part) for part in parts] if all(numbers) else text


def _changes(text: str) -> str | list[Intervention]:
    if not text.lstrip().startswith("["):
        return text
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"interventions: expected a field's name or a JSON list: {error}") from error
    return read_interventions(value, "interventions")


@dataclass(frozen=True, kw_only=True)
class ScoreTask(Task):
    """Log-probability of every token of each row, as `LM.score` computes them.

    Columns: "token_ids", "logprobs" (the first is null), "sum_logprob", "perplexity", and with prompts
    "boundary_shift".

    Attributes:
        token_ids: chosen ids with log-probabilities and ranks: a list for all rows, or the field with the ids of each
            row.
        top, start, temperature, entropy: as for `LM.score`.
        hidden_states, states, positions: as for `LM.score`, at the last or all tokens of each row: columns "positions",
            "hidden_states[i]" and states, flat over positions. Not for lists of completions.
        interventions: a list for all rows, or the field with objects of `kind` and arguments of this `Intervention`
            method. Rows with changes share no prefixes.
    """

    token_ids: str | Sequence[int] | None = option(
        None,
        "Also write the log-probabilities and ranks of these ids at each position: 5,6,7 for all rows, or the name of "
        "the field or column that has them for each row.",
        metavar="IDS",
        read=_ids,
    )
    top: int = option(0, "Also write this many most likely ids of each position.")
    start: int | None = option(None, "First token of a text or completion to report on.")
    temperature: float = option(1.0, "Divides the logits.")
    entropy: bool = option(False, "Also write the entropy at each position.")
    hidden_states: Sequence[int] = option(
        (), "Also write these hidden states: 0,8 (0 is after the embedding).", metavar="INDICES", read=_ids
    )
    states: bool = option(False, "Also write the recurrent states and convolutions.")
    positions: str = option("last", "Where they are read: last or all.")
    interventions: str | Sequence[Intervention] | None = option(
        None,
        "Change what is inside the model (docs/research.md): the name of the field or column that has a list of "
        "objects for each row, or such a list, as JSON, for all rows.",
        metavar="FIELD",
        read=_changes,
    )

    def on(self, model: TextModel) -> RowTask:
        vocab_size = model.config.vocab_size
        settings = DistributionSettings(self.token_ids, self.top, self.start, self.temperature, self.entropy)

        def scores(
            ids: Sequence[tuple[int, ...]], question: Question | None, probes: Sequence[Probe | None]
        ) -> list[Score]:
            probing = None
            if any(probe is not None for probe in probes):
                lengths = [len(text) for text in ids]
                probing = TextProbing(model.engine, probe_sites(model.engine, "score_file"), None, probes, lengths)
            return model.scores(ids, question=question, probing=probing, full_lanes=True)

        return scored_rows(
            model.items.read, scores, model.origin(), settings.of_file(vocab_size), vocab_size, self._probed(model),
            counts=model.counter(), during=model.keeping,
        )  # fmt: skip

    def _probed(self, model: TextModel) -> ProbedRows | None:
        settings = ProbeSettings(self.hidden_states, self.positions, self.states)
        if not settings.check() and self.interventions is None:
            return None
        sites = probe_sites(model.engine, "score_file")
        capture = sites.capture(self.hidden_states, self.states)
        changes = self.interventions
        if not isinstance(changes, str):
            (changes,) = interventions_of(changes, 1, "rows")
        return ProbedRows(sites, capture, self.positions, changes)


ScoredRow = tuple[list[ScoredIds], list[TextQuestion], list[Probe | None], bool]
"""Texts of a row, one per completion, with questions and probes; True for a list of completions."""


def scored_rows(
    encode: Callable[[Any, str], list[ScoredIds]],
    scores: Callable[[Sequence[tuple[int, ...]], Question | None, Sequence[Probe | None]], list[Score]],
    origin: Origin,
    settings: DistributionSettings = NOTHING_ASKED,
    vocab_size: int = 0,
    probed: ProbedRows | None = None,
    **fields: Any,
) -> RowTask:
    """Return the task of scores.

    Args:
        encode: (item, name in messages) -> token ids of each completion.
        scores: (token ids, questions, probes) -> scores, a function of order and content.
        origin: everything else that scores depend on.
    """
    chosen = settings.token_ids
    field = chosen if isinstance(chosen, str) else None

    def read(row: InputRow) -> ScoredRow:
        texts, questions, probes = encode(row.item, row.key), list[TextQuestion](), list[Probe | None]()
        if settings.given:
            ids = (chosen if field is None else row.chosen) or ()
            questions = [about(text, settings.start, ids, field or "token_ids", vocab_size) for text in texts]
        if probed is not None:
            probes = probed.probes(texts, row.interventions, row.key)
        return texts, questions, probes, row.several

    def run(rows: Sequence[ScoredRow]) -> list[RowResult]:
        row_questions = [question for _, questions, _, _ in rows for question in questions]
        question = settings.together(row_questions) if settings.given else None
        ids = [text.token_ids for texts, *_ in rows for text in texts]
        results = iter(scores(ids, question, [probe for _, _, probes, _ in rows for probe in probes]))
        return [_values([own(next(results), ids) for ids in texts], several) for texts, _, _, several in rows]

    return RowTask(
        columns={**score_columns(settings), **({} if probed is None else probed.columns)},
        read=read,
        run=run,
        origin={
            **origin,
            **({"distributions": repr(settings)} if settings.given else {}),
            **({} if probed is None else probed.origin),
        },
        prompt_columns=PROMPTS,
        row_fields=RowFields(field, None if probed is None else probed.field),
        ids=max(settings.top + (0 if chosen is None or isinstance(chosen, str) else len(chosen)), 1),
        most_rows=None if probed is None else probed.most_rows,
        **fields,
    )


def _values(scores: list[Score], several: bool) -> RowResult:
    wrong = next((score.first_wrong for score in scores if score.first_wrong is not None), None)
    fields = score_fields(scores[0])
    if several:
        # A token that spans the boundary leaves fewer prompt tokens before it.
        prompt = max(score.prefix_tokens for score in scores)
        fields = {"prompt_tokens": prompt, "completions": list(map(score_fields, scores))}
    shifted = sum(score.boundary_shift > 0 for score in scores)
    return row_result(fields, len(scores[0].token_ids), wrong, shifted)
