"""`hybridlm score`: log-probabilities of every row of a file."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hybridlm.cli.files.row_options import LOADED_WITH, RowOptions, end
from hybridlm.cli.options import Loading, Model, loads
from hybridlm.requests.interventions import Intervention, read_interventions
from ir_passes.files.strict_json import parse_json


@dataclass(frozen=True)
class Distributions:
    """Values of `LM.score_file` from the distribution at each position."""

    token_ids: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="Also write the log-probabilities and ranks of these ids at each position: 5,6,7 for all rows, or the "
            "name of the field or column that has them for each row.",
        ),
    ] = None
    top: Annotated[int, typer.Option(help="Also write this many most likely ids of each position.")] = 0
    start: Annotated[int | None, typer.Option(help="First token of a text or completion to report on.")] = None
    temperature: Annotated[float, typer.Option(help="Divides the logits.")] = 1.0
    entropy: Annotated[bool, typer.Option("--entropy", help="Also write the entropy at each position.")] = False


@dataclass(frozen=True)
class ProbeOptions:
    """Values of `LM.score_file` inside the model, and changes of them."""

    hidden_states: Annotated[
        str, typer.Option(metavar="INDICES", help="Also write these hidden states: 0,8 (0 is after the embedding).")
    ] = ""
    states: Annotated[bool, typer.Option("--states", help="Also write the recurrent states and convolutions.")] = False
    positions: Annotated[str, typer.Option(help="Where they are read: last or all.")] = "last"
    interventions: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Change what is inside the model (docs/research.md): the name of the field or column that has a list "
            "of objects for each row, or such a list, as JSON, for all rows.",
        ),
    ] = None


@loads(*LOADED_WITH)
def score(
    loading: Loading,
    model: Model,
    input: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help=".jsonl or .parquet; every line or row has an id, if you like, and text, token_ids, prompt and "
            "completion, or messages, whose last answer is scored; or .txt, a text per line.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help=".jsonl or .parquet, in the order of the input: id, token_ids, logprobs (of a text null first), "
            "sum_logprob, perplexity.",
        ),
    ],
    distributions: Distributions,
    probes: ProbeOptions,
    rows: RowOptions,
) -> None:
    """Write the log-probability of every token of every text of a file.

    An interrupted run continues when it is run again: finished rows are in OUTPUT.parts until all are done. A row that
    cannot be scored gets its id and "error" instead; the exit status is 3 then.
    """
    options: dict[str, Any] = asdict(distributions) | asdict(probes)
    options["token_ids"] = _ids(distributions.token_ids)
    options["hidden_states"] = _ids(probes.hidden_states or None) or []
    options["interventions"] = _changes(probes.interventions)
    rows.check(input, output)
    if (lm := loading.leading(model)) is not None:
        end(rows.answered(lm.score_file, "texts", input, output, **options))


def _ids(given: str | None) -> str | list[int] | None:
    """Return token ids, or the name of the field that has them."""
    parts = [] if given is None else given.split(",")
    whole = all(part.strip().removeprefix("-").isdecimal() for part in parts)
    return [int(part) for part in parts] if parts and whole else given


def _changes(given: str | None) -> str | list[Intervention] | None:
    """Return interventions, or the name of the field that has them."""
    if given is None or not given.lstrip().startswith("["):
        return given
    try:
        value = parse_json(given)
    except ValueError as error:
        raise ValueError(f"interventions: expected a field's name or a JSON list: {error}") from error
    return read_interventions(value, "interventions")
