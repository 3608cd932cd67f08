"""Items that can be scored: texts, prompts with completions, and chats whose last answer is scored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from hybridlm.engine.inputs import Inputs
from hybridlm.requests.results import Score
from hybridlm.requests.validation import located
from hybridlm.scoring.pairs import encode_pair

FORMS = ("text", "token_ids", "prompt", "messages")
"""Fields of an object, one for each form of an item; a prompt has its `completion` beside it."""


class ScoredIds(NamedTuple):
    """Token ids of which the last ones are scored.

    Attributes:
        token_ids: all of them.
        prompt: number of the first ones that are only read; 0 for a text, every token of which is scored.
    """

    token_ids: tuple[int, ...]
    prompt: int = 0


def own(score: Score, prompt: int) -> Score:
    """Return the part of a score behind its first `prompt` tokens."""
    if not prompt:
        return score
    top = score.top_logprobs
    return replace(
        score,
        token_ids=score.token_ids[prompt:],
        logprobs=score.logprobs[prompt:],
        greedy=score.greedy[prompt:],
        top_logprobs=None if top is None else top[prompt:],
        prefix_tokens=prompt,
        ranks=None if score.ranks is None else score.ranks[prompt:],
        entropy=None if score.entropy is None else score.entropy[prompt:],
        top=None if score.top is None else score.top.after(prompt),
        chosen=None if score.chosen is None else score.chosen.after(prompt),
    )


def form_of(fields: Mapping[str, Any]) -> str:
    """Return the form of an object's item; null fields do not count.

    Raises:
        ValueError: none or several.
    """
    present = [name for name in FORMS if fields.get(name) is not None]
    if len(present) != 1:
        raise ValueError(f"expected exactly one of {', '.join(FORMS)}, got {', '.join(present) or 'none of them'}")
    if (present[0] == "prompt") != (fields.get("completion") is not None):
        raise ValueError("expected prompt and completion together, got one of them")
    return present[0]


@dataclass(frozen=True)
class ItemReader:
    """A reader of items for one model.

    Attributes:
        inputs: its limits.
        prefix: returns the token that is put before a completion whose prompt is empty.
    """

    inputs: Inputs
    prefix: Callable[[], int]

    def read(self, item: Any, where: str) -> list[ScoredIds]:
        """Return the token ids of an item: one, or one for each completion of a prompt.

        Args:
            item: a text, token ids, or an object with `prompt` and `completion` or with `messages`.
            where: name of the item in messages.

        Raises:
            TypeError, ValueError: it is wrong or does not fit the context; the message names it.
        """
        if not isinstance(item, Mapping):
            return [ScoredIds(self.inputs.encode(item, where))]
        form = form_of(item)
        if form == "messages":
            return [self._chat(item, where)]
        if form != "prompt":
            return [ScoredIds(self.inputs.encode(item[form], form))]
        completions = item["completion"]
        # A list of whole numbers is one completion, of token ids.
        several = isinstance(completions, list | tuple) and not all(isinstance(one, int) for one in completions)
        if not several:
            return [self._pair(item["prompt"], completions, "completion")]
        return [self._pair(item["prompt"], one, f"completion[{i}]") for i, one in enumerate(completions)]

    def _pair(self, prompt: Any, completion: Any, where: str) -> ScoredIds:
        before, after = token_pair(prompt, completion, "prompt", where, self.inputs, self.prefix)
        return ScoredIds(before + after, len(before))

    def _chat(self, fields: Mapping[str, Any], where: str) -> ScoredIds:
        """Return the tokens of a chat; its last answer is scored up to its end token.

        The prompt is what the template writes of the messages before, with the beginning of an answer.
        """
        tokenizer, messages = self.inputs.tokenizer, fields["messages"]
        if tokenizer is None:
            raise ValueError(f"{where}: got messages, but the checkpoint has no tokenizer.json; pass token ids")
        if not isinstance(messages, list | tuple) or not messages or not isinstance(messages[-1], Mapping):
            raise TypeError(f"messages: expected a list of messages, got {type(messages)}")
        if messages[-1].get("role") != "assistant":
            raise ValueError(f"messages: expected the last one to be the assistant's, got {messages[-1].get('role')!r}")
        given = fields.get("chat_template_kwargs") or {}
        if not isinstance(given, Mapping):
            raise TypeError(f"chat_template_kwargs: expected an object, got {type(given)}")
        variables: dict[str, Any] = dict(given)
        if fields.get("tools"):
            variables["tools"] = fields["tools"]
        start = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, **variables)
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=False, **variables)
        if not whole.startswith(start):
            raise ValueError(
                "messages: the chat template writes the last answer otherwise than behind the beginning of an answer "
                "(as with thoughts that it drops); give prompt and completion as texts"
            )
        before = self.inputs.encode(tokenizer.encode(start, add_special_tokens=False), where)
        ids = self.inputs.encode(tokenizer.encode(whole, add_special_tokens=False), where)
        ends = {*self.inputs.eos_token_ids, tokenizer.eos_token_id}
        last = max((i for i, token in enumerate(ids) if token in ends and i >= len(before)), default=len(ids) - 1)
        if last < len(before):
            raise ValueError("messages: the last answer adds no token")
        return ScoredIds(ids[: last + 1], len(before))


def token_pair(
    context: Any, option: Any, context_name: str, where: str, inputs: Inputs, prefix: Callable[[], int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the token ids of a context and of what continues it, both texts or both token ids.

    Raises:
        TypeError, ValueError: one of them is wrong; the message names it.
    """
    if isinstance(context, str) != isinstance(option, str):
        raise TypeError(f"{where}: expected what the {context_name} is, text or token ids, got {type(option)}")
    if isinstance(context, str):
        if inputs.tokenizer is None:
            raise ValueError(
                f"{context_name}: got text, but the checkpoint has no tokenizer.json; pass lists of token ids"
            )
        before, after = map(tuple, encode_pair(context, option, inputs.tokenizer, prefix()))
        if not after:
            raise ValueError(f"{where}: {option!r} adds no token to the {context_name}")
    else:
        before, after = inputs.encode(context, context_name), inputs.encode(option, where)
    return before, inputs.encode(before + after, where)[len(before) :]


def score_items(
    reader: ItemReader, score: Callable[[Sequence[ScoredIds]], list[Score]], items: Sequence[Any], what: str
) -> list[Score]:
    """Return the scores of items, in order; a prompt with several completions has one for each.

    A common beginning of items is computed once.

    Raises:
        TypeError, ValueError: an item is wrong; the message has its number.
    """
    found: list[ScoredIds] = []
    for i, item in enumerate(items):
        where = f"{what}[{i}]"
        if not isinstance(item, Mapping):
            found += reader.read(item, where)
            continue
        try:
            found += reader.read(item, "messages")
        except (TypeError, ValueError) as error:
            # Its field alone is named, as for rows of files.
            raise located(error, where) from error
    return [own(one, ids.prompt) for one, ids in zip(score(found), found, strict=True)]
