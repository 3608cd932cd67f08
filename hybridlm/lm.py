"""A loaded language model: its public methods.

More than 300 lines: signatures and docstrings of one class.
"""

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np

from hybridlm.decision_models.questions import Answer
from hybridlm.drafting.drafters import AsLoaded, Speculate
from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix, compute_prefix
from hybridlm.engine.probe_settings import ProbeSettings, folder_for
from hybridlm.engine.snapshot_file import load_snapshot
from hybridlm.engine.warmup import warm_up
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.forward import ForwardOutput, SequenceState, forward, head_logits, in_order
from hybridlm.keywords import suggests_in_methods
from hybridlm.openai_batch.batch_task import BatchFileReport, BatchTask
from hybridlm.programs.start import Start
from hybridlm.progress import request_progress
from hybridlm.requests.finite import require_finite
from hybridlm.requests.interventions import Intervention
from hybridlm.requests.result_html import table
from hybridlm.requests.results import Completion, Score
from hybridlm.requests.sampling_params import SamplingParams, Settings, takes_settings, with_settings
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.score_files.divergence_task import DivergenceFileReport, DivergenceTask, compare_texts, text_model_of
from hybridlm.score_files.options import FileOptions, FileSettings
from hybridlm.score_files.run_file import run_file
from hybridlm.score_files.score_task import ScoreTask
from hybridlm.score_files.task import ScoreFileReport, Task
from hybridlm.score_files.text_tasks import ClassifyTask, DecideTask, EmbedTask
from hybridlm.scoring.choice import Choice, choose
from hybridlm.scoring.distributions import DistributionSettings
from hybridlm.scoring.divergence import Divergence
from hybridlm.scoring.perplexity import corpus_perplexity, read_files, windows_of
from hybridlm.scoring.pooling import Classification, Pooling, check_pooling, classes, pooled
from hybridlm.session import Event, Session
from hybridlm.text.chat_template import REASONING
from hybridlm.text.reasoning import markers_of, split_thoughts
from hybridlm.text.tokenizer import Tokenizer
from hybridlm.text_model import LoadedFiles, TextModel
from hybridlm.update import NewWeights
from hybridlm.weights import Weights
from hybridlm.worker import open_session, probed_session, run_requests, run_worker
from ir_passes import Certificate
from models import Decoder
from models.ops.quantised_weight import stored_form

File = str | os.PathLike[str]
Texts = str | Sequence[str | Sequence[int]]
"""Strings or lists of token ids; a bare string is one text."""


