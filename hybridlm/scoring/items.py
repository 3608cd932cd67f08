"""Items to score: texts, prompts with completions, and chats with a last answer."""

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hybridlm.engine.inputs import Inputs
from hybridlm.requests.results import Score
from hybridlm.requests.validation import is_whole, located
from hybridlm.scoring.pairs import ScoredIds, join_ids, join_texts
from hybridlm.text.chat_template import joined_variables

FORMS = ("text", "token_ids", "input_ids", "prompt", "messages")
"""Fields of an object by form; `completion` belongs to `prompt`."""
MASK = "attention_mask"
"""Field of tokenizers for `input_ids`; 0 is padding."""
_SHORT = reprlib.Repr()
"""Characters of texts and token ids in messages."""
_SHORT.maxstring, _SHORT.maxlist = 100, 20


def own(score: Score, ids: ScoredIds) -> Score:
    """Return the scored part of a text's score."""
    if not (prompt := ids.prompt):
        return score
    names = ("token_ids", "logprobs", "greedy", "top_logprobs", "ranks", "entropy")
    arrays = {name: array[prompt:] for name in names if (array := getattr(score, name)) is not None}
    top, chosen = (part and part.after(prompt) for part in (score.top, score.chosen))
    return replace(score, **arrays, prefix_tokens=prompt, boundary_shift=ids.shift, top=top, chosen=chosen)


def form_of(fields: Mapping[str, Any]) -> str:
    """Return the form of an object without nulls; raises ValueError unless exactly one is complete."""
    present = [name for name in FORMS if fields.get(name) is not None]
    if not present:
        raise ValueError(f"expected exactly one of {', '.join(FORMS)}, got none of them")
    if len(present) > 1:
        names = ", ".join(present)
        raise ValueError(f"expected exactly one of {', '.join(FORMS)}, got {names}; remove the others, or write null")
    if (present[0] == "prompt") != (fields.get("completion") is not None):
        raise ValueError("expected prompt and completion together, got one of them")
    mask: Any = fields.get(MASK)
    mask = mask.tolist() if hasattr(mask, "tolist") else mask  # of NumPy, PyTorch and JAX
    if present[0] == "input_ids" and isinstance(mask, list | tuple) and 0 in mask:
        raise ValueError(
            f"{MASK}: expected 1 for every token, got 0 at {mask.index(0)}; write input_ids without padding"
        )
    return present[0]


def is_several(completion: Any) -> bool:
    """Whether it is a list of completions: a list of whole numbers is one completion."""
    return isinstance(completion, list | tuple) and not all(map(is_whole, completion))


