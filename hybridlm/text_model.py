"""A loaded model for scoring, decisions and files."""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridlm.checkpoint import Adapter, Fingerprint
from hybridlm.checkpoint.classifier import Classifier
from hybridlm.decision_models.decide import Decider
from hybridlm.decision_models.heads import LabelHead
from hybridlm.decision_models.prompts import Prompts
from hybridlm.decision_models.settings import read_settings
from hybridlm.devices.machine import Machine
from hybridlm.drafting.drafters import AsLoaded, Speculate
from hybridlm.engine.config import STEP_OPTIONS
from hybridlm.engine.engine import Engine
from hybridlm.engine.inputs import Inputs
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probe_settings import ProbeSettings, folder_for
from hybridlm.engine.probing import TextProbing
from hybridlm.files.finished import FinishedTexts
from hybridlm.programs.start import Start
from hybridlm.requests.results import Score
from hybridlm.requests.sequence import Request
from hybridlm.requests.validation import is_whole, to_items
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.scoring.distributions import DistributionSettings, Question
from hybridlm.scoring.items import ItemReader, ScoredIds, score_items
from hybridlm.scoring.perplexity import prefix_token
from hybridlm.scoring.pooling import ReadText, read_hidden
from hybridlm.scoring.scorer import checked, scores
from hybridlm.session import Event, Session, run_requests
from hybridlm.text.tokenizer import Tokenizer
from hybridlm.version import __version__
from ir_passes.jaxpr import jax_private, refused
from ir_passes.jaxpr.fingerprint import fingerprint
from models.layers.embedding import embedding_rows
from models.ops.quantised_weight import stored_form


@dataclass(frozen=True)
class LoadedFiles:
    """Contents of a model's files, without weights.

    Attributes:
        has_vocabulary_head: False without logits of tokens.
    """

    path: Path
    fingerprint: Fingerprint
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]
    adapters: Sequence[Adapter] = ()
    classifier: Classifier | None = None
    has_vocabulary_head: bool = True


class TokenCounts(NamedTuple):
    """Tokens and places that a model has computed in one thread.

    Attributes:
        saved: of shared prefixes.
        computed: prefilled or generated.
        step_tokens, step_places: of steps; places are lanes x chunk.
    """

    saved: int = 0
    computed: int = 0
    step_tokens: int = 0
    step_places: int = 0

    def since(self, begin: "TokenCounts") -> "TokenCounts":
        return TokenCounts(*(end - start for end, start in zip(self, begin, strict=True)))


