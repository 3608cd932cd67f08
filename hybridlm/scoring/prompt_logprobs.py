"""Log-probabilities of request prompts, computed by scoring steps: cached states lack them."""

from collections.abc import Sequence
from functools import partial

from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.requests.results import PromptLogprobs
from hybridlm.requests.sequence import Request
from hybridlm.scoring.scorer import score_of, scoring
from hybridlm.scoring.shared_prefixes import texts_to_read
from hybridlm.scoring.text import ScoredText


def add_prompts(engine: Engine, scheduler: Scheduler, requests: Sequence[Request]) -> dict[ScoredText, list[int]]:
    """Queue prompts to be scored, equal ones once; return the requests of each."""
    queued: dict[ScoredText, list[int]] = {}
    for top in sorted({request.params.prompt_logprobs or 0 for request in requests}):
        group = [request for request in requests if request.params.prompt_logprobs == top]
        requests_of: dict[tuple[int, ...], list[int]] = {}
        for request in group:
            requests_of.setdefault(request.given, []).append(request.index)
        reading, prompts = scoring(engine, len(requests_of), top), dict(enumerate(requests_of))
        texts = texts_to_read(reading, prompts, partial(ScoredText, top_count=top))
        queued |= {text: requests_of[text.tokens] for text in texts if text.index is not None}
        scheduler.add_texts(reading, texts, max(request.priority for request in group))
    return queued


def prompt_logprobs(text: ScoredText) -> PromptLogprobs | int:
    """Return a prompt's log-probabilities, or the index of its first token without finite ones."""
    score = score_of(text, with_top=True)
    if score.first_wrong is not None:
        return score.first_wrong
    tops = score.top_logprobs or [{} for _ in score.token_ids]
    tokens = zip(score.token_ids, score.logprobs.tolist(), tops, strict=True)
    return [None, *({**top, token: logprob} for token, logprob, top in list(tokens)[1:])]
