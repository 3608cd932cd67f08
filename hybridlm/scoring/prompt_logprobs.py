"""Log-probabilities of request prompts, by the scorer; cached states have none."""

from collections.abc import Sequence

from hybridlm.engine.engine import Engine
from hybridlm.requests.results import PromptLogprobs, Score
from hybridlm.requests.sequence import Request
from hybridlm.scoring.scorer import scores


def prompt_logprobs(engine: Engine, requests: Sequence[Request]) -> dict[int, PromptLogprobs | int]:
    """Return the log-probabilities of prompts by request number.

    Equal prompts and common beginnings are scored once. A prompt without finite numbers has the index of its first
    wrong token.
    """
    results: dict[int, PromptLogprobs | int] = {}
    for top in sorted({request.params.prompt_logprobs or 0 for request in requests}):
        group = [request for request in requests if request.params.prompt_logprobs == top]
        prompts = list(dict.fromkeys(request.given for request in group))
        score_of = dict(zip(prompts, scores(engine, prompts, top), strict=True))
        results |= {request.index: _entries(score_of[request.given]) for request in group}
    return results


def _entries(score: Score) -> PromptLogprobs | int:
    if score.first_wrong is not None:
        return score.first_wrong
    tops = score.top_logprobs or [{} for _ in score.token_ids]
    tokens = zip(score.token_ids, score.logprobs.tolist(), tops, strict=True)
    return [None, *({**top, token: logprob} for token, logprob, top in list(tokens)[1:])]
