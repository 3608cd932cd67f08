"""Tokenizer of a checkpoint: tokenizer.json by `tokenizers`, chat template by jinja2; optional.

More than 300 lines: one class, from the text to its ids and back.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlm.errors import CheckpointError
from hybridlm.text.chat_template import ChatTemplate, ChatTemplateError, faults_of_tools, joined_variables
from hybridlm.text.stream_decoder import StreamDecoder, Streaming, streaming_of

if TYPE_CHECKING:
    import tokenizers

__all__ = ["ChatTemplate", "ChatTemplateError", "StreamDecoder", "Tokenizer"]

TOOL_WORDS = ("tool", "function")
"""Words in names of special tokens of tools."""


THINK_MARKERS = (
    ("<think>", "</think>"), ("<thinking>", "</thinking>"), ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"), ("◁think▷", "◁/think▷"),
)  # fmt: skip
THINKING_VARIABLES = ("enable_thinking", "thinking")
"""Template variables that turn thinking on or off."""
OF_THE_END = frozenset({"add_generation_prompt", "continue_final_message"})


class Tokenizer:
    """A tokenizer with special tokens and chat templates.

    Attributes:
        special_tokens, chat_templates: by name ("bos_token"; "default" by default).
        chat_control_tokens: added tokens reserved for chat templates; None if tokenizer_config.json names none.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        of_tiktoken: bool = False,
        chat_control_tokens: Sequence[str] | None = None,
    ) -> None:
        """Wrap a tokenizer.

        Args:
            backend: truncation and padding are switched off.
            of_tiktoken: from Kimi's tiktoken.model: long texts are cut, and keys of tools sorted.

        Raises:
            ValueError: bos_token or eos_token is not in the vocabulary.
        """
        # A file saved during training may enable both, silently.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self._of_tiktoken = of_tiktoken
        self.chat_control_tokens = None if chat_control_tokens is None else tuple(chat_control_tokens)
        self._compiled: dict[str, ChatTemplate] = {}
        for role, token in self.special_tokens.items():
            if role in ("bos_token", "eos_token") and backend.token_to_id(token) is None:
                raise ValueError(f"{role}: expected a token of the vocabulary, found {token!r}")

    @staticmethod
    def from_dir(path: str | os.PathLike[str]) -> "Tokenizer | None":
        """Return the tokenizer of a checkpoint directory or a GGUF file, or None.

        Warns of another format; docs/checkpoints/compatibility.md lists the files.

        Raises:
            CheckpointError: an unreadable file, or an unknown tokenizer class.
        """
        # Only a checkpoint with a tokenizer imports `tokenizers` and jinja2.
        from hybridlm.text import tokenizer_files as files

        try:
            fields = files.read_tokenizer(Path(path))
            return None if fields is None else Tokenizer(**fields)
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(Path(path) / "tokenizer_config.json", str(error)) from error

    @cached_property
    def vocab_size(self) -> int:
        """Largest token id plus one, with added tokens; models may pad it."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    def to_json(self) -> str:
        """Return tokenizer.json with other files' added tokens."""
        return self._backend.to_str()

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of everything that token ids depend on."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def chat_fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of chat templates and their special tokens."""
        parts = [self.chat_templates, self.special_tokens, *([self._of_tiktoken] if self._of_tiktoken else [])]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of("eos_token")

    def token_to_id(self, token: str) -> int | None:
        return self._backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens become their ids.

        Args:
            add_special_tokens: such as BOS; False for chat templates' texts, which have them.

        Raises:
            ValueError: lone surrogates.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text is not valid Unicode: {error}") from error
        if self._of_tiktoken:
            from hybridlm.text.tiktoken_file import cut

            added = [token.content for token in self._backend.get_added_tokens_decoder().values()]
            return [token for piece in cut(text, added) for token in self._backend.encode(piece).ids]
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_open(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text, without tokens added at its end."""
        ids = self.encode(text, add_special_tokens)
        return ids[: len(ids) - self._added_behind] if add_special_tokens else ids

    @cached_property
    def _added_behind(self) -> int:
        # Every vocabulary has an id for an added token.
        mask = self._backend.encode("".join(["a", *list(self.added_tokens)[:1]])).special_tokens_mask
        return next((i for i, added in enumerate(reversed(mask)) if not added), 0)

    @cached_property
    def added_tokens(self) -> dict[str, bool]:
        """Added tokens -> whether they are special."""
        return {token.content: token.special for token in self._backend.get_added_tokens_decoder().values()}

    def with_special_tokens(self, tokens: Sequence[str]) -> "Tokenizer":
        """Return a copy with further special tokens."""
        from tokenizers import AddedToken
        from tokenizers import Tokenizer as Backend

        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = self._backend.encode_special_tokens
        new = [token for token in tokens if backend.token_to_id(token) is None]
        backend.add_tokens([AddedToken(token, special=True, normalized=False) for token in new])
        return Tokenizer(backend, self.special_tokens, self.chat_templates, self._of_tiktoken, self.chat_control_tokens)

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of a text without a search for added tokens."""
        backend = self._backend
        if backend.normalizer is not None:
            text = backend.normalizer.normalize_str(text)
        splits = [text]
        if backend.pre_tokenizer is not None:
            splits = [split for split, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for split in splits for token in backend.model.tokenize(split)]

    def skipped(self, skip_special_tokens: bool = True, keep_tool_markers: bool = False) -> frozenset[int]:
        """Return the ids of special tokens without text.

        Args:
            keep_tool_markers: except with "tool" or "function" in their name (<tool_call>, ...).
        """
        return self._special_ids[keep_tool_markers] if skip_special_tokens else frozenset()

    @cached_property
    def _special_ids(self) -> tuple[frozenset[int], frozenset[int]]:
        """Ids of all special tokens, and of those that are no tool markers."""
        added = self._backend.get_added_tokens_decoder()
        contents = {token.content for token in added.values() if token.special}
        # The library compares normalised tokens: "<S>" of a normaliser that makes it "<s>" has text.
        special = {key: token for key, token in added.items() if self._backend.id_to_token(key) in contents}
        tools = {key for key, token in special.items() if any(word in token.content.lower() for word in TOOL_WORDS)}
        return frozenset(special), frozenset(special.keys() - tools)

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True, keep_tool_markers: bool = False) -> str:
        """Return the text of ids; skips ids beyond the vocabulary.

        Raises:
            ValueError: a negative id, or of more than 32 bits.
        """
        ids = [int(token) for token in ids]
        bad = [token for token in ids if not 0 <= token < 2**32]
        if bad:
            raise ValueError(f"token ids: expected 0 <= id < 2**32, got {bad[:5]}")
        if skip_special_tokens and keep_tool_markers:
            skipped = self.skipped(skip_special_tokens, keep_tool_markers)
            return self._backend.decode([token for token in ids if token not in skipped], skip_special_tokens=False)
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    @cached_property
    def _streaming(self) -> Streaming:
        return streaming_of(self._backend)

    def stream(self, skip_special_tokens: bool = True, keep_tool_markers: bool = False) -> StreamDecoder:
        """Return an incremental decoder for one sequence; arguments as for `decode`."""
        skipped = self.skipped(skip_special_tokens, keep_tool_markers)
        return StreamDecoder(
            lambda ids: self._backend.decode(list(ids), skip_special_tokens=False),
            self._streaming,
            lambda token: token not in skipped and self._backend.id_to_token(token) is not None,
        )

    @cached_property
    def think_markers(self) -> tuple[str, str] | None:
        """Markers around thoughts, by vocabulary or chat templates."""
        sources = list(self.chat_templates.values())
        for pair in THINK_MARKERS:
            if self.token_to_id(pair[1]) is not None or any(pair[1] in source for source in sources):
                return pair
        return None

    def thinking_variables(
        self, enable_thinking: bool | None, chat_template: str | None = None, tools: Any = None
    ) -> dict[str, bool]:
        """Return the template variables that turn thinking on or off.

        Raises:
            ChatTemplateError: the template knows no such variable.
        """
        if enable_thinking is None:
            return {}
        names = self._template(chat_template, tools).variables
        variables = {name: enable_thinking for name in THINKING_VARIABLES if name in names}
        if not variables:
            raise ChatTemplateError(
                f"enable_thinking: the chat template reads none of {', '.join(THINKING_VARIABLES)}; it reads "
                f"{', '.join(sorted(names))}"
            )
        return variables

    def effort_variables(self, effort: str, chat_template: str | None = None, tools: Any = None) -> dict[str, Any]:
        """Return the template variables of a reasoning effort; "none" turns thinking off.

        Raises:
            ChatTemplateError: the template cannot express this effort.
        """
        names = self._template(chat_template, tools).variables
        variables: dict[str, Any] = {"reasoning_effort": effort} if "reasoning_effort" in names else {}
        if variables or effort == "none":
            variables |= {name: effort != "none" for name in THINKING_VARIABLES if name in names}
        if not variables:
            raise ChatTemplateError(
                f"reasoning_effort: the chat template has no variable for {effort!r}; it reads "
                f"{', '.join(sorted(names))} (chat_template_kwargs)"
            )
        return variables

    @cached_property
    def turn_end_id(self) -> int | None:
        """Special token after an answer in the chat template."""
        mark = "ANSWER-OF-THE-TURN"
        try:
            chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": mark}]
            text = self.apply_chat_template(chat, add_generation_prompt=False)
        except ChatTemplateError:
            return None
        ids = self.encode(text.partition(mark)[2].lstrip(), add_special_tokens=False)
        return ids[0] if ids and ids[0] in self.skipped() else None

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Return a conversation's token ids; arguments as for `apply_chat_template`."""
        return self.encode(self.apply_chat_template(messages, **variables), add_special_tokens=False)

    def encode_with_tools(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], /, **variables: Any
    ) -> list[int]:
        """Return the token ids of a conversation with tools.

        Raises:
            ChatTemplateError: the template has no tools, or does not read a variable.
        """
        variables = joined_variables({"tools": tools} if tools else {}, variables)
        tools = variables.pop("tools", None) or []
        for fault in faults_of_tools(tools):
            raise ValueError(fault)
        self.require_variables(tools=tools or None, **variables)
        if not tools:
            return self.encode_chat(messages, **variables)
        ids = self.encode_chat(messages, tools=tools, **variables)
        try:
            without = self.encode_chat(messages, **variables)
        except ChatTemplateError:
            return ids  # it has to have some
        if ids == without:
            raise ChatTemplateError("tools: the chat template of this checkpoint does not show them to the model")
        return ids

    def require_variables(self, *, chat_template: str | None = None, **variables: Any) -> None:
        """Raise ChatTemplateError for values, except empty ones, that the template never reads."""
        names = self._template(chat_template, variables.get("tools")).variables | OF_THE_END
        unread = [name for name, value in variables.items() if value not in (None, [], {}) and name not in names]
        if unread:
            raise ChatTemplateError(
                f"{', '.join(unread)}: the chat template does not read this; it reads {', '.join(sorted(names))}"
            )

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool | None = None,
        *,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        continue_final_message: bool | str = False,
        **variables: Any,
    ) -> str:
        """Return a conversation's text, as in transformers; encode it with `add_special_tokens=False`.

        Content parts are joined by line ends if the template takes no lists; JSON arguments of tool calls become
        objects if it takes no texts.

        Args:
            messages: {"role": ..., "content": text or list of text parts}.
            add_generation_prompt: begin the assistant's answer; None: unless the last message is continued.
            chat_template: name in `chat_templates`, or a source; by default "tool_use" with tools if present, else
                "default".
            tools: JSON schemas of functions, `{"type": "function", "function": {...}}` each.
            continue_final_message: end within the last message; a field name (reasoning_content, ...) continues that
                field.
            variables: of the template (`enable_thinking=False`, ...).

        Raises:
            ChatTemplateError: no template, or unusable with these messages.
            TypeError: a value that is not plain data.
        """
        if add_generation_prompt and continue_final_message:
            raise ChatTemplateError("add_generation_prompt begins an answer, continue_final_message continues one")
        for name, items in (("tools", tools), ("documents", documents)):
            wrong = [item for item in items or () if not isinstance(item, Mapping)]
            if wrong:
                raise TypeError(f"{name}: expected objects (JSON schemas for tools), got {wrong[0]!r}")
        if add_generation_prompt is None:
            add_generation_prompt = not continue_final_message
        if self._of_tiktoken:
            from hybridlm.text.tiktoken_file import in_order

            tools = in_order(tools)
        variables = {**self.special_tokens, **variables, "tools": tools, "documents": documents}
        return self._template(chat_template, tools).render(
            messages,
            continue_final_message=continue_final_message,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )

    def _template(self, name: str | None, tools: Any) -> ChatTemplate:
        names = sorted(self.chat_templates)
        if name is not None and name not in names and "{" in name:
            return ChatTemplate(name)
        if not names:
            raise ChatTemplateError(
                "this checkpoint has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): write the prompt as text and use generate"
            )
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in names else "default"
        if name not in names:
            expected = f"expected chat_template=one of {', '.join(names)}"
            raise ChatTemplateError(f"no chat template named {name!r}, {expected}")
        if name not in self._compiled:
            self._compiled[name] = ChatTemplate(self.chat_templates[name])
        return self._compiled[name]

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._backend.token_to_id(token)
