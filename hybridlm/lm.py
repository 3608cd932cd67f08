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
from hybridlm.engine.computed_prefix import compute_prefix
from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix, load_snapshot
from hybridlm.engine.probe_settings import ProbeSettings
from hybridlm.engine.warmup import warm_up
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.forward import ForwardOutput, SequenceState, forward, head_logits, in_order
from hybridlm.keywords import suggests_in_methods
from hybridlm.openai_batch.batch_task import BatchFileReport, BatchTask
from hybridlm.programs.start import Start
from hybridlm.progress import counting_progress
from hybridlm.requests.interventions import Intervention
from hybridlm.requests.result_html import table
from hybridlm.requests.results import Completion, Score, require_finite
from hybridlm.requests.sampling_params import SamplingParams, Settings, takes_settings
from hybridlm.requests.validation import with_settings
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
from hybridlm.text.chat_template import REASONING, joined_variables
from hybridlm.text.reasoning import markers_of, split_thoughts
from hybridlm.text.tokenizer import Tokenizer
from hybridlm.text_model import LoadedFiles, TextModel
from hybridlm.update import NewWeights
from hybridlm.weights import Weights
from hybridlm.worker import run_worker
from ir_passes import Certificate
from ir_passes.host.slot_faults import OneHolder
from models import Decoder
from models.ops.quantised_weight import stored_form

File = str | os.PathLike[str]
Texts = str | Sequence[str | Sequence[int]]
"""Strings or lists of token ids; a bare string is one text."""


