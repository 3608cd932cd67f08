"""The methods of a model that judge texts which exist: score, score_file, choose, perplexity."""

import os
from collections.abc import Sequence
from dataclasses import replace

import jax

import hybridlm
from hybridlm._choice import Choice, choose
from hybridlm._corpus import read_files
from hybridlm._engine import Engine
from hybridlm._inputs import Inputs
from hybridlm._machine import Machine
from hybridlm._perplexity import corpus_perplexity, prefix_token, windows_of
from hybridlm._prefix import Prefix
from hybridlm._results import Score
from hybridlm._score_file import WINDOW, ScoreFileReport, score_file
from hybridlm._score_rows import Scorer
from hybridlm._scoring import checked, scores
from hybridlm._tokenizer import Tokenizer
from models import DecoderConfig


class TextScores:
    """What `LM` inherits; it sets the attributes."""

    config: DecoderConfig
    tokenizer: Tokenizer | None
    context: int
    eos_token_ids: tuple[int, ...]
    params: dict[str, jax.Array]
    fingerprint: str
    _engine: Engine

    @property
    def _inputs(self) -> Inputs:
        require = self._engine.moves.require
        return Inputs(self.tokenizer, self.config.vocab_size, self.context, self.eos_token_ids, require)

    @property
    def _scorer(self) -> Scorer:
        return Scorer(self._inputs.encode, self._scores, self._origin())

    def _scores(self, ids: Sequence[tuple[int, ...]], top: int = 0) -> list[Score]:
        return scores(self._engine, ids, top)

    def score(
        self, texts: str | Sequence[str | Sequence[int]], top_logprobs: int = 0, prefix: Prefix | None = None
    ) -> list[Score]:
        """Log-probability of every token of every text: a float32 log-softmax over the whole vocabulary.

        What texts have in common at their beginning is computed once, as far as it is whole chunks, which changes no
        bit of a score.

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
            found = self._scores(self._inputs.encode_all(texts, "texts"), top_logprobs)
        else:
            ids = self._inputs.continuations(prefix, texts, "texts")
            found = scores(self._engine, ids, top_logprobs, prefix)
        return [replace(one, tokenizer=self.tokenizer) for one in checked(found)]

    def score_file(
        self,
        input: str | os.PathLike[str],
        output: str | os.PathLike[str],
        strict: bool = False,
        window: int = WINDOW,
        shard: str | None = None,
        restart: bool = False,
        progress: bool | None = None,
    ) -> ScoreFileReport:
        """Score a file of texts, however long, `.jsonl` or `.parquet` by the ending of each name.

        Killed at any moment and called again with the same arguments it continues; until all is done the rows lie in
        parts, in the folder `OUTPUT.parts`. docs/scoring.md has the formats and the guarantees.

        Args:
            input: lines `{"id": ..., "text": ...}` or `{"id": ..., "token_ids": [...]}`, or columns of these names; ids
                may be absent.
            output: a row per row of the input, in order: id, token_ids, logprobs (the first is null), sum_logprob,
                perplexity; or id and error where a row cannot be scored. It appears, or replaces an older file, when
                everything has been scored.
            strict: raise at the first row that cannot be scored.
            window: most rows that are scored together and kept as a part; fewer where they are long.
            shard: "i/n", from "0/n" to "n-1/n": only this share of the windows, to an output with the shard in its
                name.
            restart: delete the parts that an earlier run has left, and begin again.
            progress: show a bar; None shows one where standard error is a terminal.

        Raises:
            ValueError: a row that cannot be scored if `strict`; the input holds no rows or is not what its name says;
                the output is the input or no regular file; its parts are another process's, or were made from another
                input, by another model or with other settings.
            MissingExtra: Parquet without pyarrow.
            OSError: a file cannot be read or written; parts that were written stay.
        """
        return score_file(self._scorer, input, output, strict, window, shard, restart, progress)

    def _origin(self) -> dict[str, str | int]:
        """What scores depend on besides the texts, down to the last bit."""
        machine, mesh, engine = Machine.here(), self._engine.placement.mesh, self._engine
        as_given = engine.sanitizer is not None or engine.programs.certify == "off"
        return {
            "model": self.fingerprint,
            "tokenizer": "none" if self.tokenizer is None else self.tokenizer.fingerprint,
            "dtypes": ", ".join(sorted({str(array.dtype) for array in self.params.values()})),
            "lanes": engine.lanes,
            "context": self.context,
            "chunk": engine.chunk,
            "mesh": "none" if mesh is None else ", ".join(f"{axis}={size}" for axis, size in mesh.shape.items()),
            # A step that is certified has been rewritten before.
            "steps": "as they are" if as_given else "certified",
            "products": "default" if engine.tuned is None else engine.tuned.choices,
            "hybridlm": hybridlm.__version__,
            "jax": jax.__version__,
            "device": machine.device,
            # They decide which code XLA makes of the steps.
            "XLA_FLAGS": machine.flags or "none",
        }

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

    def perplexity(
        self,
        texts: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Sequence[int]],
        convention: str = "rolling",
        window: int | None = None,
        stride: int | None = None,
    ) -> float:
        """Perplexity of a corpus: exp of the mean negative log-probability over all tokens that count, of all texts.

        Conventions differ in which tokens count and what stands before them; a figure without its convention and window
        says nothing. A corpus that is cut into texts has other figures than the same corpus as one text.

        * "rolling": each text, after the model's first token (or end token where it has none), is cut into windows,
          each of which predicts as many tokens as fit behind the last token of the window before (the last one, with
          fewer left, is filled up with the text before them). Every token counts. These are the log-likelihoods of
          lm_eval's `loglikelihood_rolling` with a `max_length` of the window less one.
        * "strided": windows begin `stride` tokens apart, and of each those tokens count that the one before did not
          hold: the sliding window of transformers' documentation, with every token of the same weight. The first token
          of a text does not count. Half a window of stride gives every later token half a window of context at least.
        * "llama.cpp": windows side by side, of each the second half counts (from token `window // 2 + 1` on), and where
          the tokenizer puts a first token before texts, it stands in the place of each window's first token. What does
          not fill a window is left out. This is `llama-perplexity` with a `--ctx-size` of the window.

        Args:
            texts: a list whose items are strings, lists of token ids, or paths of text files (UTF-8), each one text; a
                bare string or path is one text. Paths are `pathlib.Path` or the like: a string is a text.
            convention: one of those above.
            window: most tokens that are seen together, at least 2; None for the context.
            stride: of "strided"; None for half a window.

        Raises:
            TypeError, ValueError: an argument is wrong, or no token counts.
            NumericalError: a step computed log-probabilities that are not numbers.
        """
        cut = windows_of(convention, self.context, window, stride, self.tokenizer, self.eos_token_ids)
        ids = self._inputs.encode_all(read_files(texts), "texts", of_any_length=True)
        if not ids:
            raise ValueError("texts: is empty; at least one text is needed")
        windows = ((i, part) for i, text in enumerate(ids) for part in cut(text))
        return corpus_perplexity(windows, self._scores, most=64 * self._engine.lanes)
