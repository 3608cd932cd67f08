"""Compiled grammars of a tokenizer, positions of sequences, and masks of allowed tokens."""

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from hybridlm.errors import require_extra
from hybridlm.text.reasoning import ThoughtsEnd, thoughts_end
from hybridlm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLParserLimits

MAX_COMPILED = 256
"""Compiled grammars in the cache."""
PROBE = '{"a": [1, -2.5e3, true], "b c": "d_é\\n"}'
"""A text that a tokenizer must reproduce as llguidance reads its vocabulary."""


class GrammarState:
    """Remaining part of a sequence's grammar.

    Args:
        thoughts: finds the end of thoughts.
        words: of the matcher's masks; the tokenizer may exceed the model.

    Attributes:
        fault: why no token can follow.
    """

    def __init__(self, matcher: "LLMatcher", thoughts: ThoughtsEnd | None, words: int):
        self._matcher, self._thoughts, self.words = matcher, thoughts, words
        self.fault: str | None = None

    @property
    def complete(self) -> bool:
        """Whether only an end token can follow, or was the last token."""
        return self.fault is None and self._thoughts is None and self._matcher.is_stopped()

    def push(self, token: int) -> None:
        """Add a sampled token; set `fault` if it is not allowed."""
        if self._thoughts is not None:
            rest = self._thoughts.push(token)
            if rest is not None:
                self._thoughts = None
                if rest.strip():
                    self.fault = f"the token that ends the thoughts has more text after the end marker: {rest!r}"
        elif not self._matcher.consume_token(token):
            self.fault = f"token {token} is not in the grammar here: {_error_of(self._matcher)}"

    def allowed(self, drafts: Sequence[int]) -> int:
        if self._thoughts is not None:
            return self._thoughts.before_end(drafts)
        return self._matcher.validate_tokens(list(drafts))

    def fill(self, masks: np.ndarray, drafts: Sequence[int] = ()) -> None:
        """Write the masks of the next token, and of the tokens after each draft.

        Args:
            masks: uint32 [D + 1 or more, words], ones, contiguous; an empty row is no token.
            drafts: D tokens; rows after a rejected draft stay unchanged.
        """
        if self._thoughts is not None:
            return
        self._fill_next(self._matcher, masks[0])
        self._check(masks[0])
        draft_matcher = self._matcher.deep_copy() if drafts and self.fault is None else None
        for row, draft in zip(masks[1:], drafts, strict=False):
            if draft_matcher is None or not draft_matcher.consume_token(draft) or draft_matcher.is_stopped():
                return
            self._fill_next(draft_matcher, row)
            if draft_matcher.is_error():
                row[:] = 0
                return

    @staticmethod
    def _fill_next(matcher: "LLMatcher", row: np.ndarray) -> None:
        matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)

    def _check(self, row: np.ndarray) -> None:
        """Look for the matcher's error: without a next token, llguidance allows the end token."""
        if self._matcher.is_error():
            self.fault = _error_of(self._matcher)
            row[:] = 0

    @staticmethod
    def fill_all(states: "Sequence[tuple[GrammarState, int]]", masks: np.ndarray) -> None:
        """Write the masks of the next tokens of several sequences, in threads.

        Args:
            masks: uint32 [places, words], ones, contiguous.
        """
        begun = [(state, place) for state, place in states if state._thoughts is None]
        if len(begun) == 1:
            begun[0][0].fill(masks[begun[0][1]][None])
        elif begun:
            assert masks.flags.c_contiguous
            wanted = [(state._matcher, place) for state, place in begun]
            _executor().unsafe_compute_mask_ptr(wanted, masks.ctypes.data, masks.shape[1] * 4, masks.shape[0])
            for state, place in begun:
                state._check(masks[place])


