"""Tokenizer of a checkpoint: tokenizer.json by the `tokenizers` library, chat template by jinja2. Optional.

Both libraries are imported when a checkpoint first needs them.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybridlm.errors import CheckpointError
from hybridlm.files.strict_json import MEGABYTE, read_object, read_text
from hybridlm.gguf_files import companions, read_header
from hybridlm.text.stream_decoder import StreamDecoder

if TYPE_CHECKING:
    import tokenizers

    from hybridlm.text.chat_template import ChatTemplate

MAX_TOKENIZER_BYTES = 200 * MEGABYTE
MAX_CONFIG_BYTES = 16 * MEGABYTE
MAX_TEMPLATE_BYTES = 4 * MEGABYTE
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_OTHER_FORMATS = ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt", "spiece.model", "tekken.json")


class Tokenizer:
    """A tokenizer with its special tokens and chat templates.

    Attributes:
        special_tokens: "bos_token", "eos_token", ... -> the token, for those that tokenizer_config.json names.
        chat_templates: name -> source; "default" is used unless another one is asked for.
    """

    def __init__(
        self,
        backend: "tokenizers.Tokenizer",
        special_tokens: Mapping[str, str] | None = None,
        chat_templates: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a tokenizer; raise ValueError if bos_token or eos_token is not in the vocabulary."""
        # A file saved during training may enable both, which would silently change texts.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_templates = dict(chat_templates or {})
        self._compiled: dict[str, ChatTemplate] = {}
        for role in ("bos_token", "eos_token"):
            token = self.special_tokens.get(role)
            if token is not None and backend.token_to_id(token) is None:
                raise ValueError(f"{role}: expected a token of the vocabulary, found {token!r}")

    @staticmethod
    def from_dir(path: str | os.PathLike[str]) -> "Tokenizer | None":
        """Return the tokenizer of a checkpoint directory or a GGUF file; None if there is none (token ids always work).

        Reads tokenizer.json, tokenizer_config.json (added and special tokens, chat template) and chat_template.jinja.
        Warns if there is a tokenizer in another format only.

        Raises:
            CheckpointError: a file that is too long or cannot be read.
        """
        directory = Path(path)
        if directory.suffix.lower() == ".gguf" and directory.is_file():
            texts = companions(read_header(directory))
            if "tokenizer.json" not in texts:
                return None
            return _tokenizer(directory, texts["tokenizer.json"], json.loads(texts["tokenizer_config.json"]))
        if not (directory / "tokenizer.json").exists():
            others = [name for name in _OTHER_FORMATS if (directory / name).exists()]
            if others:
                warnings.warn(
                    f"{directory}: found {', '.join(others)} but no tokenizer.json, the only format that is read: "
                    "prompts have to be token ids (transformers can write one: save_pretrained of a fast tokenizer)",
                    stacklevel=2,
                )
            return None
        config: dict[str, Any] = {}
        if (directory / "tokenizer_config.json").exists():
            config = read_object(directory / "tokenizer_config.json", MAX_CONFIG_BYTES)
        text = read_text(directory / "tokenizer.json", MAX_TOKENIZER_BYTES)
        return _tokenizer(directory, text, config)

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id, with added tokens; a model's vocabulary is often padded beyond it."""
        return 1 + max(self._backend.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that the token ids of a text depend on."""
        return hashlib.sha256(self._backend.to_str().encode()).hexdigest()

    @property
    def bos_token_id(self) -> int | None:
        return self._id_of("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._id_of("eos_token")

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token; None if it is not in the vocabulary."""
        return self._backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens written in the text become their ids.

        Args:
            text: of any length; never truncated.
            add_special_tokens: add the tokens that tokenizer.json puts around every text (for example BOS). False for
                the text of a chat template, which has them already.

        Raises:
            ValueError: lone surrogates, which are not Unicode text.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"text is not valid Unicode: {error}") from error
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of token ids. Ids beyond the vocabulary (a model's padding) have no text, as in transformers.

        Raises:
            ValueError: an id that is negative or has more than 32 bits.
        """
        ids = [int(token) for token in ids]
        bad = [token for token in ids if not 0 <= token < 2**32]
        if bad:
            raise ValueError(f"token ids: expected 0 <= id < 2**32, got {bad[:5]}")
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def stream(self, skip_special_tokens: bool = True) -> StreamDecoder:
        """Return an incremental decoder for one sequence."""
        return StreamDecoder(lambda ids: self.decode(ids, skip_special_tokens))

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> list[int]:
        """Return the token ids of a conversation; arguments as for `apply_chat_template`."""
        return self.encode(self.apply_chat_template(messages, **variables), add_special_tokens=False)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        *,
        template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """Return the text of a conversation; encode it with `add_special_tokens=False`.

        Args:
            messages: {"role": ..., "content": ...} in order.
            add_generation_prompt: end with the beginning of the assistant's answer.
            template: name of one of `chat_templates`; by default "tool_use" if tools are given and it exists, else
                "default".
            tools: JSON schemas of functions.
            variables: other variables of the template (`enable_thinking=False`, ...).

        Raises:
            ChatTemplateError: no template, or it cannot be used with these messages.
        """
        from hybridlm.text.chat_template import ChatTemplate

        name = self._template_name(template, tools)
        if name not in self._compiled:
            self._compiled[name] = ChatTemplate(self.chat_templates[name])
        variables = {"documents": None, **self.special_tokens, **variables}
        return self._compiled[name].render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **variables
        )

    def _template_name(self, template: str | None, tools: Any) -> str:
        from hybridlm.text.chat_template import ChatTemplateError

        names = sorted(self.chat_templates)
        if not names:
            raise ChatTemplateError(
                "this checkpoint has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json): write the prompt as text and use generate"
            )
        if template is None:
            template = "tool_use" if tools is not None and "tool_use" in names else "default"
        if template not in names:
            raise ChatTemplateError(f"no chat template named {template!r}, expected template=one of {', '.join(names)}")
        return template

    def _id_of(self, role: str) -> int | None:
        token = self.special_tokens.get(role)
        return None if token is None else self._backend.token_to_id(token)


def _tokenizer(directory: Path, text: str, config: Mapping[str, Any]) -> Tokenizer:
    """Make a tokenizer of the contents of tokenizer.json and tokenizer_config.json."""
    import tokenizers

    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:
        # The library raises bare Exception for everything that it cannot read.
        raise CheckpointError(directory / "tokenizer.json", f"cannot be read: {error}") from error
    try:
        special = _special_tokens(config)
        _add_tokens(backend, config, special)
        return Tokenizer(backend, special, _chat_templates(directory, config))
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(directory / "tokenizer_config.json", str(error)) from error


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    special: dict[str, str] = {}
    for role in SPECIAL_TOKENS:
        token = config.get(role)
        # Either the token itself or the object of an AddedToken.
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            special[role] = token
        elif token is not None:
            raise ValueError(f"{role}: expected a token, found {token!r}")
    return special


def _add_tokens(backend: "tokenizers.Tokenizer", config: Mapping[str, Any], special: Mapping[str, str]) -> None:
    """Add the tokens that only tokenizer_config.json has, at the ids that it gives them."""
    import tokenizers

    known = backend.get_added_tokens_decoder()
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or not all(str(key).isdecimal() for key in declared):
        raise ValueError("added_tokens_decoder: expected an object of token id -> token")
    for key in sorted(declared, key=int):
        entry = declared[key]
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str):
            raise ValueError(f"added_tokens_decoder[{key}]: expected a token with content, found {entry!r}")
        if int(key) not in known:
            flags = {flag: bool(entry.get(flag, False)) for flag in ("lstrip", "rstrip", "single_word", "special")}
            normalized = bool(entry.get("normalized", not flags["special"]))
            backend.add_tokens([tokenizers.AddedToken(content, normalized=normalized, **flags)])
        if backend.token_to_id(content) != int(key):
            raise ValueError(
                f"added_tokens_decoder[{key}]: expected {content!r} at that id, found {backend.token_to_id(content)}"
            )
    # Tokens with a role are special, and skipped in decoded text, even if the file does not say so.
    added = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    present = [token for token in special.values() if token not in added and backend.token_to_id(token) is not None]
    backend.add_special_tokens(list(dict.fromkeys(present)))


def _chat_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    if (directory / "chat_template.jinja").exists():
        return {"default": read_text(directory / "chat_template.jinja", MAX_TEMPLATE_BYTES)}
    found = config.get("chat_template")
    if found is None:
        return {}
    entries = [{"name": "default", "template": found}] if isinstance(found, str) else found
    valid = isinstance(entries, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        for entry in entries
    )
    if not valid:
        raise ValueError("chat_template: expected a string, or a list of objects with name and template")
    return {entry["name"]: entry["template"] for entry in entries}
