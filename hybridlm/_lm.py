"""The model as users hold it: generate, chat, score, perplexity, forward."""

import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np

from hybridlm._batch_file import BatchFileReport, BatchModel, batch_file
from hybridlm._drafters import AsLoaded, Speculate
from hybridlm._engine import Engine
from hybridlm._forward import ForwardOutput, SequenceState, forward, in_order
from hybridlm._prefix import Prefix, compute_prefix
from hybridlm._progress import request_progress
from hybridlm._requests import Settings
from hybridlm._results import Completion
from hybridlm._sampling import LogitsProcessor
from hybridlm._save import Saved
from hybridlm._sequence import Request
from hybridlm._session import Event, Session
from hybridlm._snapshot_file import load_snapshot
from hybridlm._steps import Structure
from hybridlm._text_scores import TextScores
from hybridlm._together import Together
from hybridlm._tokenizer import Tokenizer
from hybridlm._warmup import warm_up
from ir_passes import Certificate
from models import Decoder, DecoderConfig


class LM(TextScores, Saved, Together):
    """A loaded model; `hybridlm.load` makes it.

    Attributes:
        path: the checkpoint's directory.
        model: the flax nnx module that holds the parameters; over a mesh its sizes are those of one device.
        config: what was read from config.json.
        tokenizer: None where the checkpoint has none; token ids always work.
        params: parameters by dotted name, as `forward` takes them for differentiation.
        context: most tokens of a sequence, prompt and continuation together.
        fingerprint: names the checkpoint's weights and configuration, the same wherever it lies (SHA-256 of
            config.json, of the tensors' names, dtypes and shapes, and of samples of their content).
        eos_token_ids: tokens that end a completion.
    """

    def __init__(
        self,
        model: Decoder,
        config: DecoderConfig,
        structure: Structure,
        params: dict[str, jax.Array],
        engine: Engine,
        tokenizer: Tokenizer | None,
        eos_token_ids: tuple[int, ...],
        cache_dtype: Any,
        path: Path,
        fingerprint: str,
    ):
        self.path, self.fingerprint = path, fingerprint
        self.model, self.config = model, config
        self.params, self.tokenizer = params, tokenizer
        self.context = engine.context
        self.eos_token_ids = eos_token_ids
        self._structure, self._engine, self._cache_dtype = structure, engine, cache_dtype

    def __repr__(self) -> str:
        c = self.config
        size = sum(array.size for array in self.params.values())
        return (
            f"LM({c.family}, {size / 1e6:.1f}M parameters, {c.num_layers} layers, "
            f"lanes={self._engine.lanes}, context={self.context})"
        )

    @property
    def stats(self) -> dict[str, Any]:
        """Counters since the model was loaded.

        Steps, copies of rows, tokens of prompts and texts that were consumed, those that prefixes and common parts
        saved, tokens that were generated, and compiled programs; see docs/speculation.md and docs/prefix-cache.md.
        """
        cache = self._engine.prefix_cache
        kept = {} if cache is None else cache.stats
        counted = self._engine.stats
        rate = counted["generated_tokens"] / counted["draws"] if counted["draws"] else 0.0
        return {**counted, **kept, "tokens_per_step": rate, "compiled": len(self._engine.programs.shapes)}

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Of every compiled step, by step, lanes and tokens: "generate 8x1"."""
        return self._engine.programs.certificates

    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        max_tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stop: str | int | Sequence[str | int] | None = None,
        ignore_eos: bool = False,
        logprobs: int | None = None,
        n: int = 1,
        logits_processor: LogitsProcessor | None = None,
        progress: bool | None = None,
        prefix: Prefix | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
    ) -> list[Completion]:
        """Continue prompts; any number, of any lengths, queued over the lanes.

        Args:
            prompts: a list whose items are strings or lists of token ids; a bare string is one prompt.
            max_tokens: most tokens drawn for a prompt.
            temperature: 0 takes the most likely token; otherwise logits are divided by it.
            top_k: draw among this many most likely tokens; 0 for all. Filters follow temperature, in this order.
            top_p: then among the fewest tokens whose probabilities reach this sum, and those as likely as the last of
                them; 1 for all.
            min_p: then among tokens at least this many times as probable as the most likely one; 0 for all.
            seed: the token at a position is drawn with the key (seed, index of the request, position): it does not
                depend on the other prompts, the lane or the number of lanes.
            stop: strings or token ids that end a completion, in addition to the model's own end tokens.
            ignore_eos: do not end at the model's own end tokens.
            logprobs: report log-probabilities of the tokens drawn, and of this many most likely ones (0: only those
                drawn).
            n: completions per prompt; request i * n + j is the j-th completion of prompt i.
            logits_processor: `f(logits float32[vocab], last_token int32, position int32) -> float32[vocab]`, a jittable
                function of one lane; it changes what is drawn, not the reported log-probabilities. Pass the same
                function object again to reuse its compiled step.
            progress: show a bar of completed prompts; None shows one for more prompts than lanes where standard error
                is a terminal.
            prefix: every prompt continues it, and may be empty (see `prefix`).
            speculate: who drafts tokens ahead, as for `load`, which has said it "as loaded". It changes the time that
                tokens take, and which of them are drawn only where float32 rounds to a tie.

        Returns:
            Completions in the order of the prompts, the n of one prompt next to each other.

        Raises:
            TypeError, ValueError: a prompt or a setting is wrong; the message names it. Nothing has been computed.
            NumericalError: a step computed logits that are not numbers.
        """
        settings: Settings = {
            "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
            "seed": seed, "stop": stop, "ignore_eos": ignore_eos, "logprobs": logprobs,
        }  # fmt: skip
        requests = self._inputs.requests(prompts, n, settings, prefix)
        finished: dict[int, Completion] = {}
        with request_progress(progress, len(requests), self._engine.lanes) as completed:
            for event in self._run(requests, self.session(logits_processor, speculate)):
                if event.completion is not None:
                    finished[event.index] = event.completion
                    completed(len(finished))
        return [finished[index] for index in sorted(finished)]

    def stream(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        n: int = 1,
        logits_processor: LogitsProcessor | None = None,
        prefix: Prefix | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        **settings: Unpack[Settings],
    ) -> Generator[Event, None, None]:
        """The tokens of `generate` as they are drawn, by all requests in turn.

        Everything is checked before this returns; the first step runs when the first event is asked for. Whoever stops
        early closes the iterator or lets go of it: its sequences end, as they do after an exception in the loop.

        Args:
            prompts: as `generate` takes them.
            n: the same.
            logits_processor: the same.
            prefix: the same.
            speculate: the same.
            **settings: the other settings of `generate`.

        Raises:
            TypeError, ValueError: a prompt or a setting is wrong; the message names it. Nothing has been computed.
        """
        return self._run(self._inputs.requests(prompts, n, settings, prefix), self.session(logits_processor, speculate))

    def _run(self, requests: list[Request], session: Session) -> Generator[Event, None, None]:
        with session:
            for request in requests:
                session.add(request)
            while session.busy:
                yield from session.step()

    def prefix(self, tokens: str | Sequence[int]) -> Prefix:
        """Compute the state of the beginning of prompts or texts once, for `generate`, `stream`, `score` and `submit`.

        `lm.generate(prompts, prefix=p)` is `lm.generate` of the joined prompts without computing the prefix again, for
        a prefix of any length: the same numbers as far as float32 rounds; bit for bit where its length is one more than
        a multiple of `chunk` and `generate` has one prompt. It keeps a state (`nbytes`) on the device.

        Args:
            tokens: a string, encoded as a prompt is, or a list of token ids. Text that continues it is encoded by
                itself, which may give other tokens than the joined text would.

        Raises:
            TypeError, ValueError: neither, empty, or longer than the context.
            NumericalError: a step computed logits that are not numbers.
        """
        return compute_prefix(self._engine, self._inputs.encode(tokens, "prefix"))

    def load_prefix(self, path: str | os.PathLike[str]) -> Prefix:
        """Read a prefix that `Prefix.save` wrote, of the same checkpoint, dtype and context.

        Raises:
            SnapshotError: no such file, damaged, or of another model; the message says what was expected and found.
        """
        return Prefix(*load_snapshot(self._engine, Path(path), self._inputs.encode))

    def session(
        self, logits_processor: LogitsProcessor | None = None, speculate: Speculate | AsLoaded = "as loaded"
    ) -> Session:
        """A run of the engine to drive by hand: submit and cancel requests at any time, step by step.

        Args:
            logits_processor: of all its requests; see `generate`.
            speculate: the same.

        Raises:
            TypeError, ValueError: `speculate` names no drafter and is none.
        """
        speculation = self._engine.speculation(speculate)
        return Session(self._engine, self.tokenizer, self._inputs.request, logits_processor, speculation)

    def warmup(self, every_rung: bool = False, progress: bool | None = None) -> dict[str, float]:
        """Compile the steps of generation and scoring now, in threads, instead of on first use.

        Args:
            every_rung: also for fewer sequences than lanes (1, 2, 4, ...).
            progress: show a bar; None shows one where standard error is a terminal.

        Returns:
            Seconds by step. One that takes longer than two minutes is also named in a warning.
        """
        return warm_up(self._engine, every_rung, progress)

    def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> Completion:
        """Answer a conversation: the checkpoint's chat template, then `generate`.

        Args:
            messages: `{"role": ..., "content": ...}` in order.
            settings: as `generate` takes them.

        Raises:
            ValueError: the checkpoint has no tokenizer or no chat template.
        """
        if self.tokenizer is None:
            raise ValueError("chat: the checkpoint has no tokenizer.json; apply a template yourself and use generate")
        completions = self.generate([self.tokenizer.encode_chat(messages)], **settings)
        if len(completions) != 1:
            raise ValueError(f"chat answers once, got n={settings['n']}; use generate for several completions")
        return completions[0]

    def batch_file(self, input: str | os.PathLike[str], output: str | os.PathLike[str]) -> BatchFileReport:
        """Answer a file of OpenAI Batch lines, however long; a progress bar where standard error is a terminal.

        Args:
            input: a line is `{"custom_id", "method": "POST", "url", "body"}`; the url is /v1/completions or
                /v1/chat/completions, the body what `vllm run-batch` takes (docs/batch.md). Blank lines are skipped.
            output: a line per line, in order: id, custom_id, response (status_code, request_id, body) and error, which
                is null where the line was answered. What is not supported is an error on its line. The file appears,
                or replaces an older one, when everything has been written.

        Raises:
            ValueError: no line at all, or output is the input or no regular file.
            OSError: a file cannot be read or written.
        """
        model = BatchModel(self._inputs, self.session, self._scores, self.path.name)
        return batch_file(model, input, output, window=64 * self._engine.lanes)

    def forward(
        self,
        tokens: Any,
        return_states: bool = False,
        state: SequenceState | None = None,
        params: Mapping[str, jax.Array] | None = None,
    ) -> ForwardOutput:
        """Logits of every position, hidden states of every layer and, if asked for, the state after the last token.

        Differentiable: `jax.grad(lambda p: loss(lm.forward(tokens, params=p).logits))(lm.params)`. For research; large
        inputs hold all logits at once.

        Args:
            tokens: token ids, [T] or [N, T] of equal lengths.
            return_states: also return the state, which `state` of a later call continues from.
            state: start from here instead of from the beginning.
            params: use these instead of `lm.params`.

        Raises:
            TypeError, ValueError: tokens are not ids of the vocabulary, do not fit the context or the state.
        """
        flat = in_order(self.params if params is None else params, tuple(self.params))
        return forward(self._engine, self._structure, flat, np.asarray(tokens), state, return_states)