class Grammars:
    """Grammars of a tokenizer, each compiled once; see `Grammars.of`.

    Args:
        vocab_size: logits of a token.
        end_token_ids: without any, a completion ends if nothing can follow.

    Raises:
        ValueError: an unknown tokenizer.
    """

    _by_tokenizer: "weakref.WeakKeyDictionary[Tokenizer, dict[tuple[int, tuple[int, ...]], Grammars]]"
    _by_tokenizer = weakref.WeakKeyDictionary()

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_token_ids: tuple[int, ...]):
        require_extra("structured_outputs", "llguidance", "grammar")
        from llguidance import LLTokenizer

        self._tokenizer, self._compiled = weakref.ref(tokenizer), OrderedDict[str, "LLMatcher"]()
        size = max(vocab_size, tokenizer.vocab_size)
        self._words = -(-size // 32)
        try:
            self._vocabulary = LLTokenizer(tokenizer.to_json(), size, list(end_token_ids) or None)
        except ValueError as error:
            raise ValueError(f"llguidance cannot read this tokenizer.json: {error}") from error
        ids = tokenizer.encode(PROBE, add_special_tokens=False)
        read, written = self._vocabulary.decode_str(ids), tokenizer.decode(ids)
        if read.strip() != written.strip():
            raise ValueError(f"llguidance reads tokens of this tokenizer as {read!r}, they stand for {written!r}")

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int, end_token_ids: tuple[int, ...]) -> "Grammars":
        """Return the grammars of a tokenizer and model."""
        instances = cls._by_tokenizer.setdefault(tokenizer, {})
        key = (vocab_size, end_token_ids)
        if key not in instances:
            instances[key] = cls(tokenizer, vocab_size, end_token_ids)
        return instances[key]

    def check(self, text: str) -> None:
        """Compile a grammar; raises ValueError for a wrong or empty one."""
        self._matcher(text)

    def state(self, text: str, prompt: Sequence[int], output: Sequence[int], think_end: str | None) -> GrammarState:
        """Return a sequence's position in a grammar, begun after the prompt's open thoughts."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None
        thoughts = thoughts_end(tokenizer, prompt, think_end)
        state = GrammarState(self._matcher(text).deep_copy(), thoughts, self._words)
        for token in output:
            state.push(token)
        return state

    def _matcher(self, text: str) -> "LLMatcher":
        from llguidance import LLMatcher

        matcher = self._compiled.get(text)
        if matcher is not None:
            self._compiled.move_to_end(text)
            return matcher
        matcher = LLMatcher(self._vocabulary, text, log_level=0, limits=_limits())
        if matcher.is_error():
            raise ValueError(f"cannot be compiled: {_error_of(matcher)}")
        if warnings := matcher.get_grammar_warnings():
            raise ValueError(f"is not followed in full: {'; '.join(warnings)}")
        trial = matcher.deep_copy()
        first = np.flatnonzero(np.unpackbits(np.frombuffer(trial.compute_bitmask(), np.uint8), bitorder="little"))
        # Of characters without a token, llguidance allows the token after them, and refuses it later.
        if trial.is_error() or (first.size == 1 and not matcher.validate_tokens(first.tolist())):
            raise ValueError(f"no token of the vocabulary can begin it: {_error_of(trial)}")
        self._compiled[text] = matcher
        if len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return matcher


@cache
def _executor() -> "LLExecutor":
    from llguidance import LLExecutor

    return LLExecutor()


@cache
def _limits() -> "LLParserLimits":
    from llguidance import LLParserLimits

    return LLParserLimits(verbose_errors=False)


def _error_of(matcher: "LLMatcher") -> str:
    return " ".join(matcher.get_error().split()) or matcher.stop_reason()


class TokenSet:
    """Mask of fixed tokens, with the methods of `GrammarState`."""

    fault = None
    complete = False

    def __init__(self, token_ids: Sequence[int], vocab_size: int):
        self.words = -(-vocab_size // 32)
        self._members = np.zeros(32 * self.words, bool)
        self._members[list(token_ids)] = True
        self._mask = np.packbits(self._members, bitorder="little").view(np.uint32)

    def push(self, token: int) -> None:
        """Add a sampled token; the mask stays."""

    def allowed(self, drafts: Sequence[int]) -> int:
        return int(np.logical_and.accumulate(self._members[list(drafts)]).sum())

    def fill(self, masks: np.ndarray, drafts: Sequence[int] = ()) -> None:
        masks[: len(drafts) + 1] = 0
        masks[: len(drafts) + 1, : self.words] = self._mask


TokenState = GrammarState | TokenSet


def token_masks(
    states: Sequence[TokenState | None], words: int, drafts: Sequence[Sequence[int]] | None = None, tokens: int = 1
) -> np.ndarray | None:
    """Return the masks of every lane, or None if all tokens are allowed.

    Returns:
        uint32 [lanes, words], or with drafts [lanes, tokens, words].
    """
    width = max((state.words for state in states if state is not None), default=0)
    if not width:
        return None
    masks = np.full((len(states), tokens, width), 0xFFFFFFFF, np.uint32)
    grammars = list[tuple[GrammarState, int]]()
    for lane, state in enumerate(states):
        if drafts is None and isinstance(state, GrammarState):
            grammars.append((state, lane))
        elif state is not None:
            state.fill(masks[lane], () if drafts is None else drafts[lane])
    GrammarState.fill_all(grammars, masks[:, 0])
    masks = masks[:, :, :words]
    return np.ascontiguousarray(masks[:, 0] if drafts is None else masks)
