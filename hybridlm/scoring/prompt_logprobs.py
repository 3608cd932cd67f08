"""Log-probabilities of request prompts, computed by scoring steps: cached states lack them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hybridlm.engine.engine import Engine
from hybridlm.engine.scheduler import Scheduler
from hybridlm.requests.results import PromptLogprobs
from hybridlm.requests.sequence import Request
from hybridlm.scoring.scorer import score_of, scoring
from hybridlm.scoring.shared_prefixes import texts_to_read
from hybridlm.scoring.text import ScoredText


@dataclass(eq=False)
class PromptText(ScoredText):
    """A prompt that is scored."""

    requests: list[int] = field(default_factory=list)


def add_prompts(engine: Engine, scheduler: Scheduler, requests: Sequence[Request]) -> dict[int, PromptText]:
    """Queue prompts to be scored, equal ones and common prefixes once; return them by request."""
    queued: dict[int, PromptText] = {}
    for top in sorted({request.params.prompt_logprobs or 0 for request in requests}):
        group = [request for request in requests if request.params.prompt_logprobs == top]
        requests_of: dict[tuple[int, ...], list[int]] = {}
        for request in group:
            requests_of.setdefault(request.given, []).append(request.index)
        reading, prompts = scoring(engine, len(requests_of), top), dict(enumerate(requests_of))
        texts = texts_to_read(reading, prompts, PromptText)
        for text in texts:
            if text.index is not None:
                text.requests = requests_of[text.tokens]
                queued |= dict.fromkeys(text.requests, text)
        scheduler.add_texts(reading, texts, max(request.priority for request in group))
    return queued


def prompt_logprobs(text: PromptText) -> PromptLogprobs | int:
    """Return a prompt's log-probabilities, or the index of its first token without finite ones."""
    score = score_of(text, with_top=True)
    if score.first_wrong is not None:
        return score.first_wrong
    tops = score.top_logprobs or [{} for _ in score.token_ids]
    tokens = zip(score.token_ids, score.logprobs.tolist(), tops, strict=True)
    return [None, *({**top, token: logprob} for token, logprob, top in list(tokens)[1:])]
