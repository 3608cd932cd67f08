"""A loaded language model: generate, stream, chat, score, decide, divergence, embed, classify, perplexity, forward.

More than 300 lines: the public methods of one class, and most lines are their docstrings.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hybridlm.checkpoint import (
    Adapter,
    CheckpointError,
    Fingerprint,
    bind,
    dotted,
    fingerprint_of,
    load_parameters,
    open_adapter,
    open_checkpoint,
    resolve,
)
from hybridlm.checkpoint.classifier import Classifier
from hybridlm.checkpoint.saved.pieces import saved_pieces, unpacked
from hybridlm.checkpoint.saved.write import ModelDescription, save_checkpoint
from hybridlm.decision_models.decide import Decider
from hybridlm.decision_models.heads import LabelHead, RowsHead
from hybridlm.decision_models.prompts import FIELDS as REQUEST_FIELDS
from hybridlm.decision_models.prompts import Prompt, Prompts
from hybridlm.decision_models.questions import Answer
from hybridlm.decision_models.settings import read_settings
from hybridlm.devices.machine import Machine
from hybridlm.drafting.drafters import AsLoaded, Speculate
from hybridlm.engine.arguments import assemble
from hybridlm.engine.config import STEP_OPTIONS
from hybridlm.engine.engine import Engine
from hybridlm.engine.inputs import Inputs
from hybridlm.engine.prefix import Prefix, compute_prefix
from hybridlm.engine.probe_settings import ProbeSettings, folder_for
from hybridlm.engine.probing import TextProbing, probe_sites
from hybridlm.engine.snapshot_file import load_snapshot
from hybridlm.engine.warmup import warm_up
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.files.atomic import new_path
from hybridlm.files.finished import FinishedTexts
from hybridlm.forward import ForwardOutput, SequenceState, forward, in_order
from hybridlm.keywords import suggests_keywords
from hybridlm.openai_batch.answers import BatchModel
from hybridlm.openai_batch.batch_file import BatchFileReport, batch_file
from hybridlm.programs.start import Start
from hybridlm.progress import FileProgress, request_progress
from hybridlm.requests.finite import require_finite
from hybridlm.requests.interventions import Intervention
from hybridlm.requests.probes import Probe, interventions_of
from hybridlm.requests.result_html import table
from hybridlm.requests.results import Completion, Score
from hybridlm.requests.sampling_params import SamplingParams, Settings, takes_settings, with_settings
from hybridlm.requests.sequence import Request
from hybridlm.requests.validation import check_length, located, to_items
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.score_files.divergence_rows import DIVERGENCE_COLUMNS, DivergenceFileReport, with_means
from hybridlm.score_files.order import DEFAULT_SORT_WINDOW
from hybridlm.score_files.probed_rows import ProbedRows
from hybridlm.score_files.rows import Columns
from hybridlm.score_files.score_file import FileOptions, ScoreFileReport, score_file
from hybridlm.score_files.score_rows import RowValues, Scorer, StepPlaces, ValueScorer
from hybridlm.scoring.choice import Choice, choose
from hybridlm.scoring.distributions import DistributionSettings, Question
from hybridlm.scoring.divergence import ComparedModel, Divergence, compare
from hybridlm.scoring.hidden import ReadText, read_hidden
from hybridlm.scoring.items import ItemReader, ScoredIds, score_items
from hybridlm.scoring.perplexity import corpus_perplexity, prefix_token, read_files, windows_of
from hybridlm.scoring.pooling import Classification, Pooling, check_pooling, classes, pooled
from hybridlm.scoring.scorer import checked, scores
from hybridlm.session import Event, Session
from hybridlm.text.chat_template import REASONING
from hybridlm.text.reasoning import markers_of, split_thoughts
from hybridlm.text.tokenizer import Tokenizer
from hybridlm.update import ModelWeights, NewWeights, checked_update, fingerprint_after
from hybridlm.version import __version__
from hybridlm.worker import open_session, run_worker
from ir_passes import Certificate
from ir_passes.jaxpr.forked import require_threads
from models import Decoder, family_of
from models.layers.embedding import embedding_rows
from models.ops.linear import LinearWeight
from models.ops.quantised_weight import stored_form

BATCH_LINES_PER_LANE = 16
"""Lines of a batch file that are answered together, by lane: more lose more work in a kill, fewer leave lanes idle."""


@dataclass(frozen=True)
class LoadedFiles:
    """Contents of the files of a model, without its weights.

    Attributes:
        path: directory of the checkpoint.
        fingerprint: of the configuration and the weights.
        tokenizer: None if the checkpoint has none.
        eos_token_ids: tokens that end a completion.
        adapters: merged into the weights.
        classifier: head of texts; None without.
        has_vocabulary_head: False for a model that computes no logits of tokens.
    """

    path: Path
    fingerprint: Fingerprint
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    adapters: Sequence[Adapter] = ()
    classifier: Classifier | None = None
    has_vocabulary_head: bool = True


class LM:
    """A loaded model; `hybridlm.load` makes it.

    Attributes:
        path: directory of the checkpoint.
        model: flax nnx module with the parameters; over a mesh its dimensions are those of one device.
        config: the model's configuration, read from config.json.
        tokenizer: None if the checkpoint has none; token ids always work.
        params: parameters by dotted name, as `forward` takes them for differentiation.
        context: maximum length of a sequence, prompt and completion together.
        eos_token_ids: tokens that end a completion.
        start: seconds of each part of the start.
    """

    def __init__(
        self,
        model: Decoder,
        params: dict[str, jax.Array],
        engine: Engine,
        source: LoadedFiles,
        start: Start | None = None,
    ):
        self.start = start
        self.path, self._fingerprint, self._adapters = source.path, source.fingerprint, list(source.adapters)
        self._source_fingerprint = source.fingerprint
        self._types = {name: _type_of(param) for name, param in params.items()}
        self.model, self.config = model, engine.config
        self.params, self.tokenizer = params, source.tokenizer
        self.context = engine.context
        self.eos_token_ids = source.eos_token_ids
        self._structure, self._engine = engine.programs.structure, engine
        self._classifier, self._has_vocabulary_head = source.classifier, source.has_vocabulary_head

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the configuration and of every byte of the weights.

        The first use reads the files again. If they have changed since they were loaded, the text is random and a
        warning is logged (docs/checkpoints/compatibility.md).
        """
        return str(self._fingerprint)

    def __repr__(self) -> str:
        c = self.config
        size = sum(array.size for array in self.params.values())
        return (
            f"LM({c.family}, {size / 1e6:.1f}M parameters, {c.num_layers} layers, "
            f"lanes={self._engine.lanes}, context={self.context})"
        )

    @property
    def engine(self) -> Engine:
        """The engine of all methods; raises ForkedProcessError in a process without JAX's threads."""
        require_threads(f"{self.path}")
        return self._engine

    def _repr_html_(self) -> str:
        """List every parameter with its dtype and shape, below the line of `repr`."""
        rows = [(name, f"{stored_form(one)} {list(one.shape)}") for name, one in self.params.items()]
        return (
            f"<pre>{escape(repr(self))}</pre><details><summary>{len(rows)} parameters</summary>{table(rows)}</details>"
        )

    @takes_settings
    def generate(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        logits_processor: LogitsProcessor | None = None,
        progress: bool | None = None,
        prefix: Prefix | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        hidden_states: Sequence[int] = (),
        states: bool = False,
        positions: str = "last",
        capture_to: str | os.PathLike[str] | None = None,
        interventions: Any = None,
        **settings: Unpack[Settings],
    ) -> list[Completion]:
        """Generate completions for any number of prompts, with continuous batching over the lanes.

        Args:
            prompts: a list whose items are strings or lists of token ids; a bare string is one prompt.
            sampling_params: how tokens are sampled and when completions end, for all prompts or a list with one for
                each. With a list each request is sampled as in a call with its prompt alone.
            n: completions per prompt; request i * n + j is the j-th completion of prompt i.
            logits_processor: `f(logits float32[vocab], last_token int32, position int32) -> float32[vocab]`, a jittable
                function of one lane; it changes which token is sampled, not the reported log-probabilities. Pass the
                same function object again to reuse its compiled step.
            progress: show a progress bar of completed prompts; None shows one if there are more prompts than lanes and
                standard error is a terminal.
            prefix: state of a common beginning that every prompt continues; a prompt may then be empty (see `prefix`).
            speculate: drafter for speculative decoding, as for `load`; "as loaded" keeps the one given there. It
                changes the speed, and the sampled tokens only where float32 rounds to a tie.
            hidden_states, states, capture_to: what is read inside the model (`Completion.captured`), as for `score`;
                nothing is drafted with one of them, nor with interventions.
            positions: "all" reads where each token of the completion is sampled, which is at the position of the token
                before it; "last" only where the last token is sampled.
            interventions: changes inside the model: a list of `Intervention` for all prompts, or one for each; their
                positions count from the first token of the prompt into the completion.
            **settings: fields of `SamplingParams`; they override those of `sampling_params`. A list has one value for
                each prompt, as `temperature=[0.0, 0.7]` (docs/engine.md).

        Returns:
            Completions in the order of the prompts, the n of one prompt next to each other.

        Raises:
            TypeError, ValueError: a prompt or a setting is wrong; the message names it. Nothing has been computed.
            NumericalError: a step computed logits that are not numbers.
            GrammarError: no token can follow in the `structured_outputs` of a request.
        """
        requests = self._inputs.requests(prompts, n, sampling_params, prefix, settings)
        inside = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        requests, session = self._opened(requests, inside, n, logits_processor, speculate)
        finished: dict[int, Completion] = {}
        try:
            with request_progress(progress, len(requests), self.engine.lanes) as completed:
                for event in self._run(requests, session):
                    if event.completion is not None:
                        finished[event.index] = event.completion
                        completed(len(finished))
        except (KeyboardInterrupt, NumericalError, GrammarError) as error:
            if finished:
                count = f"{len(finished):,} of {len(requests):,} completions were finished and are lost"
                error.add_note(f"{count}: stream yields each as it ends, batch_file keeps them in a file")
            raise
        return [finished[index] for index in sorted(finished)]

    @takes_settings
    def stream(
        self,
        prompts: str | Sequence[str | Sequence[int]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        n: int = 1,
        logits_processor: LogitsProcessor | None = None,
        prefix: Prefix | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        hidden_states: Sequence[int] = (),
        states: bool = False,
        positions: str = "last",
        capture_to: str | os.PathLike[str] | None = None,
        interventions: Any = None,
        **settings: Unpack[Settings],
    ) -> Generator[Event, None, None]:
        """Yield the tokens of `generate` as they are sampled, those of all requests interleaved.

        Arguments are checked before this returns; the first step runs when the first event is requested. Closing or
        dropping the iterator cancels the remaining requests, and so does an exception in the loop.

        Args:
            prompts, sampling_params, n, logits_processor, prefix, speculate: as for `generate`.
            hidden_states, states, positions, capture_to, interventions: as for `generate`; what was read is in the
                completion of a request's last event.
            **settings: fields of `SamplingParams`.

        Raises:
            TypeError, ValueError: a prompt or a setting is wrong; the message names it. Nothing has been computed.
        """
        requests = self._inputs.requests(prompts, n, sampling_params, prefix, settings)
        inside = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        return self._run(*self._opened(requests, inside, n, logits_processor, speculate))

    @takes_settings
    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling_params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        continue_final_message: bool | str = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        logits_processor: LogitsProcessor | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        hidden_states: Sequence[int] = (),
        states: bool = False,
        positions: str = "last",
        capture_to: str | os.PathLike[str] | None = None,
        interventions: Any = None,
        **settings: Unpack[Settings],
    ) -> Completion:
        """Answer a conversation: apply the checkpoint's chat template, then `generate`.

        The completion's `reasoning` holds the thoughts of a model that thinks, its `answer` the text after them.

        Args:
            messages: `{"role": ..., "content": ...}` in order.
            tools, documents, continue_final_message, chat_template: as for `Tokenizer.apply_chat_template`.
            enable_thinking: True or False for templates that ask it; None leaves it to the template.
            chat_template_kwargs: other variables of the template.
            sampling_params, logits_processor, speculate: as for `generate`.
            hidden_states, states, positions, capture_to, interventions: as for `generate`; positions count the tokens
                of the whole prompt, as the template makes it.
            **settings: fields of `SamplingParams`.

        Raises:
            ValueError: the checkpoint has no tokenizer or no chat template, or the template cannot be used with these
                messages, or does not ask whether to think.
        """
        if self.tokenizer is None:
            raise ValueError("chat: the checkpoint has no tokenizer.json; apply a template yourself and use generate")
        variables = {
            **self.tokenizer.thinking_variables(enable_thinking, chat_template, tools),
            **(chat_template_kwargs or {}),
            "tools": tools,
            "documents": documents,
            "continue_final_message": continue_final_message,
            "chat_template": chat_template,
        }
        prompt = self.tokenizer.encode_chat(messages, **variables)
        options: dict[str, Any] = {
            "logits_processor": logits_processor, "speculate": speculate, "hidden_states": hidden_states,
            "states": states, "positions": positions, "capture_to": capture_to, "interventions": interventions,
        }  # fmt: skip
        within = continue_final_message in REASONING
        params = with_settings(sampling_params, settings)
        if within and params.thinking_budget is not None:
            raise ValueError("thinking_budget: cannot be counted for thoughts that continue_final_message goes on with")
        if within and params.structured_outputs is not None:
            raise ValueError("structured_outputs: cannot begin in thoughts that continue_final_message goes on with")
        done = self.generate([prompt], params, **options)[0]
        if not within:
            return done
        parts = split_thoughts(
            self.tokenizer,
            done.text or "",
            done.token_ids,
            markers_of(self.tokenizer, params.think_end),
            True,
            params.skip_special_tokens,
            params.keep_tool_markers,
        )
        return replace(done, reasoning=parts.reasoning, answer=parts.answer)

    @suggests_keywords
    def session(
        self,
        *,
        logits_processor: LogitsProcessor | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        capture_to: str | os.PathLike[str] | None = None,
    ) -> Session:
        """Open a session: submit and cancel requests at any time, and run the engine step by step.

        Args:
            logits_processor: for all its requests; see `generate`.
            speculate: drafter for all its requests; see `generate`.
            capture_to: folder to create for what its requests read inside the model, as for `generate`.

        Raises:
            TypeError, ValueError: `speculate` is neither the name of a drafter nor a drafter.
            FileExistsError, OSError: the folder exists, or cannot be made.
        """
        folder = folder_for(capture_to)
        return open_session(self.engine, self.tokenizer, self._inputs.request, logits_processor, speculate, folder)

    @suggests_keywords
    def score(
        self,
        texts: str | Sequence[str | Sequence[int] | Mapping[str, Any]],
        *,
        top_logprobs: int = 0,
        prefix: Prefix | None = None,
        token_ids: Any = None,
        top: int = 0,
        start: int | Sequence[int] | None = None,
        temperature: float = 1.0,
        entropy: bool = False,
        hidden_states: Sequence[int] = (),
        states: bool = False,
        positions: Any = "last",
        capture_to: str | os.PathLike[str] | None = None,
        interventions: Any = None,
    ) -> list[Score]:
        """Compute the log-probability of every token of every text: a float32 log-softmax over the whole vocabulary.

        The beginning that texts share is prefilled once, in whole chunks, without changing a bit of any score. With one
        of `token_ids`, `top`, `temperature` and `entropy`, scores also have ranks, and arrays about the distributions.
        With one of the last five arguments every text is prefilled by itself (docs/research.md).

        Args:
            texts: a list whose items are strings or lists of token ids; a bare string is one text. Without `prefix` an
                item can also be `{"prompt": ..., "completion": ...}`, two texts or two lists of token ids, of which the
                completion is scored, or each of a list of completions; or `{"messages": [...]}`, a chat whose last
                answer is scored up to its end token, with `tools` and `chat_template_kwargs` for its template.
            top_logprobs: number of most likely tokens to report at each position.
            prefix: state that every text continues (see `prefix`); the scores are those of the texts' own tokens,
                including the first.
            token_ids: ids whose log-probabilities and ranks are reported (`Score.chosen`): a list for all positions, or
                one list for each score. The list of a score has ids for all its positions, or a list of ids for each
                position with a prediction, from `start` on.
            top: number of most likely ids to report at each position (`Score.top`), as arrays.
            start: first token of a text, or of a completion, to report on; one number, or one for each score.
            temperature: divides the logits; all log-probabilities, ranks and entropies are those of the result.
            entropy: report the entropy of the distribution at each position (`Score.entropy`).
            hidden_states: indices of hidden states to return (`Score.captured`), as in `forward`: 0 after the
                embedding, i after layer i - 1.
            states: return recurrent states and the inputs of convolutions, as they are after a token.
            positions: tokens at which they are read, counted among all that the model reads: "last", "all", a list of
                indices or a bool mask, or one of these for each score.
            capture_to: folder to create for a safetensors file of each score, to which arrays are written while they
                are computed, or the name of a Parquet file (`.parquet`) with a row for each position that is read
                (then `captured` is None); None keeps them in memory.
            interventions: changes inside the model: a list of `Intervention` for all texts, or one for each score.

        Returns:
            One score per text, in order; a prompt with several completions has one for each, next to each other. Scores
            of completions and answers have only their own tokens, with `prefix_tokens` before them. If a token spans
            prompt and completion it is scored, and `boundary_shift` is not 0 (docs/scoring.md).

        Raises:
            TypeError, ValueError: a text is wrong (the message names it); nothing has been computed.
            NumericalError: a step computed log-probabilities that are not numbers.
        """
        most = self._inputs.max_logprobs
        if isinstance(top_logprobs, bool) or not isinstance(top_logprobs, int) or not 0 <= top_logprobs <= most:
            raise ValueError(f"top_logprobs: expected 0..{most}, got {top_logprobs!r}")
        ask = DistributionSettings(token_ids, top, start, temperature, entropy)
        ask.check(self.config.vocab_size)
        if ask.given and top_logprobs:
            raise ValueError("top_logprobs: expected 0 with token_ids, top, temperature or entropy; use top")
        inside = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        inside.check()

        def found_of(given: Sequence[ScoredIds]) -> list[Score]:
            question = ask.question(given, self.config.vocab_size) if ask.given else None
            probing = self._probing(inside, given, prefix) if inside.given else None
            return self._scores([one.token_ids for one in given], top_logprobs, prefix, question, probing)

        if prefix is None:
            found = score_items(self._items, found_of, to_items(texts, "texts"), "texts")
        else:
            ids = self._inputs.continuations(prefix, texts, "texts")
            found = found_of([ScoredIds(one, len(prefix)) for one in ids])
        return [replace(one, tokenizer=self.tokenizer) for one in checked(found)]

    @suggests_keywords
    def score_file(
        self,
        input: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        token_ids: str | Sequence[int] | None = None,
        top: int = 0,
        start: int | None = None,
        temperature: float = 1.0,
        entropy: bool = False,
        hidden_states: Sequence[int] = (),
        states: bool = False,
        positions: str = "last",
        interventions: str | Sequence[Intervention] | None = None,
        **options: Unpack[FileOptions],
    ) -> ScoreFileReport:
        """Score a file of texts of any length, `.jsonl` or `.parquet` by the ending of each name.

        A run that was killed continues when called again with the same arguments; until all is done the finished rows
        are in the folder `OUTPUT.parts`. docs/scoring.md has the formats and the guarantees.

        Args:
            input: lines `{"id": ..., "text": ...}`, `{"id": ..., "token_ids": [...]}`, or with `prompt` and
                `completion` or `messages` as for `score`; or columns of these names. Ids are optional.
            output: one row per input row, in order: id, token_ids, logprobs (the first of a text is null), sum_logprob,
                perplexity, and boundary_shift of a prompt; or id and error for a row that cannot be scored. It appears,
                or replaces an older file, once everything has been scored.
            token_ids: ids whose log-probabilities and ranks are written: a list for all positions of all rows, or the
                name of the field or column that has them for each row, as for `score`.
            top, start, temperature, entropy: as for `score`, for all rows.
            hidden_states, states, positions: what is read inside the model, as for `score`, at the last token or at all
                of each row: columns "positions", "hidden_states[i]" and the names of the states, the numbers of all
                positions one after another. Not for lists of completions.
            interventions: changes inside the model: a list for all rows, or the name of the field or column that has
                them for each row, objects with `kind` and the arguments of the method of that name of `Intervention`;
                null for none. Rows with changes share no beginnings.
            **options: `strict`: raise at the first row that cannot be scored; `window` (4096): maximum number of rows
                that are scored together and saved as a part, fewer if they are long; `shard`: "i/n", from "0/n" to
                "n-1/n": score only this share of the windows, to an output with the shard in its name; `restart`:
                delete the parts of an earlier run and begin again; `progress`: show a progress bar, or with "lines"
                print a line now and then where standard error is no terminal; None shows a bar if it is one;
                `sort_window` (64 MiB): bytes of consecutive rows that are sorted by their beginnings, so that a common
                beginning is computed once; they are written in the order of the input. 0 sorts nothing.

        Raises:
            ValueError: a row that cannot be scored if `strict`; the input has no rows or is not what its name says; the
                output is the input or not a regular file; its parts belong to another process, or were made from
                another input, by another model or with other settings.
            MissingExtra: Parquet without pyarrow.
            OSError: a file cannot be read or written; parts that were written stay.
        """
        settings = DistributionSettings(token_ids, top, start, temperature, entropy).of_file(self.config.vocab_size)
        inside = ProbeSettings(hidden_states, positions, states)
        scorer = replace(self._scorer, settings=settings)
        if inside.given or interventions is not None:
            sites = probe_sites(self.engine, "score_file")
            capture = sites.capture(hidden_states, states)
            changes = interventions if isinstance(interventions, str) else interventions_of(interventions, 1, "rows")[0]
            scorer = replace(scorer, probed=ProbedRows(sites, capture, positions, changes))
        return score_file(scorer, input, output, **options)

    def divergence(self, other: "LM", texts: str | Sequence[str | Sequence[int]]) -> Divergence:
        """Compare two models with one tokenizer: the distributions in all places, over the whole vocabulary.

        KL in both directions, Jensen-Shannon divergence, and whether the most likely token is the same: for instance of
        a quantised model and the plain one. Memory holds both models, and the logits of one block of tokens.

        Args:
            other: the other model, with the same vocabulary; settings such as lanes and context are its own.
            texts: a list whose items are strings or lists of token ids; a bare string is one text.

        Returns:
            Arrays of all tokens of all texts, and their means.

        Raises:
            TypeError, ValueError: a text does not fit one of the models (the message names it), the vocabularies or
                tokenizers differ (token ids only need the same vocabulary), or the models are on other devices, or
                those of several processes.
            NumericalError: a model computed logits that are not numbers.
        """
        self._require_comparable(other)
        items = to_items(texts, "texts")
        ids = [self._compared(other, item, f"texts[{i}]") for i, item in enumerate(items)]
        divergence, wrong = self._compare(other, ids)
        require_finite(wrong, "texts[{}]".format)
        return divergence

    @suggests_keywords
    def divergence_file(
        self,
        other: "LM",
        input: str | os.PathLike[str],
        output: str | os.PathLike[str],
        **options: Unpack[FileOptions],
    ) -> DivergenceFileReport:
        """Compare two models on a file of texts of any length, as `score_file` scores one.

        Args:
            other: the other model, as for `divergence`.
            input: lines or columns as for `score_file`, of texts or token ids.
            output: one row per input row, in order: id, token_ids, and for each token kl, reverse_kl, js and same_top,
                with their means; the first token has no numbers. Or id and error.
            **options: `strict`, `window`, `shard`, `restart`, `progress` and `sort_window`, as for `score_file`.

        Returns:
            The report, with the means over all tokens of the output.

        Raises:
            TypeError, ValueError: as `divergence`, but for the texts; or as `score_file`.
            MissingExtra, OSError: as `score_file`.
        """
        self._require_comparable(other)

        def values(ids: Sequence[tuple[int, ...]]) -> list[RowValues]:
            found, wrong = self._compare(other, ids, full_lanes=True)
            return [RowValues(found.of(i), len(one), wrong.get(i)) for i, one in enumerate(ids)]

        origin = {f"other {name}": value for name, value in other._origin().items()}
        scorer = self._value_scorer(DIVERGENCE_COLUMNS, partial(self._compared, other), values, origin)
        return with_means(score_file(scorer, input, output, **options))

    def _require_comparable(self, other: "LM") -> None:
        if not isinstance(other, LM):
            raise TypeError(f"other: expected a model that hybridlm.load returned, got {type(other)}")
        if self.config.vocab_size != other.config.vocab_size:
            sizes = f"{self.config.vocab_size} and {other.config.vocab_size}"
            raise ValueError(f"other: expected one vocabulary, these have {sizes} tokens")
        if self.engine.placement.mesh != other.engine.placement.mesh:
            raise ValueError("other: expected both models on the same devices, their meshes differ; load both alike")
        self.engine.placement.require_one_process("divergence")
        self._require_vocabulary_head()
        other._require_vocabulary_head()

    def _compared(self, other: "LM", item: Any, where: str) -> tuple[int, ...]:
        """Return the token ids of one text, which fit both models."""
        mine, its = (None if one.tokenizer is None else one.tokenizer.fingerprint for one in (self, other))
        if isinstance(item, str) and mine != its:
            raise ValueError(f"{where}: expected the same tokenizer in both models, theirs differ; give token ids")
        ids = self._inputs.encode(item, where)
        check_length(ids, where, other.context)
        return ids

    def _compare(
        self, other: "LM", ids: Sequence[tuple[int, ...]], full_lanes: bool = False
    ) -> tuple[Divergence, dict[int, int]]:
        sides = ComparedModel(self.engine, self._structure), ComparedModel(other.engine, other._structure)
        return compare(sides, ids, full_lanes)

    def embed(
        self, texts: str | Sequence[str | Sequence[int]], *, pooling: Pooling = "last", normalised: bool = True
    ) -> np.ndarray:
        """Embed texts: the residual stream after the final norm, pooled to one vector for each.

        Args:
            texts: a list whose items are strings or lists of token ids; a bare string is one text.
            pooling: "last" or "first" for the vector of the last or the first token, "mean" for the mean of all.
            normalised: divide each vector by its length, so that products of vectors are cosines.

        Returns:
            float32 [texts, hidden].

        Raises:
            TypeError, ValueError: a text or `pooling` is wrong; nothing has been computed.
            NumericalError: a step computed values that are not numbers.
        """
        check_pooling(pooling)
        ids = self._text_inputs.encode_all(texts, "texts")
        embeddings = pooled(self.engine, ids, self.config.hidden_size, pooling, normalised)
        require_finite(embeddings.wrong, "texts[{}]".format)
        return embeddings.vectors

    @suggests_keywords
    def embed_file(
        self,
        input: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        pooling: Pooling = "last",
        normalised: bool = True,
        **options: Unpack[FileOptions],
    ) -> ScoreFileReport:
        """Embed a file of texts of any length, `.jsonl` or `.parquet`, as `score_file` scores one.

        Args:
            input: lines or columns as for `score_file`, of texts or token ids.
            output: one row per input row, in order: id and embedding, or id and error.
            pooling, normalised: as for `embed`.
            **options: `strict`, `window`, `shard`, `restart`, `progress` and `sort_window`, as for `score_file`.

        Raises:
            ValueError, MissingExtra, OSError: as `score_file`.
        """
        check_pooling(pooling)

        def values(ids: Sequence[tuple[int, ...]]) -> list[RowValues]:
            found = pooled(self.engine, ids, self.config.hidden_size, pooling, normalised, full_lanes=True)
            return [
                RowValues({"embedding": vector}, len(one), found.wrong.get(i))
                for i, (one, vector) in enumerate(zip(ids, found.vectors, strict=True))
            ]

        kind = f"{pooling} token, {'normalised' if normalised else 'as it is'}"
        encode = self._text_inputs.encode
        scorer = self._value_scorer({"embedding": "floats"}, encode, values, {"embedding": kind})
        return score_file(scorer, input, output, **options)

    @suggests_keywords
    def classify_file(
        self, input: str | os.PathLike[str], output: str | os.PathLike[str], **options: Unpack[FileOptions]
    ) -> ScoreFileReport:
        """Classify a file of texts of any length, or compute their rewards, as `score_file` scores one.

        Args:
            input: lines or columns as for `score_file`, of texts or token ids.
            output: one row per input row, in order: id and logits, one for each label, and with several labels the
                most likely label and the probabilities of all; or id and error.
            **options: `strict`, `window`, `shard`, `restart`, `progress` and `sort_window`, as for `score_file`.

        Raises:
            ValueError: the checkpoint has no head of texts, or as `score_file`.
            MissingExtra, OSError: as `score_file`.
        """
        classifier = self._require_classifier("classify_file")
        columns: Columns = {"logits": "floats"}
        if len(classifier.labels) > 1:
            columns = {"logits": "floats", "label": "text", "probabilities": "floats"}

        def values(ids: Sequence[tuple[int, ...]]) -> list[RowValues]:
            classification, wrong = classes(self.engine, ids, classifier, full_lanes=True)
            rows: list[dict[str, Any]] = [{"logits": logits} for logits in classification.logits]
            if len(classifier.labels) > 1:
                for row, shares in zip(rows, classification.probabilities, strict=True):
                    row["label"] = classifier.labels[int(np.argmax(row["logits"]))]
                    row["probabilities"] = shares.astype(np.float32)
            return [
                RowValues(row, len(text), wrong.get(i)) for i, (row, text) in enumerate(zip(rows, ids, strict=True))
            ]

        scorer = self._value_scorer(columns, self._text_inputs.encode, values, {"logits": "score.weight"})
        return score_file(scorer, input, output, **options)

    def _value_scorer(
        self,
        columns: Columns,
        encode: Callable[[Any, str], Any],
        values: Callable[[Any], list[RowValues]],
        origin: Mapping[str, str | int],
        request: tuple[str, ...] | None = None,
    ) -> ValueScorer:
        return ValueScorer(
            columns,
            encode,
            values,
            {**self._origin(), **origin},
            self._tokens_saved,
            request,
            computed=self._tokens_computed,
            step_places=self._step_places,
            keeping=self._keeping,
        )

    @contextmanager
    def _keeping(self, finished: FinishedTexts) -> Iterator[None]:
        """Keep the results of single texts; not with several processes, which would all have to know them."""
        if self.engine.placement.several_processes:
            yield
            return
        self.engine.finished = finished
        try:
            yield
        except OSError:
            raise  # nothing can be written
        except BaseException:
            finished.flush()
            raise
        finally:
            self.engine.finished = None

    def _tokens_computed(self) -> int:
        return sum(self.engine.stats[name] for name in ("prompt_tokens", "scored_tokens", "generated_tokens"))

    def _step_places(self) -> StepPlaces:
        stats = self.engine.stats
        return StepPlaces(stats["step_tokens"], stats["step_places"])

    def _tokens_saved(self) -> int:
        return self.engine.stats["prefix_tokens_saved"]

    def decide(self, state: Any, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
        """Answer typed questions about a state with a probability for every option, without generating a token.

        A question is `{"type": "choice", "instructions": ..., "criteria": {option: description or None}}`,
        `{"type": "score", "criteria": [levels, the lowest first]}` or `{"type": "noul"}` (true or false, with optional
        criteria of both). Each is a prompt whose last token is read: the logits of the options' labels, of any chat
        model, or the head of a decision model. docs/scoring.md has the files that say how a model is asked.

        Args:
            state: what the questions are about: text or other JSON.
            questions: name -> question.

        Returns:
            Name of a question -> its answer.

        Raises:
            TypeError, ValueError: a question is wrong, or cannot be asked of this model; nothing has been computed.
            CheckpointError: the files of the decision model cannot be used.
            NumericalError: a step computed values that are not numbers.
        """
        return self.decide_requests([{"state": state, "questions": questions}])[0]

    def decide_requests(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Answer]]:
        """Answer any number of requests in lanes, as `decide`; a common beginning of prompts is computed once.

        Args:
            requests: `{"state": ..., "questions": {name: question}}` each.

        Returns:
            The answers to each request, in order.

        Raises:
            TypeError, ValueError: a request is wrong (the message names it); nothing has been computed.
            CheckpointError, NumericalError: as `decide`.
        """
        if isinstance(requests, str | Mapping) or not isinstance(requests, Sequence):
            raise TypeError(f"requests: expected a list of requests, got {type(requests)}")
        decider, encoded = self._decider, []
        for i, request in enumerate(requests):
            try:
                encoded.append(decider.encode(request))
            except (TypeError, ValueError) as error:
                raise located(error, f"requests[{i}]") from error
        answers = decider.answers(encoded)
        wrong = {i: token for i, token in enumerate(answers) if isinstance(token, int)}
        require_finite(wrong, "requests[{}]".format)
        return [answer for answer in answers if not isinstance(answer, int)]

    @suggests_keywords
    def decide_file(
        self, input: str | os.PathLike[str], output: str | os.PathLike[str], **options: Unpack[FileOptions]
    ) -> ScoreFileReport:
        """Answer a file of requests of any length, as `score_file` scores one.

        Args:
            input: `.jsonl`; lines `{"id": ..., "state": ..., "questions": {name: question}}`, as for `decide`.
            output: `.jsonl`; one line per input line, in order: id and answers (name -> the fields of
                `Answer.to_dict`), or id and error.
            **options: `strict`, `window`, `shard`, `restart`, `progress` and `sort_window`, as for `score_file`.

        Raises:
            ValueError, OSError: as `score_file`.
            CheckpointError: as `decide`.
        """
        decider = self._decider_with(full_lanes=True)

        def values(requests: Sequence[list[Prompt]]) -> list[RowValues]:
            rows: list[RowValues] = []
            for request, one in zip(requests, decider.answers(requests), strict=True):
                tokens = sum(len(prompt.token_ids) for prompt in request)
                wrong = one if isinstance(one, int) else None
                said = {} if isinstance(one, int) else {name: answer.to_dict() for name, answer in one.items()}
                rows.append(RowValues({"answers": said}, tokens, wrong))
            return rows

        origin: dict[str, str | int] = {"decisions": decider.prompts.settings.digest}
        columns: Columns = {"answers": "object"}
        scorer = self._value_scorer(columns, lambda item, where: decider.encode(item), values, origin, REQUEST_FIELDS)
        return score_file(scorer, input, output, **options)

    @property
    def _decider(self) -> Decider:
        return self._decider_with(full_lanes=False)

    def _decider_with(self, full_lanes: bool) -> Decider:
        settings = self._prompts.settings
        if settings.head is None:
            self._require_vocabulary_head()
            dtype = np.dtype(jnp.dtype(self.engine.kind.dtype))
            head = LabelHead(self._prompts.tokenizer, self._head_rows, dtype)
        else:
            head = RowsHead(settings.head)

        def read(ids: Sequence[tuple[int, ...]], places: Sequence[tuple[int, ...]]) -> list[ReadText]:
            return read_hidden(self.engine, ids, places, self.config.hidden_size, full_lanes=full_lanes)

        return Decider(self._prompts, head, read, self.context)

    @cached_property
    def _prompts(self) -> Prompts:
        if self.tokenizer is None:
            raise ValueError("decide: the checkpoint has no tokenizer.json, which prompts need")
        return Prompts(self.tokenizer, read_settings(self.path, self.config.hidden_size))

    def _head_rows(self, ids: Sequence[int]) -> np.ndarray:
        """Return rows of the vocabulary head with every factor on logits, float64 [ids, hidden]."""
        if max(ids) >= self.config.vocab_size:
            raise ValueError(f"labels: token id {max(ids)} is outside the vocabulary [0, {self.config.vocab_size})")
        head = self.params["embed_tokens" if self.config.tied else "lm_head"]
        if isinstance(head, jax.Array) and not head.is_fully_addressable:
            if not head.is_fully_replicated:
                raise ValueError("decide: expected the vocabulary head whole in each process, the mesh divides it")
            head = head.addressable_data(0)
        rows = np.asarray(embedding_rows(head, jnp.asarray(ids, jnp.int32)), np.float64)
        return rows * self.config.logits_multiplier

    def _require_classifier(self, method: str) -> Classifier:
        if self._classifier is None:
            raise ValueError(f"{method}: expected a checkpoint with score.weight, {self.path} has none")
        return self._classifier

    def classify(self, texts: str | Sequence[str | Sequence[int]]) -> Classification:
        """Classify texts, or compute their rewards, by the head of a sequence-classification or reward checkpoint.

        The head (`score.weight`) reads the last token of each text.

        Args:
            texts: a list whose items are strings or lists of token ids; a bare string is one text.

        Raises:
            TypeError, ValueError: a text is wrong, or the checkpoint has no such head; nothing has been computed.
            NumericalError: a step computed values that are not numbers.
        """
        classifier = self._require_classifier("classify")
        classification, wrong = classes(self.engine, self._text_inputs.encode_all(texts, "texts"), classifier)
        require_finite(wrong, "texts[{}]".format)
        return classification

    def choose(self, context: str | Sequence[int], options: Sequence[str] | Sequence[Sequence[int]]) -> Choice:
        """Choose the option that continues the context best.

        Context and option are tokenized together. The scored tokens begin at the first one that differs from the tokens
        of the context alone, so they contain the whole option (`Choice.boundary_shift`). An empty context is the
        model's first token, or its end token if it has none. A space between the two has to be given.

        Args:
            context: a text, or token ids.
            options: texts, or lists of token ids, like the context.

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

    @suggests_keywords
    def perplexity(
        self,
        texts: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Sequence[int]],
        *,
        convention: str = "rolling",
        window: int | None = None,
        stride: int | None = None,
    ) -> float:
        """Perplexity of a corpus: exp of the mean negative log-probability over all counted tokens of all texts.

        Conventions differ in which tokens count and what precedes them; a figure without its convention and window is
        meaningless. A corpus split into texts has other figures than the same corpus as one text.

        * "rolling": each text, after the model's first token (or its end token if it has none), is split into windows,
          each of which predicts as many tokens as fit after the last token of the previous window (the last one, with
          fewer left, is filled up with the text before them). Every token counts. These are the log-likelihoods of
          lm_eval's `loglikelihood_rolling` with a `max_length` of the window less one.
        * "strided": windows begin `stride` tokens apart, and in each those tokens count that the previous one did not
          hold: the sliding window of transformers' documentation, with the same weight for every token. The first token
          of a text does not count. With a stride of half a window every later token has at least half a window of
          context.
        * "llama.cpp": windows side by side, in each the second half counts (from token `window // 2 + 1` on), and if
          the tokenizer puts a first token before texts, it replaces the first token of each window. Tokens that do not
          fill a window are left out. This is `llama-perplexity` with a `--ctx-size` of the window.

        Args:
            texts: a list whose items are strings, lists of token ids, or paths of text files (UTF-8), each one text; a
                bare string or path is one text. Paths are `pathlib.Path` or the like: a string is a text.
            convention: one of those above.
            window: maximum number of tokens seen together, at least 2; None for the context.
            stride: for "strided"; None for half a window.

        Raises:
            TypeError, ValueError: an argument is wrong, or no token counts.
            NumericalError: a step computed log-probabilities that are not numbers.
        """
        cut = windows_of(convention, self.context, window, stride, self.tokenizer, self.eos_token_ids)
        ids = self._inputs.encode_all(read_files(texts), "texts", of_any_length=True)
        if not ids:
            raise ValueError("texts: is empty; at least one text is needed")
        windows = ((i, part) for i, text in enumerate(ids) for part in cut(text))
        return corpus_perplexity(windows, self._scores, most=64 * self.engine.lanes)

    def forward(
        self,
        tokens: Any = None,
        *,
        embeddings: Any = None,
        return_states: bool = False,
        state: SequenceState | None = None,
        params: Mapping[str, jax.Array] | None = None,
        logits: bool = True,
        chunk: int | None = None,
    ) -> ForwardOutput:
        """Compute logits of every position, hidden states of every layer and, on request, the final state.

        Differentiable with respect to `params`, `embeddings` and `state`, by `jax.grad`, `jax.jvp` and `jax.linearize`,
        and under `jax.jit`, `jax.vmap` and `jax.shard_map`:
        `jax.grad(lambda p: -lm.forward(tokens, params=p, logits=False).logprobs.mean())(lm.params)`. A gradient keeps
        the inputs of each layer and the states between chunks. `logprobs` are bit for bit those of `score` for the same
        texts (docs/research.md says when).

        Args:
            tokens: token ids, [T] or [N, T] of equal lengths; None with `embeddings` alone.
            embeddings: float32 [T, hidden] or [N, T, hidden] in place of the tokens' own, which are
                `hidden_states[0]`; the tokens are then only those that are predicted.
            return_states: also return the state after the last token; pass it as `state` to continue.
            state: state to start from; None starts a sequence.
            params: parameters to use instead of `lm.params`.
            logits: keep the logits of all positions; False returns None for them and needs the memory of a block.
            chunk: tokens that run together, to which the last ones are padded; None for the steps of `score`. Others
                differ in rounding.

        Raises:
            TypeError, ValueError: tokens or embeddings have another shape or dtype, are not ids of the vocabulary, or
                do not fit the context or the state. Traced ids are not checked: one outside the vocabulary gives NaN.
        """
        self._require_vocabulary_head()
        self.engine.require_parameters()
        flat = in_order(self.params if params is None else params, tuple(self.params))
        return forward(self.engine, self._structure, flat, tokens, embeddings, state, return_states, logits, chunk)

    @suggests_keywords
    def prefix(self, tokens: str | Sequence[int]) -> Prefix:
        """Prefill a common beginning of prompts or texts once, for `generate`, `stream`, `score` and `submit`.

        `lm.generate(prompts, prefix=p)` equals `lm.generate` of the joined prompts without prefilling the prefix again,
        for a prefix of any length: equal up to float32 rounding, and bit for bit if its length is one more than a
        multiple of `chunk` and `generate` has one prompt. The prefix keeps its state (`nbytes`) on the device.

        Args:
            tokens: a string, encoded like a prompt, or a list of token ids. Text that continues it is encoded
                separately, which may give other tokens than the joined text would.

        Raises:
            TypeError, ValueError: neither, empty, or longer than the context.
            NumericalError: a step computed logits that are not numbers.
        """
        return compute_prefix(self.engine, self._inputs.encode(tokens, "prefix"))

    def load_prefix(self, path: str | os.PathLike[str]) -> Prefix:
        """Read a prefix that `Prefix.save` wrote, of the same checkpoint, dtype and context.

        Raises:
            SnapshotError: no such file, damaged, or of another model; the message says what was expected and found.
        """
        return Prefix(*load_snapshot(self.engine, Path(path), self._inputs.encode))

    @suggests_keywords
    def batch_file(
        self,
        input: str | os.PathLike[str],
        output: str | os.PathLike[str],
        *,
        window: int | None = None,
        restart: bool = False,
        progress: FileProgress = None,
        sort_window: int = DEFAULT_SORT_WINDOW,
    ) -> BatchFileReport:
        """Answer a file of OpenAI Batch lines of any length.

        A run that was killed continues when called again with the same arguments; until all is done the answered lines
        are in the folder `OUTPUT.parts`. The output has the same bytes as without the kill.

        Args:
            input: each line is `{"custom_id", "method": "POST", "url", "body"}`; the url is /v1/completions or
                /v1/chat/completions, the body the one of `vllm run-batch` (docs/batch.md). Blank lines are skipped.
            output: one line per input line, in order: id, custom_id, response (status_code, request_id, body) and
                error, which is null if the line was answered. An unsupported line has its error there. The file
                appears, or replaces an older one, once everything has been written.
            window: lines that share one queue over the lanes and are kept as a part, fewer if they are long; None for
                16 for each lane.
            restart: delete the parts of an earlier run and begin again.
            progress: show a progress bar, or with "lines" print a line now and then where standard error is no
                terminal; None shows a bar if it is one.
            sort_window: bytes of consecutive lines that are sorted by their prompts, so that with a prefix cache a
                common beginning is read once; they are written in the order of the input. 0 sorts nothing.

        Raises:
            ValueError: the input has no lines, or the output is the input or not a regular file; its parts belong to
                another process, or were made from another input, by another model or with other settings.
            OSError: a file cannot be read or written.
        """
        origin = {**self._origin(), "prefix_cache": self.engine.options.texts()["prefix_cache"]}
        saved, begin = self._tokens_saved, self.engine.clear_prefix_cache
        model = BatchModel(
            self._inputs, self.session, self._scores, self.path.name, origin, saved, begin, self._tokens_computed
        )
        lines = BATCH_LINES_PER_LANE * self.engine.lanes if window is None else window
        return batch_file(model, input, output, lines, restart, progress, sort_window)

    def merge_adapter(self, adapter: str | os.PathLike[str]) -> None:
        """Merge a LoRA adapter, as PEFT saves it, into the weights, on top of those merged before.

        The parameters that it changes are read from the checkpoint again, merged in float32 and rounded once, so that
        the model equals one that was loaded with the adapter. Cached prefixes are dropped, prefixes of the model as it
        was are refused, and open sessions must have ended. `save` writes the merged model. See
        docs/checkpoints/adapters.md.

        Args:
            adapter: a directory, or the id of an adapter on the hub.

        Raises:
            CheckpointError: no LoRA adapter of this model; every tensor that matches nothing is named. Or the
                checkpoint that was loaded is missing or has changed. Nothing has been changed.
            ValueError: the model is packed or runs in several processes; give the adapter to `load`.
            RuntimeError: requests of an open session are not finished.
        """
        self._require_replaceable("merge_adapter")
        if self._fingerprint != self._source_fingerprint:
            raise ValueError(
                "merge_adapter: the weights have been updated and are those of no checkpoint; merge it there"
            )
        source, dtype = open_checkpoint(self.path), self.engine.kind.dtype
        if fingerprint_of(source, dtype, self._adapters) != self._fingerprint:
            raise CheckpointError(self.path, "has changed since it was loaded; load it again, with the adapter")
        replaced = ModelWeights(self.config, dtype, self.engine.placement, self._types)
        family, adapters = replaced.family, [*self._adapters, open_adapter(resolve(adapter))]
        bound = [bind(one, family, family.weights(self.config), self.config.tied) for one in adapters]
        changed = [weight.path for weight in family.weights(self.config) if bound[-1].touches(weight)]
        shards = replaced.shards(family)
        with self.engine.settings.for_arrays():
            arrays, _ = load_parameters(source, family, self.config, dtype, None, shards, bound, changed)
        self.engine.release_parameters()
        self._adapters, self._source_fingerprint = adapters, fingerprint_of(source, dtype, adapters)
        params = self.params | {dotted(path): array for path, array in arrays.items()}
        self._use(params, self.engine.row_arrays.model, self._source_fingerprint)

    def _use(self, params: dict[str, jax.Array], typed: Decoder, fingerprint: Fingerprint) -> None:
        """Run with other parameters of the same types, in the same order, from now on."""
        self.params, self._fingerprint = params, fingerprint
        paths: list[tuple[Any, Any]] = list(nnx.to_flat_state(nnx.state(typed)))
        self.model, _ = assemble(typed, {path: params[dotted(path)] for path, _ in paths})
        self.engine.replace_parameters(tuple(params.values()), fingerprint)

    def update(self, params: NewWeights, *, partial: bool = False) -> None:
        """Replace the weights, as after a step of training, without compiling anything.

        Everything is checked first, and nothing has changed if it is refused. Then a layer at a time is replaced, so
        that no second copy of the weights is made: arrays that lie on the devices as those of `lm.params` do, in the
        same dtype, are used as they are. (Arrays that are donated to a later computation are gone here, too, and the
        next use says so.) Cached prefixes are dropped, prefixes of the weights as they were are refused, and
        `fingerprint` is that of the new ones. Certificates are of programs, which take weights as operands, and stay.
        See docs/research.md.

        Args:
            params: an `nnx.State` of `lm.model`, a dict of arrays by the names of `lm.params` or by those of the
                checkpoint's tensors, or a directory, GGUF file or hub id with the same configuration. Floats of 16 or
                32 bits are converted to the dtype in memory. Over a mesh, arrays that are sharded as those of
                `lm.params` are taken so, and others are whole parameters.
            partial: a dict or state without some parameters keeps these.

        Raises:
            TypeError: `params` is something else.
            CheckpointError: every name, shape and dtype that does not fit, or quantised weights; nothing has changed.
                Or a tensor of a file that cannot be read or converted: the model then has no weights, and says so when
                it is used, until it is updated with all of them.
            ValueError: the model is packed, without a vocabulary head or in several processes.
            RuntimeError: requests of an open session are not finished.
        """
        self._require_replaceable("update")
        with self.engine.settings.for_arrays():
            self._replace(params, partial)

    def _replace(self, params: NewWeights, partial: bool) -> None:
        weights = ModelWeights(self.config, self.engine.kind.dtype, self.engine.placement, self._types)
        if partial:
            self.engine.require_parameters()
        update = checked_update(params, weights, partial)
        self.engine.release_parameters()
        held, typed = dict(self.params), self.engine.row_arrays.model
        self.params, self.model = {}, typed
        for names in update.layers():
            for name in names:
                held.pop(name, None)
            held |= update.read(names)
        fingerprint = fingerprint_after(update, held, self.config)
        self._use({name: held[name] for name in self._types}, typed, fingerprint)

    def _require_replaceable(self, method: str) -> None:
        found, advice = "", "load the other weights, or the adapter, instead"
        if not self._has_vocabulary_head:
            found = "this model has no vocabulary head"
        elif self.engine.placement.several_processes:
            found = "this model runs in several processes"
        elif packed := self._packed:
            found, advice = f"{len(packed)} weights are packed, as {packed[0]}", "load with dequantise= to replace them"
        if found:
            raise ValueError(f"{method}: {found}; {advice}")

    @property
    def _packed(self) -> list[str]:
        """Names of the parameters that are packed."""
        return [name for name, one in self._types.items() if isinstance(one, LinearWeight)]

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as it is in memory, so that `hybridlm.load(directory)` opens it, faster than the original.

        The directory holds the weights in the layout and the dtype in which they are used (an Orbax checkpoint of plain
        arrays), config.json, generation_config.json, the tokenizer's files and the chat template unchanged, and an
        index: arrays and JSON only. A model loaded from it gives the same bits, on any mesh. With several processes all
        call this, with a directory that all of them see. See docs/checkpoints/saving.md.

        Args:
            directory: path to create; nothing may be there.

        Raises:
            FileExistsError: something is there.
            ValueError: there are several processes, and no mesh.
            CheckpointError: the checkpoint that was loaded is missing or has changed.
            OSError: it cannot be written; nothing is left of it.
        """
        if not self._has_vocabulary_head:
            raise ValueError("save: expected a vocabulary head, this checkpoint has none; copy its directory instead")
        if jax.process_count() > 1 and self.engine.placement.mesh is None:
            raise ValueError("save: each process has a model of its own; load it over a mesh of all their devices")
        target = new_path(Path(directory))
        source = open_checkpoint(self.path)
        dtype = self.engine.kind.dtype
        if fingerprint_of(source, dtype, self._adapters, self._packed) != self._source_fingerprint:
            raise CheckpointError(self.path, "has changed since it was loaded; config.json and tokenizer are its")
        whole = family_of(source.config).abstract(self.config)
        sharded_dims = {dotted(path): each for path, each in whole.sharded_dims().items()}
        arrays, packed = unpacked(self.params, sharded_dims)
        parameters = {name: saved_pieces(array, dims) for name, (array, dims) in arrays.items()}
        model = ModelDescription(__version__, self.config.family, dtype, self.fingerprint)
        save_checkpoint(target, self.path, model, parameters, packed)

    def warmup(self, *, every_bucket: bool = False, progress: bool | None = None) -> dict[str, float]:
        """Compile the steps of generation and scoring now, in threads, instead of on first use.

        They are kept (`compilation_cache` of `load`): later processes that load the model with the same settings do not
        compile them, as after `hybridlm warmup`.

        Args:
            every_bucket: also compile for fewer sequences than lanes (1, 2, 4, ...).
            progress: show a progress bar; None shows one if standard error is a terminal.

        Returns:
            Seconds by step. A step that takes longer than two minutes is also named in a warning.
        """
        return warm_up(self.engine, every_bucket, progress)

    def run_worker(self) -> bool:
        """Run the worker loop if the mesh spans several processes: repeat the commands of process 0 until it ends.

        Call it in every process once the model is loaded. In process 0, and without such a mesh, it returns False at
        once; in the others it returns True when nothing is left to do::

            lm = hybridlm.load("DIRECTORY", mesh=hybridlm.mesh(data=len(jax.devices())))
            if not lm.run_worker():
                print(lm.generate(prompts))

        A process that cannot go on, because another one ended, does not answer or sent something else, reports why and
        exits (status 70); in process 0 an error is raised, unless it waits for a process that does not answer.
        """
        return self.engine.runner.run_worker(partial(run_worker, self.engine, self.tokenizer))

    @property
    def stats(self) -> dict[str, Any]:
        """Counters since the model was loaded.

        Steps, copies of rows, tokens of prompts and texts that were prefilled, tokens that prefixes and shared
        beginnings saved, tokens that were generated, and the number of compiled programs; see docs/speculation.md and
        docs/prefix-cache.md. `step_tokens` are the real tokens among the `step_places` of all steps, and `token_share`
        is their share; steps that verify drafts do not count. `decode_tokens` and `decode_places` are those of steps
        with one token per lane.
        """
        cache = self.engine.prefix_cache
        cached = {} if cache is None else cache.stats
        counted = self.engine.stats
        rate = counted["generated_tokens"] / counted["sampled_lanes"] if counted["sampled_lanes"] else 0.0
        share = counted["step_tokens"] / counted["step_places"] if counted["step_places"] else 0.0
        compiled = len(self.engine.programs.shapes)
        return {**counted, **cached, "tokens_per_step": rate, "token_share": share, "compiled": compiled}

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of all compiled steps, by step, lanes and tokens: "generate 8x1"."""
        return self.engine.programs.certificates

    def _opened(
        self,
        requests: list[Request],
        inside: ProbeSettings,
        n: int,
        logits_processor: LogitsProcessor | None,
        speculate: Speculate | AsLoaded,
    ) -> tuple[list[Request], Session]:
        """Return requests with what they read and change inside the model, and a session for them."""
        inside.check()
        if not inside.given:
            return requests, self.session(logits_processor=logits_processor, speculate=speculate)
        if speculate not in (None, "as loaded"):
            raise ValueError("speculate: expected None with hidden_states, states or interventions")
        requests, probing = inside.of_requests(self.engine, requests, n)
        return requests, Session(self.engine, self.tokenizer, self._inputs.request, logits_processor, None, probing)

    def _run(self, requests: list[Request], session: Session) -> Generator[Event, None, None]:
        began = time.perf_counter()
        with session:
            for request in requests:
                session.add(request)
            while session.busy:
                events = session.step()
                if events and self.start is not None:
                    self.start.answered(time.perf_counter() - began)
                yield from events

    @property
    def _inputs(self) -> Inputs:
        self._require_vocabulary_head()
        return self._text_inputs

    def _require_vocabulary_head(self) -> None:
        if not self._has_vocabulary_head:
            use = "embed (or decide, if it is a decision model)" if self._classifier is None else "classify or embed"
            raise ValueError(f"{self.path}: expected a vocabulary head, this checkpoint has none; use {use}")

    @property
    def _text_inputs(self) -> Inputs:
        """Inputs of what needs no vocabulary head."""
        require = self.engine.moves.require
        c = self.config
        return Inputs(self.tokenizer, c.vocab_size, self.context, self.eos_token_ids, require, c.placeholders)

    @property
    def _scorer(self) -> Scorer:
        def found(
            ids: Sequence[tuple[int, ...]],
            question: Question | None = None,
            probes: Sequence[Probe | None] | None = None,
        ) -> list[Score]:
            given: dict[str, Any] = {} if question is None else {"question": question}
            if probes is not None and any(one is not None for one in probes):
                sites, lengths = probe_sites(self.engine, "score_file"), [len(one) for one in ids]
                given["probing"] = TextProbing(self.engine, sites, None, probes, lengths)
            return self._scores(ids, full_lanes=True, **given)

        return Scorer(
            self._items.read,
            found,
            self._origin(),
            vocab_size=self.config.vocab_size,
            saved=self._tokens_saved,
            computed=self._tokens_computed,
            step_places=self._step_places,
            keeping=self._keeping,
        )

    @property
    def _items(self) -> ItemReader:
        return ItemReader(self._inputs, lambda: prefix_token(self.tokenizer, self.eos_token_ids))

    def _scores(
        self,
        ids: Sequence[tuple[int, ...]],
        top: int = 0,
        prefix: Prefix | None = None,
        question: Question | None = None,
        probing: TextProbing | None = None,
        full_lanes: bool = False,
    ) -> list[Score]:
        began = time.perf_counter()
        with nullcontext() if probing is None else probing:
            found = scores(self.engine, ids, top, prefix, question, probing, full_lanes)
        if self.start is not None:
            self.start.answered(time.perf_counter() - began)
        return found

    def _probing(self, inside: ProbeSettings, given: Sequence[ScoredIds], prefix: Prefix | None) -> TextProbing:
        texts = [range(one.prompt, len(one.token_ids)) for one in given]
        return inside.of_texts(self.engine, texts, prefix)

    def _origin(self) -> dict[str, str | int]:
        """Everything that scores depend on besides the texts, down to the last bit."""
        machine, engine = Machine.here(), self.engine
        options = engine.options.texts()
        return {
            "model": self.fingerprint,
            "tokenizer": "none" if self.tokenizer is None else self.tokenizer.fingerprint,
            "chat templates": "none" if self.tokenizer is None else self.tokenizer.chat_fingerprint,
            # A text without a token in front of it begins behind one of these.
            "end tokens": ", ".join(map(str, self.eos_token_ids)),
            "dtypes": ", ".join(sorted({stored_form(array) for array in self.params.values()})),
            **{name: options[name] for name in STEP_OPTIONS},
            "steps of": f"{', '.join(map(str, engine.widths))} tokens",
            # Certified steps are rewritten first, which changes rounding.
            "steps": "as they are" if engine.runner.certify == "off" else "certified",
            "products": engine.placement.kernels_name,
            "hybridlm": __version__,
            "jax": jax.__version__,
            "device": machine.device,
            # XLA flags select the generated code.
            "XLA_FLAGS": machine.flags or "none",
        }


def _type_of(one: Any) -> Any:
    """Return shape, dtype and sharding of a parameter; of a packed one the arrays' own."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), one)
