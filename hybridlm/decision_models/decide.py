"""Answers to requests: all prompts are read together, their common prefixes once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hybridlm.decision_models.heads import LabelHead, SlotHead
from hybridlm.decision_models.prompts import Prompt, Prompts
from hybridlm.decision_models.questions import Answer, answer_of
from hybridlm.engine.inputs import Inputs
from hybridlm.requests.results import require_finite
from hybridlm.requests.validation import located
from hybridlm.scoring.pooling import ReadText

Answers = dict[str, Answer]


@dataclass(frozen=True)
class Decider:
    """A model that answers typed questions.

    Attributes:
        read: (token ids of texts, places of each) -> the residual stream there.
        inputs: checks of lengths.
    """

    prompts: Prompts
    head: LabelHead | SlotHead
    read: Callable[[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]], list[ReadText]]
    inputs: Inputs

    def encode(self, request: Any) -> list[Prompt]:
        """Return the checked prompts of a request.

        Raises:
            TypeError, ValueError: a wrong request, or a prompt beyond the context.
        """
        prompts = self.prompts.read(request)
        for prompt in prompts:
            for question in prompt.questions:
                self.head.check(question)
            names = ", ".join(repr(question_in_prompt.name) for question_in_prompt in prompt.questions)
            self.inputs.check_length(prompt.token_ids, f"the prompt of {names}")
        return prompts

    def answer_all(self, requests: Sequence[Any]) -> list[Answers]:
        """Return the answers to requests; raises TypeError or ValueError with an index."""
        encoded = []
        for i, request in enumerate(requests):
            try:
                encoded.append(self.encode(request))
            except (TypeError, ValueError) as error:
                raise located(error, f"requests[{i}]") from error
        answers = self.answers(encoded)
        wrong = {i: token for i, token in enumerate(answers) if isinstance(token, int)}
        require_finite(wrong, "requests[{}]".format)
        return [answer for answer in answers if not isinstance(answer, int)]

    def answers(self, requests: Sequence[Sequence[Prompt]]) -> list[Answers | int]:
        """Return the answers, or a request's first token without finite numbers."""
        prompts = [prompt for request_prompts in requests for prompt in request_prompts]
        texts = iter(self.read([prompt.token_ids for prompt in prompts], [prompt.places for prompt in prompts]))
        results: list[Answers | int] = []
        temperature = self.prompts.settings.temperature
        for request in requests:
            answers, wrong = Answers(), None
            for prompt in request:
                text = next(texts)
                wrong = text.first_wrong if wrong is None else wrong
                for vector, question, place in zip(text.vectors, prompt.questions, prompt.places, strict=True):
                    with np.errstate(all="ignore"):  # checked below
                        scores = self.head.scores(vector, question)
                        answer = answer_of(question, scores, temperature.get(question.type, 1.0))
                    if wrong is None and not np.isfinite(list(answer.probabilities.values())).all():
                        wrong = place
                    answers[question.name] = answer
            results.append(answers if wrong is None else wrong)
        return results
