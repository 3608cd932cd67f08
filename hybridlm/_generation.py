"""From requests to completions: text, stops and limits around the engine's tokens."""

from collections.abc import Generator, Sequence
from typing import NamedTuple

from hybridlm._engine import Engine
from hybridlm._results import Completion
from hybridlm._sampling import LogitsProcessor
from hybridlm._sequence import FinishReason, Request
from hybridlm._sequence import Sequence as Alive
from hybridlm._stopping import GrowingText
from hybridlm._tokenizer import Tokenizer


class Event(NamedTuple):
    """One token of one request.

    Attributes:
        index: number of the request.
        token: the token drawn; None for a request that had no room for any.
        text: text that it settles; "" where there is no tokenizer.
        completion: the whole completion, with its last token.
    """

    index: int
    token: int | None
    text: str
    completion: Completion | None


def generate_events(
    engine: Engine, requests: Sequence[Request], tokenizer: Tokenizer | None, processor: LogitsProcessor | None
) -> Generator[Event, None, None]:
    """Run requests; yields every token as it is drawn, in the order of the steps."""
    room = [request for request in requests if len(request.prompt) < engine.context]
    for request in requests:
        if len(request.prompt) >= engine.context:
            empty = Alive(request, finish_reason="length")
            yield Event(request.index, None, "", _completion(empty, "" if tokenizer else None))
    texts: dict[int, GrowingText] = {}
    for sequence in engine.generate(room, processor):
        index, token = sequence.request.index, sequence.generated[-1]
        text = texts.get(index)
        if text is None and tokenizer is not None:
            text = texts[index] = GrowingText(tokenizer, sequence.request.params.stop_strings)
        if text is not None and token not in sequence.request.params.stop_token_ids:
            text.push(token)
        sequence.finish_reason = _finish_reason(sequence, text, engine.context)
        if sequence.finish_reason is None:
            yield Event(index, token, "" if text is None else text.take(), None)
            continue
        if text is not None:
            text.finish()
            del texts[index]
        completion = _completion(sequence, None if text is None else text.text)
        yield Event(index, token, "" if text is None else text.take(final=True), completion)


def _finish_reason(sequence: Alive, text: GrowingText | None, context: int) -> FinishReason | None:
    request = sequence.request
    if sequence.generated[-1] in request.params.stop_token_ids or (text is not None and text.stopped):
        return "stop"
    count = len(sequence.generated)
    if count >= request.params.max_tokens or len(request.prompt) + count >= context:
        return "length"
    return None


def _completion(sequence: Alive, text: str | None) -> Completion:
    assert sequence.finish_reason is not None
    asked = sequence.request.params.logprobs
    return Completion(
        text=text,
        token_ids=list(sequence.generated),
        logprobs=None if asked is None else list(sequence.logprobs),
        top_logprobs=None if not asked else list(sequence.top_logprobs),
        finish_reason=sequence.finish_reason,
        prompt_token_ids=list(sequence.request.prompt),
    )
