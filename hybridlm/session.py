"""A session: submit requests at any time, receive tokens step by step.

More than 300 lines: one class follows each request from its prompt to its completion.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Unpack

import numpy as np

from hybridlm.drafting.drafters import AsLoaded, Speculate
from hybridlm.engine.decoding import DispatchedStep, append_token
from hybridlm.engine.engine import Engine
from hybridlm.engine.inputs import Inputs
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.probe_settings import ProbeSettings
from hybridlm.engine.probing import Probing, probe_sites
from hybridlm.engine.scheduler import Scheduler
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.grammars import Grammars, TokenSet, TokenState
from hybridlm.keywords import suggests_in_methods
from hybridlm.programs.start import Start
from hybridlm.requests.interventions import Intervention
from hybridlm.requests.results import Completion, PromptLogprobs
from hybridlm.requests.sampling_params import SamplingParams, Settings, takes_settings
from hybridlm.requests.sequence import ActiveSequence, FinishReason, Request
from hybridlm.requests.validation import with_settings
from hybridlm.sampling.sampling import LogitsProcessor
from hybridlm.scoring.scorer import add_prompts, prompt_logprobs
from hybridlm.scoring.text import ScoredText
from hybridlm.steps.generate import NO_TOKEN, SampledTokens
from hybridlm.text.reasoning import ThinkingBudget, markers_of, opens_thoughts, split_thoughts
from hybridlm.text.stream_decoder import GrowingText
from hybridlm.text.tokenizer import Tokenizer
from ir_passes.host.slot_faults import OneHolder
from ir_passes.jaxpr import refused

DRAFTED_BY_USER = "by the user's drafter"
"""Placeholder for a user's drafter, in the command that opens a session in other processes."""


class Event(NamedTuple):
    """One token of one request.

    Attributes:
        index: of the request.
        token: None for an end without a token (full context, cancelled).
        text: text that is now final; "" without a tokenizer.
        completion: with the last token; None before.
    """

    index: int
    token: int | None
    text: str
    completion: Completion | None


@dataclass(eq=False)
class AliveRequest:
    """A request that has not ended.

    Attributes:
        sequence: its tokens; another after an inserted end of thoughts.
        tokenizer: None without text.
        prompt: the prompt while it is scored.
    """

    sequence: ActiveSequence
    tokenizer: Tokenizer | None
    prompt: ScoredText | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @cached_property
    def text(self) -> GrowingText | None:
        if self.tokenizer is None:
            return None
        params = self.sequence.request.params
        stream = self.tokenizer.stream(params.skip_special_tokens, params.keep_tool_markers)
        return GrowingText(stream, params.stop_strings, min_tokens=params.min_tokens)

    @cached_property
    def budget(self) -> ThinkingBudget | None:
        request = self.sequence.request
        params = request.params
        if self.tokenizer is None or params.thinking_budget is None:
            return None
        return ThinkingBudget(self.tokenizer, request.prompt, params.thinking_budget, params.think_end)


