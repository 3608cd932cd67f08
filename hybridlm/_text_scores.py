"""The methods of a model that judge texts which exist: score, score_file, choose, perplexity."""

import os
from collections.abc import Sequence

from hybridlm._choice import Choice, choose
from hybridlm._engine import Engine
from hybridlm._inputs import Inputs
from hybridlm._perplexity import CONVENTIONS, prefix_token, rolling
from hybridlm._prefix import Prefix
from hybridlm._results import Score
from hybridlm._score_file import ScoreFileReport, score_file
from hybridlm._scoring import checked, scores
from hybridlm._tokenizer import Tokenizer
from models import DecoderConfig


class TextScores:
    """What `LM` inherits; it sets the attributes."""

    config: DecoderConfig
    tokenizer: Tokenizer | None
    context: int
    eos_token_ids: tuple[int, ...]
    _engine: Engine

    @property
    def _inputs(self) -> Inputs:
        require = self._engine.require
        return Inputs(self.tokenizer, self.config.vocab_size, self.context, self.eos_token_ids, require)

    def _scores(self, ids: Sequence[tuple[int, ...]], top: int = 0) -> list[Score]:
        return scores(self._engine, ids, top)

    def score(
        self, texts: str | Sequence[str | Sequence[int]], top_logprobs: int = 0, prefix: Prefix | None = None
    ) -> list[Score]:
        """Log-probability of every token of every text: a float32 log-softmax over the whole vocabulary.

        Args:
            texts: a list whose items are strings or lists of token ids; a bare string is one text.
            top_logprobs: report this many most likely tokens at each position.
            prefix: every text continues it (see `LM.prefix`); the scores are those of the texts' own tokens, the first
                included.

        Returns:
            One score per text, in order.

        Raises:
            TypeError, ValueError: a text is wrong (the message names it); nothing has been computed.
            NumericalError: a step computed log-probabilities that are not numbers.
        """
        most = self._inputs.most_logprobs
        if isinstance(top_logprobs, bool) or not isinstance(top_logprobs, int) or not 0 <= top_logprobs <= most:
            raise ValueError(f"top_logprobs: expected 0..{most}, got {top_logprobs!r}")
        if prefix is None:
            return checked(self._scores(self._inputs.encode_all(texts, "texts"), top_logprobs))
        ids = self._inputs.continuations(prefix, texts, "texts")
        return checked(scores(self._engine, ids, top_logprobs, prefix))

    def score_file(
        self, input: str | os.PathLike[str], output: str | os.PathLike[str], strict: bool = False
    ) -> ScoreFileReport:
        """Score a file of JSON lines, however long; a progress bar where standard error is a terminal.

        Args:
            input: a line is `{"id": ..., "text": ...}` or `{"id": ..., "token_ids": [...]}`; the id may be absent.
            output: a row per line, in order: id, token_ids, logprobs (the first is null), sum_logprob, perplexity; or
                id and error (with the number of the line) where the line or its text is wrong. It appears, or replaces
                an older file, when everything has been written. Numbers that are not finite are null.
            strict: stop at the first bad line; nothing is written.

        Raises:
            ValueError: a bad line if `strict`; output is the input or no regular file.
            OSError: a file cannot be read or written.
        """
        return score_file(self._inputs.encode, self._scores, input, output, strict, window=32 * self._engine.lanes)

    def choose(self, context: str | Sequence[int], options: Sequence[str] | Sequence[Sequence[int]]) -> Choice:
        """Which option continues the context best.

        Texts are cut as lm_eval cuts them: white space at the end of the context is moved to the option, both are
        tokenized together, and the option is what follows as many tokens as the context has alone. An empty context is
        the model's first token, or its end token where it has none. A space between the two has to be written.

        Args:
            context: a text, or token ids.
            options: texts, or lists of token ids, as the context is.

        Returns:
            Log-probabilities of every option, with the index of the best one by their sum (`best`), or by their mean
            over tokens or bytes (`ranking`).

        Raises:
            TypeError, ValueError: the context or an option is wrong; the message names it.
            NumericalError: a step computed log-probabilities that are not numbers.
        """
        return choose(
            context, options, self._inputs, lambda: prefix_token(self.tokenizer, self.eos_token_ids), self._scores
        )

    def perplexity(self, texts: str | Sequence[str | Sequence[int]], convention: str = "rolling") -> float:
        """Perplexity of a corpus.

        Args:
            texts: a list whose items are strings or lists of token ids.
            convention: "rolling": each text, after the model's first token (or end token where it has none), is cut
                into windows of the context, each of which predicts as many tokens as fit behind the last token of the
                window before (the last one, with fewer left, is filled up with the text before them); exp of the mean
                negative log-probability over all tokens of all texts. These are the log-likelihoods of lm_eval's
                `loglikelihood_rolling` with a `max_length` of the context less one.

        Raises:
            ValueError: unknown convention, or no token to stand before a text.
        """
        if convention not in CONVENTIONS:
            raise ValueError(f"convention: expected one of {', '.join(CONVENTIONS)}, got {convention!r}")
        prefix = prefix_token(self.tokenizer, self.eos_token_ids)
        ids = self._inputs.encode_all(texts, "texts", of_any_length=True)
        if not ids:
            raise ValueError("texts: is empty; at least one text is needed")
        return rolling(ids, prefix, self.context, lambda windows: checked(self._scores(windows)))