class TextModel:
    """A loaded model for scoring, decisions and files.

    Args:
        params: by dotted name.
        start: times, for the first answer.

    Attributes:
        params, fingerprint: of the weights in use; `LM.update` replaces both.
        text_inputs: checks of texts that need no vocabulary head.
    """

    def __init__(self, engine: Engine, files: LoadedFiles, params: dict[str, jax.Array], start: Start | None = None):
        self._engine, self.params, self._start = engine, params, start
        self.path, self.eos_token_ids = files.path, files.eos_token_ids
        self.classifier, self.has_vocabulary_head = files.classifier, files.has_vocabulary_head
        self.fingerprint = files.fingerprint
        self.config, self.structure, self.options = engine.config, engine.programs.structure, engine.options
        self.text_inputs = Inputs(
            files.tokenizer, self.config.vocab_size, engine.context, self.eos_token_ids,
            lambda snapshot: engine.moves.require(snapshot),  # other ones after `LM.update`
            self.config.placeholders, engine.cache_limit, engine.head_drafts,
        )  # fmt: skip

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; may be replaced."""
        return self.text_inputs.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self.text_inputs.tokenizer = tokenizer
        self.__dict__.pop("prompts", None)

    @property
    def engine(self) -> Engine:
        """The engine; raises ForkedProcessError in a process without JAX's threads."""
        if refused.forked:
            raise refused.ForkedProcessError(f"{self.path}")
        return self._engine

    def require_vocabulary_head(self) -> None:
        if not self.has_vocabulary_head:
            use = "embed (or decide, if it is a decision model)" if self.classifier is None else "classify or embed"
            raise ValueError(f"{self.path}: expected a vocabulary head, this checkpoint has none; use {use}")

    def require_classifier(self, method: str) -> Classifier:
        """Return the head of texts, or raise ValueError."""
        if self.classifier is None:
            raise ValueError(f"{method}: expected a checkpoint with score.weight, {self.path} has none")
        return self.classifier

    @cached_property
    def inputs(self) -> Inputs:
        """Checks of prompts and scored texts; raises ValueError without a vocabulary head."""
        self.require_vocabulary_head()
        return self.text_inputs

    @property
    def items(self) -> ItemReader:
        return ItemReader(self.inputs, self.first_token)

    def first_token(self) -> int:
        """Return the token before a text: the model's first or end token."""
        return prefix_token(self.tokenizer, self.eos_token_ids)

    def session(
        self, processor: LogitsProcessor | None = None, speculate: Speculate | AsLoaded = "as loaded",
        capture_to: Any = None,
    ) -> Session:  # fmt: skip
        """Open a session; arguments as for `LM.session`."""
        inputs = self.inputs
        return Session(self.engine, inputs, processor, speculate, capture_to=folder_for(capture_to))

    def run(
        self, requests: Sequence[Request], probes: ProbeSettings, n: int, processor: LogitsProcessor | None,
        speculate: Speculate | AsLoaded,
    ) -> Generator[Event, None, None]:  # fmt: skip
        """Open a session of requests, `n` per prompt, with probes and interventions; return its events.

        Raises:
            ValueError: drafts are requested together with reads or changes.
        """
        engine, inputs, probing = self.engine, self.text_inputs, None
        if probes.check():
            if speculate not in (None, "as loaded"):
                raise ValueError("speculate: expected None with hidden_states, states or interventions")
            requests, probing = probes.of_requests(engine, requests, n)
        session = Session(engine, inputs, processor, speculate, probing)
        return run_requests(session, requests, self._start)

    def scores(
        self,
        ids: Sequence[tuple[int, ...]],
        top: int = 0,
        prefix: Prefix | None = None,
        question: Question | None = None,
        probing: TextProbing | None = None,
        full_lanes: bool = False,
    ) -> list[Score]:
        """Return unchecked scores in order; see `hybridlm.scoring.scorer.scores`."""
        began = time.perf_counter()
        with nullcontext() if probing is None else probing:
            computed = scores(self.engine, ids, top, prefix, question, probing, full_lanes)
        if self._start is not None:
            self._start.answered(time.perf_counter() - began)
        return computed

    def score(
        self, texts: Any, top_logprobs: int, prefix: Prefix | None, distributions: DistributionSettings,
        probes: ProbeSettings,
    ) -> list[Score]:  # fmt: skip
        inputs, vocab_size = self.inputs, self.config.vocab_size
        limit = inputs.max_logprobs
        if not is_whole(top_logprobs, 0, limit):
            raise ValueError(f"top_logprobs: expected 0..{limit}, got {top_logprobs!r}")
        distributions.check(vocab_size)
        if distributions.given and top_logprobs:
            raise ValueError("top_logprobs: expected 0 with token_ids, top, temperature or entropy; use top")
        is_probed = probes.check()

        def scores_of(ids: Sequence[ScoredIds]) -> list[Score]:
            question = distributions.question(ids, vocab_size) if distributions.given else None
            probing = self.probing(probes, ids, prefix) if is_probed else None
            return self.scores([text.token_ids for text in ids], top_logprobs, prefix, question, probing)

        if prefix is None:
            scores = score_items(self.items, scores_of, to_items(texts, "texts"), "texts")
        else:
            scores = scores_of([ScoredIds(ids, len(prefix)) for ids in inputs.continuations(prefix, texts, "texts")])
        return [replace(score, tokenizer=self.tokenizer) for score in checked(scores)]

    def probing(self, settings: ProbeSettings, texts: Sequence[ScoredIds], prefix: Prefix | None) -> TextProbing:
        spans = [range(text.prompt, len(text.token_ids)) for text in texts]
        return settings.of_texts(self.engine, spans, prefix)

    @cached_property
    def prompts(self) -> Prompts:
        """Prompts of decisions; raises ValueError without a tokenizer."""
        if self.tokenizer is None:
            raise ValueError("decide: the checkpoint has no tokenizer.json, which prompts need")
        return Prompts(self.tokenizer, read_settings(self.path, self.config.hidden_size))

    def decider(self, full_lanes: bool = False) -> Decider:
        settings = self.prompts.settings
        head = settings.head
        if head is None:
            self.require_vocabulary_head()
            dtype = np.dtype(jnp.dtype(self.engine.kind.dtype))
            head = LabelHead(self.prompts.tokenizer, self._head_rows, dtype)

        def read(ids: Sequence[tuple[int, ...]], places: Sequence[tuple[int, ...]]) -> list[ReadText]:
            return read_hidden(self.engine, ids, places, self.config.hidden_size, full_lanes=full_lanes)

        return Decider(self.prompts, head, read, self.text_inputs)

    def _head_rows(self, ids: Sequence[int]) -> np.ndarray:
        """Return vocabulary head rows with every logit factor, float64 [ids, hidden]."""
        if max(ids) >= self.config.vocab_size:
            raise ValueError(f"labels: token id {max(ids)} is outside the vocabulary [0, {self.config.vocab_size})")
        head = self.params["embed_tokens" if self.config.tied else "lm_head"]
        if isinstance(head, jax.Array) and not head.is_fully_addressable:
            if not head.is_fully_replicated:
                raise ValueError("decide: expected the vocabulary head whole in each process, the mesh divides it")
            head = head.addressable_data(0)
        rows = np.asarray(embedding_rows(head, jnp.asarray(ids, jnp.int32)), np.float64)
        return rows * self.config.logits_multiplier

    def counter(self) -> Callable[[], TokenCounts]:
        """Return a function with the counts of this thread, for any thread."""
        stats = self.engine.stats.by_thread[threading.get_ident()]

        def counts() -> TokenCounts:
            computed = sum(stats[name] for name in ("prompt_tokens", "scored_tokens", "generated_tokens"))
            return TokenCounts(stats["prefix_tokens_saved"], computed, stats["step_tokens"], stats["step_places"])

        return counts

    @contextmanager
    def keeping(self, finished: FinishedTexts) -> Iterator[None]:
        """Keep the results of single texts of a part, with one process."""
        self.engine.finished = None if self.engine.placement.several_processes else finished
        try:
            yield
        finally:
            self.engine.finished = None

    def origin(self) -> dict[str, str | int]:
        """Return everything except texts that the bits of scores depend on."""
        machine, engine = Machine.here(), self.engine
        options = engine.options.texts()
        with engine.settings.for_steps():
            jax_settings = fingerprint(jax_private.program_settings())
        return {
            "model": str(self.fingerprint),
            "tokenizer": "none" if self.tokenizer is None else self.tokenizer.fingerprint,
            "chat templates": "none" if self.tokenizer is None else self.tokenizer.chat_fingerprint,
            # A text without a token before it begins after one of these.
            "end tokens": ", ".join(map(str, self.eos_token_ids)),
            "dtypes": ", ".join(sorted({stored_form(array) for array in self.params.values()})),
            **{name: options[name] for name in STEP_OPTIONS},
            "steps of": f"{', '.join(map(str, engine.widths))} tokens",
            # Certified steps are rewritten first, which changes rounding.
            "steps": "certified" if engine.runner.certified else "as they are",
            "products": engine.placement.kernels_name,
            "hybridlm": __version__,
            "jax": jax.__version__,
            "jax_default_matmul_precision": jax_private.setting("jax_default_matmul_precision") or "default",
            "all JAX settings of programs": jax_settings,
            "device": machine.device,
            # XLA flags select the generated code.
            "XLA_FLAGS": machine.flags or "none",
        }