@suggests_in_methods
class Session(OneHolder, AbstractContextManager["Session"]):
    """Requests that are run step by step; `LM.session` makes it.

        with lm.session() as session:
            first = session.submit("Once upon a time")
            while session.busy:
                for event in session.step():
                    ...

    Sequences join and leave at any step. Each `step` dispatches one step and returns the previous one's tokens.
    Sessions share rows and pages.

    Args:
        inputs: checks the arguments of `submit`, and has the tokenizer.
        processor: changes each lane's logits before sampling.
        speculate: drafter, as for `LM.generate`.
        probing: reads and changes inside the model, if any; then nothing is drafted.
        capture_to: folder for captured arrays of submitted requests; None: memory.

    Attributes:
        errors: reasons of ends without a completion, by request number.
    """

    _instead = "open another one with lm.session()"

    def __init__(
        self,
        engine: Engine,
        inputs: Inputs,
        processor: LogitsProcessor | None,
        speculate: Speculate | AsLoaded = None,
        probing: Probing | None = None,
        capture_to: Path | None = None,
    ):
        self._engine, self._inputs, self._tokenizer = engine, inputs, inputs.tokenizer
        self._capture_to, self._probing = capture_to, probing
        drafting = engine.options.speculate if speculate == "as loaded" else speculate
        speculation = None if drafting is None or probing is not None else engine.speculation(drafting)
        self._scheduler = Scheduler(engine, processor, speculation, probing)
        self._alive: dict[int, AliveRequest] = {}
        self._unscored: list[AliveRequest] = []
        self._prompts: dict[ScoredText, list[int]] = {}
        self._events: list[Event] = []
        self.errors: dict[int, NumericalError | GrammarError] = {}
        self._in_flight: deque[DispatchedStep] = deque()
        self._submitted = 0
        self._closed, self._lost, self._reading_outputs = False, 0, False
        self._done = 0.0
        self._lock = threading.RLock()
        if probing is None and engine.decisions is not None:
            drafter = speculate if speculate is None or isinstance(speculate, str) else DRAFTED_BY_USER
            with engine.decisions.command("session", logits_processor=processor, speculate=drafter):
                engine.decisions.share(self)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None and self._probing is not None:
            self._probing.finish()
        self.close()

    def __repr__(self) -> str:
        scheduler = self._scheduler
        return (
            f"Session(waiting={len(scheduler.waiting)}, prefilling={len(scheduler.prefilling)}, "
            f"decoding={len(scheduler.decoding)}{', closed' if self._closed else ''})"
        )

    @property
    def busy(self) -> bool:
        """Whether `step` has not yet returned a request's end, also after an error."""
        return bool(self._alive or self._events or self._lost)

    @takes_settings
    def submit(
        self,
        prompt: str | Sequence[int],
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        prefix: Prefix | None = None,
        hidden_states: Sequence[int] = (),
        states: bool = False,
        positions: str = "last",
        interventions: Sequence[Intervention] | None = None,
        **settings: Unpack[Settings],
    ) -> int:
        """Queue a prompt.

        `ProbeSettings` describes `hidden_states`, `states`, `positions` and `interventions`, which disable the
        session's drafts.

        Args:
            prompt: a string or token ids.
            sampling_params: of this request.
            priority: the highest first; equal ones by arrival.
            prefix: state that the prompt continues (see `LM.prefix`).
            **settings: fields of `SamplingParams`.

        Returns:
            The request's number: 0, 1, ..., part of its random key.

        Raises:
            TypeError, ValueError: a wrong prompt or setting; nothing was queued.
            RuntimeError: a closed session.
        """
        with self._lock:
            if self._closed or refused.forked:
                self._refuse()
            params = with_settings(sampling_params, settings)
            request = self._inputs.request(self._submitted, prompt, params, priority, prefix)
            probes = ProbeSettings(hidden_states, positions, states, None, interventions)
            if probes.check():
                request = probes.of_request(self._reading(), request)
            self.add(request)
            return request.index

    def _reading(self) -> Probing:
        if self._probing is None:
            probing = Probing(self._engine, probe_sites(self._engine, "submit"), self._capture_to)
            self._scheduler.read_and_change(probing)
            self._probing = probing
        return self._probing

    def add(self, request: Request) -> None:
        """Queue a checked request."""
        params = request.params
        if params.prompt_logprobs is not None and request.probe is not None and request.probe.intervenes:
            raise ValueError("prompt_logprobs: expected None with interventions; lm.score takes interventions")
        with self._lock, self._engine.command("add", session=self, request=request):
            sequence = ActiveSequence(request)
            alive = AliveRequest(sequence, self._tokenizer)
            self._submitted = request.index + 1
            self._alive[request.index] = alive
            if params.grammar is not None or params.allowed_token_ids is not None:
                sequence.grammar = self._grammar(sequence)
            if self._probing is not None:
                capacity = min(params.max_tokens, self._engine.context - len(request.prompt))
                sequence.recorder = self._probing.recorder(request.probe, request.index, capacity)
            if params.prompt_logprobs is None:
                self._start(alive)
            elif len(request.prompt) == 1:
                self._start(alive, [None])
            else:
                self._unscored.append(alive)
                self._scheduler.awaited.add(sequence)

    def _start(self, alive: AliveRequest, logprobs: PromptLogprobs | None = None) -> None:
        """Queue a request, or end it with a full context."""
        alive.prompt_logprobs = logprobs
        if len(alive.sequence.request.prompt) < self._engine.context:
            self._scheduler.add(alive.sequence)
        else:
            self._end(alive, "length", None)

    def cancel(self, index: int) -> None:
        """End a request now; `step` returns its completion as "cancelled".

        Raises:
            KeyError: no active request has this number.
        """
        with self._lock:
            if index not in self._alive:
                raise KeyError(f"request {index} is not alive; alive are {sorted(self._alive)}")
            with self._engine.command("cancel", session=self, index=index):
                self._end(self._alive[index], "cancelled", None)

    def step(self) -> list[Event]:
        """Dispatch the next step, then wait for the previous one and return its tokens.

        Returns:
            Events in lane order, perhaps none.

        Raises:
            NumericalError: a request has ended with NaN logits; others continue.
            GrammarError: a request has ended without a possible token in its grammar.
            IsolationError, AuditError, HloError: a refused step (see `load`).
            RowsLost: an interrupted step closed the session; submit its requests again.
            JaxRuntimeError: the device failed, or a C++ kernel refused its operands; the session is closed.
            RuntimeError: a closed session.
        """
        with self._lock:
            if self._closed or refused.forked:
                self._refuse()
            with self._engine.command("step", session=self):
                self._reading_outputs = False
                try:
                    while self._in_flight and self._in_flight[0].accepted is not None:
                        self._read()
                    if self._unscored:
                        self._score_prompts()
                    dispatched = self._scheduler.next(unread=bool(self._in_flight))
                    if dispatched is None and self._in_flight:
                        while self._in_flight:
                            self._read()
                        dispatched = self._scheduler.next()
                    if dispatched is not None:
                        self._in_flight.append(dispatched)
                    if len(self._in_flight) > 1 or (self._in_flight and dispatched is None):
                        self._read()
                    if self._engine.checked:
                        self._scheduler.check_integrity()
                except BaseException as error:
                    # An interrupted wait is repeated by the next call; of the others tokens may be lost.
                    if not self._reading_outputs and error not in self.errors.values():
                        lost = {*self._alive, *(event.index for event in self._events)}
                        self.close()
                        self._lost = len(lost)
                    raise
                events, self._events = self._events, []
                return events

    def _score_prompts(self) -> None:
        new = [alive.sequence for alive in self._unscored if alive.sequence.finish_reason is None]
        self._unscored.clear()
        prompts = add_prompts(self._engine, self._scheduler, [sequence.request for sequence in new])
        self._prompts |= prompts
        for prompt, indices in prompts.items():
            for index in indices:
                self._alive[index].prompt = prompt

    def check_integrity(self) -> None:
        """Check that every row is free or held by one active request.

        Raises:
            SlotError: with every fault.
        """
        with self._lock:
            self._scheduler.check_integrity()

    def close(self) -> None:
        """End every request without a completion and release the rows. Closing twice does nothing."""
        with self._lock:
            self._lost = 0
            self._events.clear()
            if self._closed:
                return
            with self._engine.command("close", session=self):
                self._closed = True
                self._alive.clear()
                self._prompts.clear()
                self._in_flight.clear()
                if self._probing is not None:
                    self._probing.close()
                self._scheduler.close()

    def _refuse(self) -> NoReturn:
        refused.require_threads("session")
        lost = f", {self._lost} requests have not ended" if self._lost else ""
        raise RuntimeError(f"the session is closed{lost}; open another one with lm.session()")

    def _read(self) -> None:
        # The step stays in the queue until its outputs have arrived, so that an interrupted wait can be repeated.
        dispatched = self._in_flight[0]
        timing = dispatched.timing
        with nullcontext() if timing is None else timing.reading(dispatched.sampled.token, self._done):
            accepted, sampled = self._read_outputs(dispatched)
        if timing is not None:
            timing.keep(self._engine.decide(lambda: timing.seconds))
        self._done = time.perf_counter()
        self._in_flight.popleft()
        if dispatched.parts:
            self._take_prompts(dispatched, sampled)
        else:
            self._take(dispatched, sampled, accepted)

    def _read_outputs(self, dispatched: DispatchedStep) -> tuple[np.ndarray | None, SampledTokens]:
        """Wait for the outputs of a step; an interrupted wait can be repeated."""
        self._reading_outputs = True
        try:
            outputs = self._engine.read((dispatched.accepted, dispatched.sampled))
        except BaseException as error:
            self._reading_outputs = isinstance(error, KeyboardInterrupt)
            raise
        self._reading_outputs = False
        return outputs

    def _take_prompts(self, dispatched: DispatchedStep, scored: Any) -> None:
        """Start the requests with prompts scored by a step.

        Raises:
            NumericalError: a prompt's log-probabilities are not finite; its request has ended.
        """
        wrong: NumericalError | None = None
        for text in dispatched.parts[0].text.reading.take(scored, dispatched.parts):
            logprobs = prompt_logprobs(text)
            for index in self._prompts.pop(text, ()):
                alive = self._alive[index]
                alive.prompt = None
                if isinstance(logprobs, list):
                    self._start(alive, logprobs)
                    continue
                error = self.errors[index] = NumericalError(f"request {index}", logprobs)
                wrong = wrong or error
                self._forget(alive.sequence, "cancelled")
        if wrong is not None:
            raise wrong

    def _grammar(self, sequence: ActiveSequence) -> TokenState | None:
        """Return the state of a request's grammar or allowed tokens after its tokens so far."""
        request, text = sequence.request, sequence.request.params.grammar
        if request.params.allowed_token_ids is not None:
            return TokenSet(request.params.allowed_token_ids, self._engine.vocab_size)
        if text is None or self._tokenizer is None:
            return None
        grammars = Grammars.of(self._tokenizer, self._engine.vocab_size, self._inputs.eos_token_ids)
        return grammars.state(text, request.given, sequence.output, request.params.think_end)

    def _take(self, dispatched: DispatchedStep, sampled: SampledTokens, accepted: np.ndarray | None) -> None:
        wrong: NumericalError | GrammarError | None = None
        if accepted is not None:
            self._scheduler.settle(dispatched, accepted)
        for sequence, lane in dispatched.sequences:
            self._engine.stats.add("sampled_lanes", sequence.finish_reason is None)
            places = [(lane,)] if accepted is None else [(lane, place) for place in range(accepted[lane])]
            for place in places:
                if sequence.finish_reason is not None:
                    break  # the request ended during this step, or with an earlier token
                error = self._error(sequence, sampled, place)
                if error is None and self._probing is not None:
                    hidden: Any = sampled.hidden_states  # NumPy arrays, as all outputs that were read
                    wrong_place = self._probing.take(sequence, dispatched.reads.get(lane), hidden, lane)
                    if wrong_place is not None:
                        error = NumericalError(f"request {sequence.request.index}", wrong_place)
                if error is None:
                    append_token(sequence, sampled, place)
                    self._grow(sequence)
                else:
                    wrong = wrong or error
                    self.errors[sequence.request.index] = error
                    if isinstance(error, NumericalError):
                        self._scheduler.invalidate(sequence)
                    self._forget(sequence, "cancelled")
            if sampled.mtp_drafts is not None and sequence.drafting is not None:
                sequence.drafting.take_mtp(len(sequence.generated), sampled.mtp_drafts[lane].tolist())
        if wrong is not None:
            raise wrong

    def _error(
        self, sequence: ActiveSequence, sampled: SampledTokens, place: tuple[int, ...]
    ) -> NumericalError | GrammarError | None:
        """Return the error of a sampled token, if any."""
        token, logprobs = int(sampled.token[place]), sequence.request.params.logprobs
        grammar, params, vocab_size = sequence.grammar, sequence.request.params, self._engine.vocab_size
        item, position = f"request {sequence.request.index}", len(sequence.request.prompt) + len(sequence.generated)
        reported = [] if logprobs is None else [sampled.logprob, sampled.top_logprobs]
        numbers = [np.ravel(array[place])[: max(logprobs or 0, 1)] for array in reported if array is not None]
        if token == vocab_size or not all(np.isfinite(array).all() for array in numbers):
            return NumericalError(item, position)
        if token == vocab_size + NO_TOKEN:
            reason = "logit_bias, bad_words, min_tokens or a logits processor rule out every token"
            if grammar is not None:
                reason = grammar.fault or f"{reason} that structured_outputs or allowed_token_ids allow"
            return GrammarError(item, position, reason)
        if grammar is None:
            return None
        grammar.push(token)
        if grammar.fault is not None:
            return GrammarError(item, position, grammar.fault)
        if grammar.complete and len(sequence.output) + 1 < params.min_tokens:
            reason = f"min_tokens is {params.min_tokens}, structured_outputs end after {len(sequence.output) + 1}"
            return GrammarError(item, position + 1, reason)
        return None

    def _grow(self, sequence: ActiveSequence) -> None:
        index, token = sequence.request.index, sequence.generated[-1]
        self._engine.stats.add("generated_tokens")
        alive = self._alive[index]
        text = alive.text
        if text is not None and token not in sequence.request.params.stop_token_ids:
            text.push(token)
        reason = self._finish_reason(sequence, text)
        if reason is None:
            self._events.append(Event(index, token, "" if text is None else text.take(), None))
            if text is not None and alive.budget is not None and alive.budget.spent(token):
                self._end_thoughts(alive, text, alive.budget.end_ids)
        else:
            self._end(alive, reason, token)

    def _end_thoughts(self, alive: AliveRequest, text: GrowingText, end_ids: list[int]) -> None:
        sequence, request, index = alive.sequence, alive.sequence.request, alive.sequence.request.index
        remaining = request.params.max_tokens - len(sequence.generated) - len(end_ids)
        if remaining < 1 or len(request.prompt) + len(sequence.generated) + len(end_ids) >= self._engine.context:
            return  # the thoughts end with the completion
        sequence.finish_reason = "cancelled"  # tokens of steps in flight are dropped
        self._scheduler.leave(sequence)
        stops = request.params.stop_token_ids if len(sequence.output) >= request.params.min_tokens else frozenset[int]()
        count = next((place for place, token in enumerate(end_ids, 1) if token in stops), None)
        end_ids = end_ids[:count]
        params = replace(request.params, max_tokens=remaining)
        prompt, completed = (*request.prompt, *sequence.generated, *end_ids), len(sequence.output) + len(end_ids)
        follower = ActiveSequence(replace(request, prompt=prompt, params=params, completed=completed))
        follower.logprobs = sequence.logprobs + [math.nan] * len(end_ids)
        follower.top_logprobs = sequence.top_logprobs + [{} for _ in end_ids]
        follower.grammar = None if sequence.grammar is None else self._grammar(follower)
        alive.sequence = follower
        for token in end_ids:
            if token not in stops:
                text.push(token)
            self._engine.stats.add("generated_tokens")
            self._events.append(Event(index, token, text.take(), None))
        if text.stopped or count is not None:
            self._events.pop()
            self._end(alive, "stop", end_ids[-1])
        else:
            self._scheduler.add(follower)

    def _finish_reason(self, sequence: ActiveSequence, text: GrowingText | None) -> FinishReason | None:
        if sequence.grammar is not None and sequence.grammar.complete:
            return "stop"
        if sequence.generated[-1] in sequence.request.params.stop_token_ids or (text is not None and text.stopped):
            return "stop"
        return "length" if len(sequence.generated) == sequence.sampled == sequence.max_sampled else None

    def _end(self, alive: AliveRequest, reason: FinishReason, token: int | None) -> None:
        sequence, text = alive.sequence, alive.text
        index, logprobs = sequence.request.index, sequence.request.params.logprobs
        if text is not None:
            text.finish()
            reason = "stop" if text.stopped and reason == "length" else reason
        self._forget(sequence, reason)
        params, prompt, output = sequence.request.params, list(sequence.request.given), sequence.output
        reasoning = answer = None
        if text is not None and self._tokenizer is not None:
            markers = markers_of(self._tokenizer, params.think_end)
            opened = markers is not None and opens_thoughts(self._tokenizer, prompt, markers)
            reasoning, answer = split_thoughts(
                self._tokenizer,
                text.text,
                output,
                markers,
                opened,
                params.skip_special_tokens,
                params.keep_tool_markers,
            )
        completion = Completion(
            text=None if text is None else text.text,
            token_ids=output,
            logprobs=None if logprobs is None else sequence.logprobs,
            top_logprobs=sequence.top_logprobs if logprobs else None,
            finish_reason=reason,
            prompt_token_ids=prompt,
            tokenizer=self._tokenizer,
            reasoning=reasoning,
            answer=answer,
            captured=None if sequence.recorder is None else sequence.recorder.finish(),
            seed=params.seed if params.temperature > 0 else None,
            prompt_logprobs=alive.prompt_logprobs,
        )
        self._events.append(Event(index, token, "" if text is None else text.take(final=True), completion))

    def _forget(self, sequence: ActiveSequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        self._scheduler.leave(sequence)
        prompt = self._alive.pop(sequence.request.index).prompt
        if prompt is not None:
            self._prompts[prompt].remove(sequence.request.index)
            if not self._prompts[prompt]:
                del self._prompts[prompt]
                self._scheduler.leave(prompt)


def run_requests(session: Session, requests: Sequence[Request], start: Start | None) -> Generator[Event, None, None]:
    """Yield the events of requests; report the time of the first one to `start`."""
    began = time.perf_counter()
    with session:
        for request in requests:
            session.add(request)
        while session.busy:
            events = session.step()
            if events and start is not None:
                start.answered(time.perf_counter() - began)
            yield from events