@suggests_in_methods
class LM(OneHolder):
    """A loaded model; `hybridlm.load` makes it.

    Texts are lists of strings or of token-id lists; a bare string is one text. Methods raise TypeError or ValueError
    for wrong arguments before anything is computed, and NumericalError for NaN or infinity. Groups of settings:
    `SamplingParams`, `ProbeSettings`, `DistributionSettings` and `FileOptions`.

    Attributes:
        config: from config.json.
        start: seconds of each part of `load`.
        text_model: the model as tasks use it.
    """

    _instead = "give its path and options, and load it there with hybridlm.load"

    def __init__(
        self, model: Decoder, params: dict[str, jax.Array], engine: Engine, source: LoadedFiles,
        start: Start | None = None,
    ):  # fmt: skip
        self.start, self.text_model = start, TextModel(engine, source, params, start)
        self._weights = Weights(self.text_model, model, source)
        self.path, self.config = source.path, engine.config

    @property
    def model(self) -> Decoder:
        """nnx module with the parameters; over a mesh in the sizes of one device."""
        return self._weights.decoder

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and completion together."""
        return self.text_model.text_inputs.context

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""
        return self.text_model.eos_token_ids

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None takes token ids only."""
        return self.text_model.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self.text_model.tokenizer = tokenizer

    @property
    def params(self) -> dict[str, jax.Array]:
        """Parameters by dotted name, as `forward` takes them for differentiation.

        Over a mesh with several devices along "model" their rows are in the order of the shards (docs/devices.md).
        """
        return self.text_model.params

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the configuration and all weights (docs/checkpoints/compatibility.md)."""
        return str(self.text_model.fingerprint)

    def __repr__(self) -> str:
        c, size = self.config, sum(array.size for array in self.params.values())
        lanes = self.text_model.options.lanes
        layers = f"{c.num_layers} layers, lanes={lanes}, context={self.context}"
        return f"LM({c.family}, {size / 1e6:.1f}M parameters, {layers})"

    @property
    def engine(self) -> Engine:
        """The engine; raises ForkedProcessError in a process without JAX's threads."""
        return self.text_model.engine

    def _repr_html_(self) -> str:
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
        """Generate completions for prompts, by continuous batching.

        `ProbeSettings` describes `hidden_states`, `states`, `positions`, `capture_to` and `interventions`, which
        disable drafts. Positions "all" precede each sampled token, "last" precedes the last token; interventions count
        from the first prompt token.

        Args:
            sampling_params: for all prompts, or a list with one for each.
            n: completions per prompt; request i * n + j is completion j of prompt i.
            logits_processor: `f(logits float32[vocab], last_token int32, position int32) -> float32[vocab]`, jittable,
                of one lane; without effect on log-probabilities. The same object reuses its compiled step.
            progress: show a bar; None: for more prompts than lanes on a terminal.
            prefix: state that every prompt, perhaps empty, continues (see `prefix`).
            speculate: drafter, as for `load`; it changes tokens only where float32 rounds to a tie.
            **settings: fields of `SamplingParams`, over `sampling_params`; lists have a value for each prompt.

        Returns:
            Completions in prompt order, the n of one prompt together.

        Raises:
            GrammarError: no token can follow in `structured_outputs`.
        """
        requests = self.text_model.inputs.requests(prompts, n, sampling_params, prefix, settings)
        probes = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        events = self.text_model.run(requests, probes, n, logits_processor, speculate)
        finished: dict[int, Completion] = {}
        try:
            lanes = self.text_model.options.lanes
            with counting_progress(progress, "generating", len(requests), above=lanes) as completed:
                for event in events:
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
        """Yield sampled tokens, interleaved over all requests; arguments of `generate`.

        Arguments are checked at once; steps run as events are requested. Closing or dropping the iterator cancels the
        requests.
        """
        requests = self.text_model.inputs.requests(prompts, n, sampling_params, prefix, settings)
        probes = ProbeSettings(hidden_states, positions, states, capture_to, interventions)
        return self.text_model.run(requests, probes, n, logits_processor, speculate)

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

        The completion's `reasoning` has thoughts, `answer` the text after them. Other arguments as for `generate`;
        positions count the whole prompt.

        Args:
            messages: `{"role": ..., "content": ...}` in order.
            tools: JSON schemas of functions.
            documents: for the template.
            continue_final_message: True continues the last message's content; a name continues this field
                (`reasoning_content`).
            chat_template: name or source; None for the default.
            enable_thinking: None leaves it to the template.
            chat_template_kwargs: other template variables.
        """
        if self.tokenizer is None:
            raise ValueError("chat: the checkpoint has no tokenizer.json; apply a template yourself and use generate")
        arguments = {
            **self.tokenizer.thinking_variables(enable_thinking, chat_template, tools),
            "tools": tools or None, "documents": documents or None,
            "continue_final_message": continue_final_message or None, "chat_template": chat_template,
        }  # fmt: skip
        arguments = {name: value for name, value in arguments.items() if value is not None}
        variables = joined_variables(arguments, chat_template_kwargs or {})
        self.tokenizer.require_variables(**variables)
        prompt = self.tokenizer.encode_chat(messages, **variables)
        options: dict[str, Any] = {
            "logits_processor": logits_processor, "speculate": speculate, "hidden_states": hidden_states,
            "states": states, "positions": positions, "capture_to": capture_to, "interventions": interventions,
        }  # fmt: skip
        is_reasoning = continue_final_message in REASONING
        params = with_settings(sampling_params, settings)
        if is_reasoning and params.thinking_budget is not None:
            raise ValueError("thinking_budget: cannot count thoughts that continue_final_message continues")
        if is_reasoning and params.structured_outputs is not None:
            raise ValueError("structured_outputs: cannot begin in thoughts that continue_final_message continues")
        completion = self.generate([prompt], params, **options)[0]
        if not is_reasoning:
            return completion
        markers, texts = markers_of(self.tokenizer, params.think_end), (completion.text or "", completion.token_ids)
        flags = params.skip_special_tokens, params.keep_tool_markers
        reasoning, answer = split_thoughts(self.tokenizer, *texts, markers, True, *flags)
        return replace(completion, reasoning=reasoning, answer=answer)

    def session(
        self, *, logits_processor: LogitsProcessor | None = None, speculate: Speculate | AsLoaded = "as loaded",
        capture_to: File | None = None,
    ) -> Session:  # fmt: skip
        """Open a session that submits and cancels requests, step by step.

        Args:
            logits_processor: of all requests, as for `generate`.
            speculate: of all requests, as for `generate`.
            capture_to: new folder for arrays that requests read.
        """
        return self.text_model.session(logits_processor, speculate, capture_to)

    def score(
        self, texts: str | Sequence[str | Sequence[int] | Mapping[str, Any]], *, top_logprobs: int = 0,
        prefix: Prefix | None = None, token_ids: Any = None, top: int = 0, start: int | Sequence[int] | None = None,
        temperature: float = 1.0, entropy: bool = False, hidden_states: Sequence[int] = (), states: bool = False,
        positions: Any = "last", capture_to: File | None = None, interventions: Any = None,
    ) -> list[Score]:  # fmt: skip
        """Compute the log-probability of every token of every text.

        It is a float32 log-softmax over the vocabulary. Common prefixes are prefilled once, with the same bits.

        `DistributionSettings` describes `token_ids`, `top`, `start`, `temperature` and `entropy`; `ProbeSettings`
        describes `hidden_states`, `states`, `positions`, `capture_to` and `interventions`. Probed texts share no
        prefixes (docs/research.md).

        Args:
            texts: without `prefix` also `{"prompt": ..., "completion": ...}`, texts or token ids, with a completion or
                a list of completions to score; or `{"messages": [...]}`, a chat with a last answer to score, with
                `tools` and `chat_template_kwargs`.
            top_logprobs: most likely tokens to report at each position.
            prefix: state that every text continues (see `prefix`); all tokens of the texts have scores.

        Returns:
            One score per text or completion, in order. Scores of completions have their own tokens and a token that
            spans the boundary (`boundary_shift`; docs/scoring.md).
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
        """Compare two models' distributions at every token, over the whole vocabulary.

        Args:
            other: with the same vocabulary, on the same devices in one process.
            texts: token ids for different tokenizers.

        Returns:
            KL in both directions, Jensen-Shannon divergence and agreement of all tokens, and their means.
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
            texts: within the context.
            pooling: see `EmbedTask`.
            normalised: scale each vector to length 1.
        """
        check_pooling(pooling, normalised)
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
        """Classify texts, or compute rewards, by a sequence-classification or reward head.

        The head (`score.weight`) reads the last token. Raises ValueError for other checkpoints.
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
        """Answer typed questions about a state by option probabilities.

        Args:
            state: text or other JSON.
            questions: name -> `{"type": "choice", "instructions": ..., "criteria": {option: description or
                None}}`, `{"type": "score", "criteria": [ascending levels]}` or `{"type": "noul"}` (true or false, with
                optional criteria). See docs/scoring.md.

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
            input: `.jsonl`, `.csv`, `.parquet` or `.txt` (a text per line), perhaps `.gz` except Parquet. Rows have
                `text`, `token_ids` (or `input_ids`), or for `ScoreTask` `prompt` and `completion` or `messages`, and
                maybe `id`.
            output: `.jsonl`, `.csv` (perhaps `.gz`) or `.parquet`; per input row, in order, id and the task's columns,
                or id and error.
            **options: fields of `FileOptions`.

        Returns:
            `ScoreFileReport` or `BatchFileReport`.

        Raises:
            ValueError: a wrong row if `strict`; an input without rows or of another format; the output is the input or
                no regular file; its parts have another owner, input, model or settings.
            MissingExtra: Parquet without pyarrow.
            OSError: a file cannot be read or written; finished parts stay.
        """
        rows, settings = task.on(self.text_model), FileOptions(**options)
        return run_file(rows, Path(input), task.check(Path(input), Path(output), settings), settings)

    def choose(self, context: str | Sequence[int], options: Sequence[str] | Sequence[Sequence[int]]) -> Choice:
        """Choose the option that continues the context best.

        Both are tokenized together, without a space between them. An empty context is the model's first or end token.

        Args:
            context: text or token ids.
            options: of the same type.
        """
        model = self.text_model
        return choose(context, options, model.items, model.scores)

    def perplexity(
        self, texts: File | Sequence[File | Sequence[int]], *, convention: str = "rolling", window: int | None = None,
        stride: int | None = None,
    ) -> float:  # fmt: skip
        """Compute a corpus's perplexity: exp of the counted tokens' mean negative log-probability.

        Conventions differ in counted tokens and context (docs/evaluation.md).

        Args:
            texts: texts, or `pathlib.Path`s of UTF-8 files with one text each.
            convention: "rolling" (lm_eval), "strided" (transformers) or "llama.cpp".
            window: tokens seen together, at least 2; None for the context.
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
        """Compute logits, hidden states and, on request, the final state.

        Differentiable with respect to `params`, `embeddings` and `state`, by `jax.grad`, `jax.jvp` and `jax.linearize`,
        and under `jax.jit`, `jax.vmap` and `jax.shard_map`: `jax.grad(lambda p: -lm.forward(tokens, params=p,
        logits=False).logprobs.mean())(lm.params)`. `logprobs` equal `score` bit for bit for the same texts
        (docs/research.md has the conditions).

        Args:
            tokens: ids [T] or [N, T]; None with `embeddings` alone. A traced id outside the vocabulary gives NaN.
            embeddings: float32 [T, hidden] or [N, T, hidden], replace the tokens' embeddings (`hidden_states[0]`);
                tokens are then only targets, and n-grams in layers that read them (Qwen4-Exp).
            return_states: also return the state after the last token, for `state`.
            state: to start from; None starts a sequence.
            params: instead of `lm.params`.
            logits: False needs the memory of one block.
            chunk: tokens that run together; None for the steps of `score`. Others round differently.
        """
        return forward(self.engine, self._in_order(params), tokens, embeddings, state, return_states, logits, chunk)

    def logits(self, hidden: Any, *, params: Mapping[str, jax.Array] | None = None) -> jax.Array:
        """Compute logits by the final norm and the vocabulary head (a logit lens).

        The last of `lm.forward(tokens).hidden_states` gives `forward`'s logits, up to rounding. Differentiable; without
        a certificate.

        Args:
            hidden: float32 [.., hidden], as in `ForwardOutput.hidden_states` and `Captured.hidden_states`.
            params: instead of `lm.params`.

        Returns:
            float32 [.., vocab], all rows at once in memory.
        """
        return head_logits(self.engine, self._in_order(params), hidden)

    def _in_order(self, params: Mapping[str, jax.Array] | None) -> tuple[Any, ...]:
        """Return parameters in the model's order; raises ValueError without a vocabulary head."""
        self.text_model.require_vocabulary_head()
        self.engine.require_parameters()
        return in_order(self.params if params is None else params, self.params)

    def prefix(self, tokens: str | Sequence[int]) -> Prefix:
        """Prefill a common prefix once, for `generate`, `stream`, `score` and `submit`.

        Results equal joined prompts up to float32 rounding, and bit for bit if the prefix length is one more than a
        multiple of `chunk` and `generate` has one prompt. The state (`nbytes`) is on the device.

        Args:
            tokens: a string or token ids; its continuation is encoded separately.
        """
        return compute_prefix(self.engine, self.text_model.inputs.encode(tokens, "prefix"))

    def load_prefix(self, path: File) -> Prefix:
        """Read a prefix of `Prefix.save`; raises SnapshotError for another checkpoint, dtype or context."""
        return Prefix(*load_snapshot(self.engine, Path(path), self.text_model.inputs.encode))

    def merge_adapter(self, adapter: File) -> None:
        """Merge a LoRA adapter in PEFT's format into the current weights.

        Earlier prefixes are dropped or refused (docs/checkpoints/adapters.md).

        Args:
            adapter: directory or Hub id.

        Raises:
            CheckpointError: no LoRA adapter of this model, or a missing or changed checkpoint; nothing has changed.
            ValueError: a packed model, or several processes; give the adapter to `load`.
            RuntimeError: unfinished requests of a session.
        """
        self._weights.merge_adapter(adapter)

    def update(self, params: NewWeights, *, partial: bool = False) -> None:
        """Replace the weights, as after a training step, without compilation.

        Arrays with the sharding and dtype of `lm.params` are used without a copy, and must not be donated later.
        Earlier prefixes are dropped or refused (docs/research.md).

        Args:
            params: an `nnx.State` of `lm.model`, arrays by the names of `lm.params` or of the checkpoint's tensors, or
                a directory, GGUF file or Hub id with the same configuration. Arrays may be DLPack tensors in host
                memory (PyTorch). Floats of 16 or 32 bits are converted. Over a mesh an array is sharded as in
                `lm.params`, or whole with its rows in the order of one device; a host's copy of `lm.params` is neither.
            partial: missing parameters stay.

        Raises:
            CheckpointError: every wrong name, shape and dtype, quantised weights, or another tokenizer, template or end
                token; nothing has changed. Or an unreadable tensor: no weights until a complete update.
            ValueError: a packed model, one without a vocabulary head, or several processes.
            RuntimeError: unfinished requests of a session.
        """
        self._weights.update(params, partial)

    def save(self, directory: File) -> None:
        """Write the model to a directory for a faster `load`.

        It gives the same bits, on any mesh. All processes call this with a shared directory
        (docs/checkpoints/saving.md).

        Args:
            directory: new path.

        Raises:
            FileExistsError, OSError: it exists or cannot be written; nothing is left.
            ValueError: several processes without a mesh.
            CheckpointError: a missing or changed original checkpoint.
        """
        self._weights.save(directory)

    def warmup(self, *, every_bucket: bool = False, progress: bool | None = None) -> dict[str, float]:
        """Compile and store the steps of generation and scoring.

        Args:
            every_bucket: also for fewer sequences than lanes (1, 2, 4, ...).
            progress: show a bar; None: on a terminal.

        Returns:
            Seconds by step.
        """
        return warm_up(self.engine, every_bucket, progress)

    def run_worker(self) -> bool:
        """Run the worker loop if the mesh spans several processes.

        It repeats process 0's commands until process 0 ends: `if not lm.run_worker(): print(lm.generate(prompts))` in
        every process. It returns False in process 0 and without such a mesh. If another process fails, this one reports
        why and exits (status 70); process 0 raises an error.
        """
        return self.engine.runner.run_worker(partial(run_worker, self.engine, self.text_model.text_inputs))

    @property
    def stats(self) -> dict[str, Any]:
        """Counters since loading (docs/speculation.md, docs/prefix-cache.md).

        `token_share` is the share of real `step_tokens` among `step_places`, without verifying steps; `decode_tokens`
        and `decode_places` count steps with one token per lane.
        """
        cache, counts = self.engine.prefix_cache, self.engine.stats
        rate = counts["generated_tokens"] / counts["sampled_lanes"] if counts["sampled_lanes"] else 0.0
        share = counts["step_tokens"] / counts["step_places"] if counts["step_places"] else 0.0
        derived = {"tokens_per_step": rate, "token_share": share, "compiled": len(self.engine.programs.shapes)}
        return {**counts, **({} if cache is None else cache.stats), **derived}

    @property
    def certificates(self) -> dict[str, Certificate]:
        """Certificates of all compiled steps, by name: "generate 8x1"."""
        return self.engine.programs.certificates