@dataclass(frozen=True)
class ItemReader:
    """A reader of items for one model."""

    inputs: Inputs
    prefix: Callable[[], int]

    def read(self, item: Any, where: str) -> list[ScoredIds]:
        """Return the token ids of an item, for each completion of a prompt.

        Args:
            item: text, token ids, or an object with `prompt` and `completion` or `messages`.

        Raises:
            TypeError, ValueError: a wrong item, or one beyond the context.
        """
        if not isinstance(item, Mapping):
            return [ScoredIds(self.inputs.encode(item, where))]
        form = form_of(item)
        if form == "messages":
            return [self._chat(item, where)]
        if form != "prompt":
            return [ScoredIds(self.inputs.encode(item[form], form))]
        prompt, completions = item["prompt"], item["completion"]
        if not is_several(completions):
            return [self.pair(prompt, completions, "prompt", "completion")]
        return [self.pair(prompt, completion, "prompt", f"completion[{i}]") for i, completion in enumerate(completions)]

    def _chat(self, fields: Mapping[str, Any], where: str) -> ScoredIds:
        """Return a chat's tokens; the last answer is scored up to the end token.

        The prompt is the earlier messages with a generation prompt; with the answer, the template may replace this
        generation prompt only.
        """
        tokenizer, messages = self.inputs.tokenizer, fields["messages"]
        if tokenizer is None:
            raise ValueError(f"{where}: got messages, but the checkpoint has no tokenizer.json; pass token ids")
        if not isinstance(messages, list | tuple) or not messages or not isinstance(messages[-1], Mapping):
            raise TypeError(f"messages: expected a list of messages, got {type(messages)}")
        if messages[-1].get("role") != "assistant":
            raise ValueError(f"messages: expected the last one to be the assistant's, got {messages[-1].get('role')!r}")
        arguments = fields.get("chat_template_kwargs") or {}
        if not isinstance(arguments, Mapping):
            raise TypeError(f"chat_template_kwargs: expected an object, got {type(arguments)}")
        variables = joined_variables({"tools": fields["tools"]} if fields.get("tools") else {}, arguments)
        tokenizer.require_variables(**variables)
        start = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, **variables)
        chat_text = tokenizer.apply_chat_template(messages, add_generation_prompt=False, **variables)
        if not chat_text.startswith(start):
            turns = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=False, **variables)
            if not chat_text.startswith(turns):
                raise ValueError(
                    "messages: the chat template writes the last answer otherwise than after the earlier messages (as "
                    "with thoughts that it drops from them): expected a text that begins as the earlier messages do, "
                    f"{_difference(turns, chat_text)}; give prompt and completion as texts"
                )
        prompt_ids, joined = (tokenizer.encode(text, add_special_tokens=False) for text in (start, chat_text))
        ids, prompt, shift = join_ids(prompt_ids, joined, self.prefix)
        ends = {*self.inputs.eos_token_ids, tokenizer.eos_token_id}
        last = max((i for i, token in enumerate(ids) if token in ends and i >= prompt), default=len(ids) - 1)
        scored_ids = ScoredIds(ids[: last + 1], prompt, shift)
        self._check(scored_ids, where, start, messages[-1].get("content"), "text of the earlier messages")
        return scored_ids

    def pair(self, prompt: Any, completion: Any, prompt_name: str, where: str) -> ScoredIds:
        """Return the token ids of a prompt with its completion.

        Args:
            prompt, completion: both texts or both token ids.

        Raises:
            TypeError, ValueError: wrong items, a completion without tokens, or both beyond the context.
        """
        inputs = self.inputs
        if isinstance(prompt, str) != isinstance(completion, str):
            form = "text" if isinstance(prompt, str) else "token ids"
            raise TypeError(f"{where}: expected {form} like the {prompt_name}, got {_SHORT.repr(completion)}")
        if isinstance(prompt, str):
            if inputs.tokenizer is None:
                raise ValueError(
                    f"{prompt_name}: got text, but the checkpoint has no tokenizer.json; pass lists of token ids"
                )
            ids = join_texts(prompt, completion, inputs.tokenizer, self.prefix())
        else:
            prompt_ids = inputs.encode(prompt, prompt_name)
            completion_ids = inputs.token_ids(completion, where, continues=True)
            ids = ScoredIds(prompt_ids + completion_ids, len(prompt_ids))
        self._check(ids, where, prompt, completion, prompt_name)
        return ids

    def _check(self, ids: ScoredIds, where: str, prompt: Any, completion: Any, prompt_name: str) -> None:
        texts = _SHORT.repr(prompt), _SHORT.repr(completion)
        if ids.prompt >= len(ids.token_ids):
            raise ValueError(f"{where}: {texts[1]} adds no token to the {prompt_name} {texts[0]}")
        try:
            self.inputs.encode(ids.token_ids, where)
        except ValueError as error:
            raise ValueError(f"{error} ({prompt_name} {texts[0]}, then {texts[1]})") from error


def _difference(expected: str, got: str) -> str:
    place = len(os.path.commonprefix([expected, got]))
    excerpts = (text[max(0, place - 20) : place + 60] for text in (expected, got))
    return "{!r}, got {!r}".format(*excerpts)


def score_items(
    reader: ItemReader, score: Callable[[Sequence[ScoredIds]], list[Score]], items: Sequence[Any], name: str
) -> list[Score]:
    """Score items in order, with a score for each completion; common prefixes are computed once.

    Raises:
        TypeError, ValueError: the number of a wrong item.
    """
    texts: list[ScoredIds] = []
    for i, item in enumerate(items):
        where = f"{name}[{i}]"
        if not isinstance(item, Mapping):
            texts += reader.read(item, where)
            continue
        try:
            texts += reader.read(item, "messages")
        except (TypeError, ValueError) as error:
            # The reader names the field alone, as for rows of files.
            raise located(error, where) from error
    return [own(result, ids) for result, ids in zip(score(texts), texts, strict=True)]