@suggests_in_methods
class LM:
    """A loaded model; `hybridlm.load` makes it.

    Texts are lists of strings or of lists of token ids; a bare string is one text. All methods raise TypeError or
    ValueError for wrong arguments before anything is computed, and NumericalError if a step computes NaN or infinity.
    Groups of settings are described by their classes: `SamplingParams`, `ProbeSettings` (reads and changes inside the
    model), `DistributionSettings` (questions about distributions) and `FileOptions` (runs over files).

    Attributes:
        path: directory of the checkpoint.
        config: the model's configuration, read from config.json.
        context: maximum length of a sequence, prompt and completion together.
        eos_token_ids: tokens that end a completion.
        start: seconds of each part of the start.
        text_model: the model as tasks use it.
    """

    def __init__(
        self, model: Decoder, params: dict[str, jax.Array], engine: Engine, source: LoadedFiles,
        start: Start | None = None,
    ):  # fmt: skip
        self.start, self.text_model = start, TextModel(engine, source, params, start)
        self._weights = Weights(self.text_model, model, source)
        self.path, self.config, self.context = source.path, engine.config, engine.context
        self.eos_token_ids = source.eos_token_ids

    @property
    def model(self) -> Decoder:
        """Flax nnx module with the parameters; over a mesh in the sizes of one device."""
        return self._weights.decoder

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; without one the methods take token ids only."""
        return self.text_model.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self.text_model.tokenizer = tokenizer

    @property
    def params(self) -> dict[str, jax.Array]:
        """Parameters by dotted name, as `forward` takes them for differentiation."""
        return self.text_model.params

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of the configuration and all weights (docs/checkpoints/compatibility.md)."""
        return str(self.text_model.fingerprint)

    def __repr__(self) -> str:
        c, size = self.config, sum(array.size for array in self.params.values())
        lanes = self.text_model.options.lanes
        layers = f"{c.num_layers} layers, lanes={lanes}, context={self.context}"
        return f"LM({c.family}, {size / 1e6:.1f}M parameters, {layers})"

    @property
    def engine(self) -> Engine:
        """The engine of all methods; raises ForkedProcessError in a process without JAX's threads."""
        return self.text_model.engine

    def _repr_html_(self) -> str:
        """List every parameter with its dtype and shape."""
        rows = [(name, f"{stored_form(array)} {list(array.shape)}") for name, array in self.params.items()]
        summary = f"<summary>{len(rows)} parameters</summary>"
        return f"<pre>{escape(repr(self))}</pre><details>{summary}{table(rows)}</details>"

    @takes_settings
    def generate(
        self, prompts: Texts, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *, n: int = 1,
        logits_processor: LogitsProcessor | None = None, progress: bool | None = None, prefix: Prefix | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        hidden_states: Sequence[int] = (), states: bool = False, positions: str = "last",
        capture_to: File | None = None, interventions: Any = None, **settings: Unpack[Settings],
    ) -> list[Completion]:  # fmt: skip
        """Generate completions for any number of prompts, with continuous batching over the lanes.

        `ProbeSettings` describes `hidden_states`, `states`, `positions`, `capture_to` and `interventions`; nothing is
        drafted with them. Positions "all" are the positions before each sampled token, "last" is the position before
        the last token; interventions count from the first token of the prompt into the completion.

        Args:
            prompts: texts.
            sampling_params: for all prompts, or a list with one for each. With a list each request is sampled as in a
                call with its prompt alone.
            n: completions per prompt; request i * n + j is the j-th completion of prompt i.
            logits_processor: `f(logits float32[vocab], last_token int32, position int32) -> float32[vocab]`, a jittable
                function of one lane; it changes which token is sampled, not the reported log-probabilities. The same
                function object reuses its compiled step.
            progress: show a bar of completed prompts; None shows one if there are more prompts than lanes and standard
                error is a terminal.
            prefix: state of a common beginning that every prompt continues; a prompt may then be empty (see `prefix`).
            speculate: drafter for speculative decoding, as for `load`. It changes the speed, and the sampled tokens
                only where float32 rounds to a tie.
            **settings: fields of `SamplingParams`; they override `sampling_params`. A list has one value for
                each prompt, as `temperature=[0.0, 0.7]` (docs/engine.md).

        Returns:
            Completions in the order of the prompts, the n of one prompt next to each other.

        Raises:
            GrammarError: no token can follow in the `structured_outputs` of a request.
        """
        requests = self.text_model.inputs.requests(prompts, n, sampling_params, prefix, settings)
        probes = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        requests, session = probed_session(self.text_model, requests, probes, n, logits_processor, speculate)
        finished: dict[int, Completion] = {}
        try:
            with request_progress(progress, len(requests), self.text_model.options.lanes) as completed:
                for event in run_requests(requests, session, self.start):
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
        self, prompts: Texts, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *, n: int = 1,
        logits_processor: LogitsProcessor | None = None, prefix: Prefix | None = None,
        speculate: Speculate | AsLoaded = "as loaded",
        hidden_states: Sequence[int] = (), states: bool = False, positions: str = "last",
        capture_to: File | None = None, interventions: Any = None, **settings: Unpack[Settings],
    ) -> Generator[Event, None, None]:  # fmt: skip
        """Yield tokens when they are sampled, interleaved over all requests; arguments of `generate`.

        Arguments are checked before this returns; the first step runs when the first event is requested. Closing or
        dropping the iterator cancels the remaining requests, and so does an exception in the loop.
        """
        requests = self.text_model.inputs.requests(prompts, n, sampling_params, prefix, settings)
        probes = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        session = probed_session(self.text_model, requests, probes, n, logits_processor, speculate)
        return run_requests(*session, self.start)

    @takes_settings
    def chat(
        self, messages: Sequence[Mapping[str, Any]], sampling_params: SamplingParams | None = None, *,
        tools: Sequence[Mapping[str, Any]] | None = None, documents: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None, continue_final_message: bool | str = False,
        chat_template: str | None = None, chat_template_kwargs: Mapping[str, Any] | None = None,
        logits_processor: LogitsProcessor | None = None, speculate: Speculate | AsLoaded = "as loaded",
        hidden_states: Sequence[int] = (), states: bool = False, positions: str = "last",
        capture_to: File | None = None, interventions: Any = None, **settings: Unpack[Settings],
    ) -> Completion:  # fmt: skip
        """Answer a conversation: apply the checkpoint's chat template, then `generate`.

        `reasoning` of the completion has the thoughts of a model that thinks, `answer` the text after them. All other
        arguments are arguments of `generate`; positions count the tokens of the whole prompt.

        Args:
            messages: `{"role": ..., "content": ...}` in order.
            tools: functions that the model may call, as JSON schemas.
            documents: texts that the template inserts.
            continue_final_message: True to continue the content of the last message; the name of a field to continue
                this field (`reasoning_content`).
            chat_template: the name of a template of the checkpoint, or a template; None for the default.
            enable_thinking: True or False for templates that ask it; None leaves it to the template.
            chat_template_kwargs: other variables of the template.
        """
        if self.tokenizer is None:
            raise ValueError("chat: the checkpoint has no tokenizer.json; apply a template yourself and use generate")
        variables = {
            **self.tokenizer.thinking_variables(enable_thinking, chat_template, tools), **(chat_template_kwargs or {}),
            "tools": tools, "documents": documents, "continue_final_message": continue_final_message,
            "chat_template": chat_template,
        }  # fmt: skip
        prompt = self.tokenizer.encode_chat(messages, **variables)
        options: dict[str, Any] = {
            "logits_processor": logits_processor, "speculate": speculate, "hidden_states": hidden_states,
            "states": states, "positions": positions, "capture_to": capture_to, "interventions": interventions,
        }  # fmt: skip
        is_reasoning = continue_final_message in REASONING
        params = with_settings(sampling_params, settings)
        if is_reasoning and params.thinking_budget is not None:
            raise ValueError("thinking_budget: cannot be counted for thoughts that continue_final_message goes on with")
        if is_reasoning and params.structured_outputs is not None:
            raise ValueError("structured_outputs: cannot begin in thoughts that continue_final_message goes on with")
        completion = self.generate([prompt], params, **options)[0]
        if not is_reasoning:
            return completion
        markers, texts = markers_of(self.tokenizer, params.think_end), (completion.text or "", completion.token_ids)
        flags = params.skip_special_tokens, params.keep_tool_markers
        parts = split_thoughts(self.tokenizer, *texts, markers, True, *flags)
        return replace(completion, reasoning=parts.reasoning, answer=parts.answer)

    def session(
        self, *, logits_processor: LogitsProcessor | None = None, speculate: Speculate | AsLoaded = "as loaded",
        capture_to: File | None = None,
    ) -> Session:  # fmt: skip
        """Open a session that submits and cancels requests and runs the engine stepwise.

        Args:
            logits_processor: function of all requests, as for `generate`.
            speculate: drafter of all requests, as for `generate`.
            capture_to: folder to create for the arrays that requests read inside the model.
        """
        to_request, folder = self.text_model.inputs.request, folder_for(capture_to)
        return open_session(self.engine, self.tokenizer, to_request, logits_processor, speculate, folder)

    def score(
        self, texts: str | Sequence[str | Sequence[int] | Mapping[str, Any]], *, top_logprobs: int = 0,
        prefix: Prefix | None = None, token_ids: Any = None, top: int = 0, start: int | Sequence[int] | None = None,
        temperature: float = 1.0, entropy: bool = False, hidden_states: Sequence[int] = (), states: bool = False,
        positions: Any = "last", capture_to: File | None = None, interventions: Any = None,
    ) -> list[Score]:  # fmt: skip
        """Compute the log-probability of every token of every text.

        It is a float32 log-softmax over the whole vocabulary. A common beginning of texts is prefilled once, in whole
        chunks, without changing a bit of any score.

        `DistributionSettings` describes `token_ids`, `top`, `start`, `temperature` and `entropy`; `ProbeSettings`
        describes `hidden_states`, `states`, `positions`, `capture_to` and `interventions`. With probes every text is
        prefilled by itself (docs/research.md).

        Args:
            texts: texts. Without `prefix` an item can also be `{"prompt": ..., "completion": ...}`, two texts or two
                lists of token ids: the completion is scored, or each completion of a list. Or it is
                `{"messages": [...]}`, a chat with a last answer that is scored up to its end token, with `tools` and
                `chat_template_kwargs` for its template.
            top_logprobs: number of most likely tokens to report at each position.
            prefix: state that every text continues (see `prefix`); only the texts' own tokens have scores, including
                the first.

        Returns:
            One score per text or completion, in order. Scores of completions and answers have only their own tokens,
            with `prefix_tokens` before them, and a token that spans the boundary (`boundary_shift`; docs/scoring.md).
        """
        distributions = DistributionSettings(token_ids, top, start, temperature, entropy)
        probes = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        return self.text_model.score(texts, top_logprobs, prefix, distributions, probes)

    def score_file(
        self, input: File, output: File, *, token_ids: str | Sequence[int] | None = None, top: int = 0,
        start: int | None = None, temperature: float = 1.0, entropy: bool = False, hidden_states: Sequence[int] = (),
        states: bool = False, positions: str = "last", interventions: str | Sequence[Intervention] | None = None,
        **options: Unpack[FileSettings],
    ) -> ScoreFileReport:  # fmt: skip
        """Score a file of texts of any length; arguments of `ScoreTask` and `run_file` (docs/scoring.md)."""
        task = ScoreTask(
            token_ids=token_ids, top=top, start=start, temperature=temperature, entropy=entropy,
            hidden_states=hidden_states, states=states, positions=positions, interventions=interventions,
        )  # fmt: skip
        return self.run_file(task, input, output, **options)

    def divergence(self, other: "LM", texts: Texts) -> Divergence:
        """Compare two models with one tokenizer: the distributions in all places, over the whole vocabulary.

        Args:
            other: the other model, with the same vocabulary, on the same devices and in one process.
            texts: texts; token ids for models with different tokenizers.

        Returns:
            KL in both directions, Jensen-Shannon divergence and agreement of all tokens of all texts, and their means.
        """
        return compare_texts(self.text_model, text_model_of(other), texts)

    def divergence_file(
        self, other: "LM", input: File, output: File, **options: Unpack[FileSettings]
    ) -> DivergenceFileReport:
        """Compare two models on a file; arguments of `DivergenceTask` and `run_file`."""
        return self.run_file(DivergenceTask(other), input, output, **options)

    def embed(self, texts: Texts, *, pooling: Pooling = "last", normalised: bool = True) -> np.ndarray:
        """Embed texts: the pooled residual stream after the final norm, float32 [texts, hidden].

        Args:
            texts: texts.
            pooling: tokens of a text that make its vector, see `EmbedTask`.
            normalised: scale each vector to length 1.
        """
        check_pooling(pooling)
        ids = self.text_model.text_inputs.encode_all(texts, "texts")
        vectors, wrong = pooled(self.engine, ids, self.config.hidden_size, pooling, normalised)
        require_finite(wrong, "texts[{}]".format)
        return vectors

    def embed_file(
        self, input: File, output: File, *, pooling: Pooling = "last", normalised: bool = True,
        **options: Unpack[FileSettings],
    ) -> ScoreFileReport:  # fmt: skip
        """Embed a file; arguments of `EmbedTask` and `run_file`."""
        return self.run_file(EmbedTask(pooling=pooling, normalised=normalised), input, output, **options)

    def classify(self, texts: Texts) -> Classification:
        """Classify texts, or compute their rewards, by the head of a sequence-classification or reward checkpoint.

        The head (`score.weight`) reads the last token of each text. Raises ValueError for other checkpoints.
        """
        classifier = self.text_model.require_classifier("classify")
        ids = self.text_model.text_inputs.encode_all(texts, "texts")
        classification, wrong = classes(self.engine, ids, classifier)
        require_finite(wrong, "texts[{}]".format)
        return classification

    def classify_file(self, input: File, output: File, **options: Unpack[FileSettings]) -> ScoreFileReport:
        """Classify a file, or compute rewards; arguments of `run_file`. See `ClassifyTask`."""
        return self.run_file(ClassifyTask(), input, output, **options)

    def decide(self, state: Any, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Answer]:
        """Answer typed questions about a state with a probability for every option.

        No token is generated.

        Args:
            state: text or other JSON.
            questions: name -> `{"type": "choice", "instructions": ..., "criteria": {option: description or None}}`,
                `{"type": "score", "criteria": [levels, the lowest first]}` or `{"type": "noul"}` (true or false, with
                optional criteria of both). Each is a prompt; its last token is read (docs/scoring.md).

        Returns:
            Name of a question -> its answer.

        Raises:
            CheckpointError: the files of the decision model cannot be used.
        """
        return self.decide_requests([{"state": state, "questions": questions}])[0]

    def decide_requests(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Answer]]:
        """Answer requests `{"state": ..., "questions": {name: question}}` in lanes, in order, as `decide`."""
        if isinstance(requests, str | Mapping) or not isinstance(requests, Sequence):
            raise TypeError(f"requests: expected a list of requests, got {type(requests)}")
        return self.text_model.decider().answer_all(requests)

    def decide_file(self, input: File, output: File, **options: Unpack[FileSettings]) -> ScoreFileReport:
        """Answer a file of requests; arguments of `run_file`. See `DecideTask`."""
        return self.run_file(DecideTask(), input, output, **options)

    def batch_file(self, input: File, output: File, **options: Unpack[FileSettings]) -> BatchFileReport:
        """Answer a file of OpenAI Batch lines; arguments of `run_file`. See `BatchTask`."""
        return self.run_file(BatchTask(), input, output, **options)

    def run_file(self, task: Task, input: File, output: File, **options: Unpack[FileSettings]) -> Any:
        """Run a task over the rows of a file, or continue a killed run.

        Args:
            task: `ScoreTask`, `EmbedTask`, `ClassifyTask`, `DivergenceTask`, `DecideTask` or `BatchTask`.
            input: `.jsonl`, `.csv`, `.parquet` or `.txt` (a text per line); `.gz` behind all but Parquet. Lines are
                `{"id": ..., "text": ...}`, `{"id": ..., "token_ids": [...]}` (or `input_ids`), or for `ScoreTask` have
                `prompt` and `completion` or `messages` as for `score`; columns have these names. Ids are optional.
            output: `.jsonl`, `.csv` (both with `.gz`) or `.parquet`, one row per input row, in order: id and the
                columns of the task, or id and error for a row that cannot be computed.
            **options: fields of `FileOptions`.

        Returns:
            The report of the task: `ScoreFileReport` or a kind of it, or `BatchFileReport`.

        Raises:
            ValueError: a row is wrong if `strict`; the input has no rows or another format; the output is the input or
                not a regular file; its parts belong to another process, or were made from another input,
                by another model or with other settings.
            MissingExtra: Parquet without pyarrow.
            OSError: a file cannot be read or written; parts that were written stay.
        """
        return run_file(task.on(self.text_model), input, output, FileOptions(**options))

    def choose(self, context: str | Sequence[int], options: Sequence[str] | Sequence[Sequence[int]]) -> Choice:
        """Choose the option that continues the context best.

        Context and option are tokenized together, without a space between them. The scored tokens contain the whole
        option (`Choice.boundary_shift`). An empty context is the model's first token, or its end token.

        Args:
            context: a text, or token ids.
            options: texts, or lists of token ids, like the context.
        """
        model = self.text_model
        return choose(context, options, model.inputs, model.first_token, model.scores)

    def perplexity(
        self, texts: File | Sequence[File | Sequence[int]], *, convention: str = "rolling", window: int | None = None,
        stride: int | None = None,
    ) -> float:  # fmt: skip
        """Compute the perplexity of a corpus.

        It is exp of the mean negative log-probability over all counted tokens of all texts. Conventions differ in the
        tokens that count and in their context (docs/evaluation.md), so a figure needs its convention and window.

        Args:
            texts: texts, or paths of text files (UTF-8), each one text. Paths are `pathlib.Path` or the like: a string
                is a text.
            convention: "rolling" (lm_eval), "strided" (transformers) or "llama.cpp".
            window: maximum number of tokens seen together, at least 2; None for the context.
            stride: for "strided"; None for half a window.
        """
        cut = windows_of(convention, self.engine.longest, window, stride, self.tokenizer, self.eos_token_ids)
        ids = self.text_model.inputs.encode_all(read_files(texts), "texts", of_any_length=True)
        if not ids:
            raise ValueError("texts: is empty; at least one text is needed")
        windows = ((i, part) for i, text in enumerate(ids) for part in cut(text))
        return corpus_perplexity(windows, self.text_model.scores, batch_size=64 * self.engine.lanes)

    def forward(
        self, tokens: Any = None, *, embeddings: Any = None, return_states: bool = False,
        state: SequenceState | None = None, params: Mapping[str, jax.Array] | None = None, logits: bool = True,
        chunk: int | None = None,
    ) -> ForwardOutput:  # fmt: skip
        """Compute logits and hidden states of every position and, on request, the final state.

        Differentiable with respect to `params`, `embeddings` and `state`, by `jax.grad`, `jax.jvp` and `jax.linearize`,
        and under `jax.jit`, `jax.vmap` and `jax.shard_map`:
        `jax.grad(lambda p: -lm.forward(tokens, params=p, logits=False).logprobs.mean())(lm.params)`. `logprobs` equal
        `score` bit for bit for the same texts (docs/research.md has the conditions).

        Args:
            tokens: token ids, [T] or [N, T]; None with `embeddings` alone. Traced ids are not checked: one outside the
                vocabulary gives NaN.
            embeddings: float32 [T, hidden] or [N, T, hidden] in place of the tokens' own embeddings, which are
                `hidden_states[0]`; the tokens are then only targets of the prediction.
            return_states: also return the state after the last token; pass it as `state` to continue.
            state: state to start from; None starts a sequence.
            params: parameters to use instead of `lm.params`.
            logits: keep the logits of all positions; False returns None for them and needs the memory of a block.
            chunk: tokens that run together, with padding at the end; None for the steps of `score`. Others
                differ in rounding.
        """
        self.text_model.require_vocabulary_head()
        self.engine.require_parameters()
        flat = in_order(self.params if params is None else params, tuple(self.params))
        return forward(self.engine, flat, tokens, embeddings, state, return_states, logits, chunk)

    def logits(self, hidden: Any, *, params: Mapping[str, jax.Array] | None = None) -> jax.Array:
        """Compute logits of hidden states: the final norm, then the vocabulary head (a logit lens).

        The last of `lm.forward(tokens).hidden_states` gives the logits of `forward`, up to rounding. Differentiable.
        Plain JAX without a certificate: no state takes part, and a row of logits depends on its row alone.

        Args:
            hidden: float32 [.., hidden], rows of the residual stream, as `ForwardOutput.hidden_states`,
                `Captured.hidden_states` and `Score.captured` have them.
            params: parameters to use instead of `lm.params`.

        Returns:
            float32 [.., vocab], all rows at once in memory.
        """
        self.text_model.require_vocabulary_head()
        self.engine.require_parameters()
        flat = in_order(self.params if params is None else params, tuple(self.params))
        return head_logits(self.engine, flat, hidden)

    def prefix(self, tokens: str | Sequence[int]) -> Prefix:
        """Prefill a common beginning of prompts or texts once, for `generate`, `stream`, `score` and `submit`.

        Results equal the results of joined prompts up to float32 rounding, and bit for bit if the length of the prefix
        is one more than a multiple of `chunk` and `generate` has one prompt. The state (`nbytes`) is on the device.

        Args:
            tokens: a string, encoded like a prompt, or token ids. Text that continues it is encoded separately.
        """
        return compute_prefix(self.engine, self.text_model.inputs.encode(tokens, "prefix"))

    def load_prefix(self, path: File) -> Prefix:
        """Read a prefix that `Prefix.save` wrote; raise SnapshotError for another checkpoint, dtype or context."""
        return Prefix(*load_snapshot(self.engine, Path(path), self.text_model.inputs.encode))

    def merge_adapter(self, adapter: File) -> None:
        """Merge a LoRA adapter in PEFT's format into the current weights.

        The model equals one that was loaded with the adapter. Cached prefixes are dropped, and prefixes of the earlier
        weights are refused. See docs/checkpoints/adapters.md.

        Args:
            adapter: a directory, or the id of an adapter on the hub.

        Raises:
            CheckpointError: no LoRA adapter of this model, or its checkpoint is missing or has changed. Nothing has
                been changed.
            ValueError: the model is packed or runs in several processes; give the adapter to `load`.
            RuntimeError: requests of an open session are not finished.
        """
        self._weights.merge_adapter(adapter)

    def update(self, params: NewWeights, *, partial: bool = False) -> None:
        """Replace the weights, as after a step of training, without compiling anything.

        Everything is checked first. Then a layer at a time is replaced, so that no second copy of the weights is made:
        arrays with the sharding and dtype of `lm.params` are used without a copy, and must not be donated later. Cached
        prefixes are dropped, prefixes of the earlier weights are refused. See docs/research.md.

        Args:
            params: an `nnx.State` of `lm.model`, a dict of arrays by the names of `lm.params` or of the checkpoint's
                tensors, or a directory, GGUF file or hub id with the same configuration. Arrays may be
                tensors with DLPack in host memory, as of PyTorch. Floats of 16 or 32 bits are converted to the dtype in
                memory. Over a mesh an array is whole, also replicated over another mesh, or sharded as in `lm.params`.
            partial: a dict or state without some parameters keeps these.

        Raises:
            CheckpointError: every name, shape and dtype that does not fit, or quantised weights; nothing has changed.
                Or a tensor of a file that cannot be read or converted: the model then has no weights until it is
                updated with all of them.
            ValueError: the model is packed, without a vocabulary head or in several processes.
            RuntimeError: requests of an open session are not finished.
        """
        self._weights.update(params, partial)

    def save(self, directory: File) -> None:
        """Write the model to a directory that `hybridlm.load` opens faster.

        A model loaded from it gives the same bits, on any mesh. With several processes all call this, with a directory
        that all of them see. See docs/checkpoints/saving.md.

        Args:
            directory: path to create; nothing may be there.

        Raises:
            FileExistsError, OSError: something is there, or it cannot be written; nothing is left of it.
            ValueError: there are several processes, and no mesh.
            CheckpointError: the checkpoint that was loaded is missing or has changed.
        """
        self._weights.save(directory)

    def warmup(self, *, every_bucket: bool = False, progress: bool | None = None) -> dict[str, float]:
        """Compile the steps of generation and scoring now and keep them, as `hybridlm warmup`.

        Args:
            every_bucket: also compile for fewer sequences than lanes (1, 2, 4, ...).
            progress: show a progress bar; None shows one if standard error is a terminal.

        Returns:
            Seconds by step.
        """
        return warm_up(self.engine, every_bucket, progress)

    def run_worker(self) -> bool:
        """Run the worker loop if the mesh spans several processes.

        The loop repeats the commands of process 0 until process 0 ends. Call it in every process once the model is
        loaded: `if not lm.run_worker(): print(lm.generate(prompts))`. It returns False in process 0 and without such a
        mesh. A process that cannot go on, because another one ended or does not answer, reports why and exits (status
        70); in process 0 an error is raised.
        """
        return self.engine.runner.run_worker(partial(run_worker, self.engine, self.tokenizer))

    @property
    def stats(self) -> dict[str, Any]:
        """Counters since the model was loaded; docs/speculation.md and docs/prefix-cache.md describe them.

        `step_tokens` are the real tokens among the `step_places` of all steps, and `token_share` is their share; steps
        that verify drafts do not count. `decode_tokens` and `decode_places` count steps with one token per lane.
        """
        cache, counts = self.engine.prefix_cache, self.engine.stats
        rate = counts["generated_tokens"] / counts["sampled_lanes"] if counts["sampled_lanes"] else 0.0
        share = counts["step_tokens"] / counts["step_places"] if counts["step_places"] else 0.0
        derived = {"tokens_per_step": rate, "token_share": share, "compiled": len(self.engine.programs.shapes)}
        return {**counts, **({} if cache is None else cache.stats), **derived}

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of all compiled steps, by step, lanes and tokens: "generate 8x1"."""
        return self.engine.programs.certificates
