"""Prompts of decision requests: token ids, and places of answers.

A template writes sentinels, which are dropped: `<|mark|>` after each question's token to read, by default the last,
and `<|split|>` between separately encoded texts.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from hybridlm.decision_models.questions import LETTERS, YES_NO, DecisionQuestion, read_questions
from hybridlm.decision_models.settings import TEMPLATE, DecisionSettings
from hybridlm.text.chat_template import ChatTemplateError, CompiledTemplate, plain_data
from hybridlm.text.control_tokens import ControlTokens, control_tokens
from hybridlm.text.tokenizer import Tokenizer

MARK, SPLIT = "<|mark|>", "<|split|>"
FIELDS = ("state", "questions")


class Prompt(NamedTuple):
    """One prompt of a request.

    Attributes:
        token_ids: without sentinels.
        places: index of the token to read, per question.
    """

    token_ids: tuple[int, ...]
    places: tuple[int, ...]
    questions: tuple[DecisionQuestion, ...]


@dataclass(frozen=True)
class Prompts:
    """Prompts of one model."""

    checkpoint_tokenizer: Tokenizer
    settings: DecisionSettings

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer with sentinels as special tokens: requests cannot write them."""
        return self.checkpoint_tokenizer.with_special_tokens([MARK, SPLIT])

    @cached_property
    def sentinels(self) -> tuple[int | None, int | None]:
        return self.tokenizer.token_to_id(MARK), self.tokenizer.token_to_id(SPLIT)

    @cached_property
    def template(self) -> CompiledTemplate | None:
        """Template of the checkpoint; None for the generic prompt.

        Raises:
            ChatTemplateError: a syntax error, or no question.
        """
        if self.settings.template is None:
            return None
        template = CompiledTemplate(self.settings.template, TEMPLATE)
        if not template.variables & {"question", "questions"}:
            raise ChatTemplateError(f"{TEMPLATE}: expected it to use question or questions, found neither")
        return template

    @cached_property
    def controls(self) -> ControlTokens:
        source = self.settings.template
        if source is None:
            source = self.checkpoint_tokenizer.chat_templates.get("default", "")
        return ControlTokens(self.tokenizer, control_tokens(self.tokenizer, source))

    def read(self, request: Any) -> list[Prompt]:
        """Return one prompt per question, or one if the template has `questions`.

        Args:
            request: object with `state`, any JSON, and `questions`, name -> question.

        Raises:
            TypeError, ValueError: a wrong request, or one that the template refuses.
        """
        if not isinstance(request, Mapping) or any(name not in request for name in FIELDS):
            raise ValueError(f"request: expected an object with {' and '.join(FIELDS)}, got {request!r}"[:300])
        if request.get("assets"):
            raise ValueError("assets: images are not supported, the state has to be text or other JSON")
        state = plain_data(request["state"], "state")
        raw_questions = plain_data(request["questions"], "questions")
        questions = read_questions(raw_questions, self.settings.labels, self.settings.noul_options)
        takes_all = self.template is not None and "questions" in self.template.variables
        groups = [questions] if takes_all else [[question] for question in questions]
        return [self._prompt(state, tuple(group)) for group in groups]

    def _prompt(self, state: Any, group: tuple[DecisionQuestion, ...]) -> Prompt:
        sanitize = self.settings.sanitize_control_tokens
        if self.template is None:
            content = self._safe(generic_prompt(state, group[0]))
            messages = [{"role": "user", "content": content}]
            text = self.checkpoint_tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, enable_thinking=False
            )
        else:
            variables = {
                "state": state,
                "question": group[0].fields(),
                "questions": [question.fields() for question in group],
            }
            fixed = {"add_generation_prompt": True, "enable_thinking": False, "tools": None, "documents": None}
            special = self.checkpoint_tokenizer.special_tokens
            messages = [{"role": "user", "content": ""}]
            text = self.template.text({"messages": messages, **fixed, **special, **self._safe(variables)})
        ids = self.controls.encode(text) if sanitize else self.tokenizer.encode(text, add_special_tokens=False)
        return self._without_marks(ids, group)

    def _safe(self, value: Any) -> Any:
        """Return a JSON value without control tokens or sentinels."""
        # A template that handles control tokens itself knows no sentinels.
        return self.controls.mark(value) if self.settings.sanitize_control_tokens else _without_sentinels(value)

    def _without_marks(self, ids: Sequence[int], group: tuple[DecisionQuestion, ...]) -> Prompt:
        mark, split = self.sentinels
        token_ids: list[int] = []
        places: list[int] = []
        for token in ids:
            if token == mark:
                places.append(len(token_ids) - 1)
            elif token != split:
                token_ids.append(token)
        places = places or [len(token_ids) - 1]
        if len(places) != len(group):
            raise ValueError(
                f"{TEMPLATE}: expected {MARK} once for each of {len(group)} questions, found it {len(places)} times; "
                "heads that read several places of a question (as kev, clef and von do) are not implemented"
            )
        if places[0] < 0:
            raise ValueError(f"{TEMPLATE}: expected a token before {MARK}, found none")
        return Prompt(tuple(token_ids), tuple(places), group)


def generic_prompt(state: Any, question: DecisionQuestion) -> str:
    """Return the question as a chat user's message, without a decision template.

    The words are transformers'.
    """
    lines = [_text(question.instructions)]
    for label, option, description in zip(question.labels, question.options, question.descriptions, strict=True):
        answer = _text(description)
        if question.type == "noul":
            answer = answer or ("" if question.labels == YES_NO else option)
            lines.append(f"{label}: {answer}" if answer else "")
        elif question.type == "choice":
            lines.append(f"{label}. {option}: {answer}" if answer else f"{label}. {option}")
        else:
            lines.append(f"{label}. {answer}")
    first, last = question.labels[0], question.labels[-1]
    if question.type == "noul":
        end = f"Answer {first} or {question.labels[1]} only."
    else:
        kind = "letter" if question.labels == LETTERS[: len(question.labels)] else "label"
        of = "option" if question.type == "choice" else "level"
        end = f"Answer with the {kind} of the {of} that fits best ({first} to {last}) only."
    body = "\n".join(line for line in lines if line)
    return f"{_text(state)}\n\n{body}\n{end}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _without_sentinels(value: Any) -> Any:
    if isinstance(value, str):
        while MARK in value or SPLIT in value:  # again: taking one away may make another one
            value = value.replace(MARK, "").replace(SPLIT, "")
        return value
    if isinstance(value, dict):
        return {_without_sentinels(name): _without_sentinels(item) for name, item in value.items()}
    return [_without_sentinels(item) for item in value] if isinstance(value, list) else value
