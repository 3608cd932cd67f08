"""Two schedulers that receive the same messages run the same steps, whatever their clocks say."""

import os
import random
import signal
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np
import pytest
from message_store import MemoryStore
from patched_functions import plant_fault
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.multiprocess.decisions import Broadcast, DecisionFailed, Interrupted
from hybridlm.multiprocess.environment import Disagreement
from hybridlm.multiprocess.messages import Messages
from hybridlm.worker import CLASSES, repeat

STEMS = ("once upon a time there was a ", "the quick brown fox jumps over the lazy dog ", "aaaa aaaa aaaa ", "")


class Jumping:
    """A clock that goes on by random steps, as it does for nobody else."""

    def __init__(self, seed: int):
        self._random, self._now = random.Random(seed), 0.0

    def perf_counter(self) -> float:
        self._now += self._random.random()
        return self._now


class RandomDrafter:
    """A user's drafter that is not a function of the tokens."""

    def __init__(self, seed: int):
        self._random = random.Random(seed)

    def propose(self, token_ids: Any, k: int) -> list[int]:
        return [self._random.randrange(3, 90) for _ in range(self._random.randrange(k + 1))]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> dict[Any, list[Any]]:
    """Every step that a runner dispatches, with a digest of its operands."""
    results: dict[Any, list[Any]] = {}
    digest = lambda *operands: [zlib.crc32(np.asarray(leaf).tobytes()) for leaf in jax.tree.leaves(operands)]

    def recording(noted: Callable[[Any], tuple[Any, ...]]) -> Any:
        def recorded(right: Callable[..., Any]) -> Callable[..., Any]:
            def run(self: Any, step: Any, examples: Any) -> Any:
                results[self].append((str(step.shape), *noted(step)))
                return right(self, step, examples)

            return run

        return recorded

    runs = recording(lambda step: (step.pool.size, digest(step.inputs)))
    plant_fault(monkeypatch, "hybridlm.programs.runner.Runner.run", runs)
    plant_fault(monkeypatch, "hybridlm.programs.runner.Runner.move", recording(lambda step: (digest(*step.maps),)))
    return results


def threads(lm: hybridlm.LM, seed: int) -> None:
    """A thread waits until a session of another thread, which has all rows, is idle."""
    with lm.session() as session, ThreadPoolExecutor(1) as thread:
        for stem in STEMS[:3]:
            session.submit(stem, max_tokens=30, ignore_eos=True)
        while len(session._scheduler.decoding) < 3:
            session.step()
        thread.submit(lm.score, [STEMS[seed]]).result()
        while session.busy:
            session.step()


def traffic(lm: hybridlm.LM, seed: int) -> None:
    """Parallel sessions with all kinds of requests, cancellations and drafters; prefixes and scores between."""
    rng, forms = random.Random(seed), random.Random(seed + 100)
    sessions = [lm.session(speculate="ngram"), lm.session(speculate=RandomDrafter(seed))]
    lm.prefix(STEMS[1])
    lm.engine.clear_prefix_cache()  # counts begin anew
    prefix = lm.prefix(STEMS[0])
    requests: list[set[int]] = [set(), set()]
    for position in range(90):
        choice = rng.randrange(2)
        session, alive = sessions[choice], requests[choice]
        if position < 60 and rng.random() < 0.4:
            settings: dict[str, Any] = {"max_tokens": rng.randrange(1, 40), "stop": rng.sample("aeiou sn", 2)}
            if rng.random() < 0.5:
                settings |= {"temperature": 1.0, "seed": rng.randrange(99)}
            if forms.random() < 0.2:
                settings["structured_outputs"] = {"regex": forms.choice(["[a-c]{2,9}d", "(once|upon) a time"])}
            text = rng.choice(STEMS[1:]) + "".join(rng.choices("abc de", k=rng.randrange(1, 20)))
            options = prefix if rng.random() < 0.3 else None
            alive.add(session.submit(text, priority=rng.randrange(2), prefix=options, **settings))
        if alive and rng.random() < 0.1:
            index = rng.choice(sorted(alive))
            alive.discard(index)
            session.cancel(index)
        alive -= {event.index for event in session.step() if event.completion is not None}
    lm.score([STEMS[1] * 3 + end for end in "abc"])
    lm.score([STEMS[1] + end for end in "abc"], token_ids=[[5], [[6]] * 44, []], top=2)
    lm.embed([STEMS[1] + end for end in "abc"], pooling="mean")
    del prefix
    sessions[0].close()
    while sessions[1].busy:
        sessions[1].step()
    del sessions, session
    lm.generate(STEMS[:3], max_tokens=4, stop=["e"], speculate="ngram")


def repeated(
    text_lm: hybridlm.LM,
    steps: dict[Any, list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    calls: Callable[[hybridlm.LM, int], None],
) -> dict[str, int]:
    """Make calls, and repeat them with the messages that they have sent; return the counts of both."""
    store, result = MemoryStore(), []
    for leads in (True, False):
        monkeypatch.setattr("hybridlm.drafting.step_times.time", Jumping(seed + 100 * leads))
        lm = hybridlm.load(text_lm.path, prefix_cache=200_000, **SETTINGS)
        lm.engine.runner.programs = text_lm.engine.programs
        actual = steps[lm.engine.runner] = []
        decisions = Broadcast(Messages(store, CLASSES), leads=leads, history=actual.__len__)
        lm.engine.decisions = decisions
        if leads:
            calls(lm, seed)
            decisions.end()
        else:
            repeat(lm.engine, lm.text_model.inputs, decisions, lambda label: nullcontext())
        result.append((actual, lm.stats | {"compiled": 0}))  # both have the same programs; the first compiles them
    assert result[0] == result[1]
    return result[0][1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_same_messages_give_the_same_steps(
    text_lm: hybridlm.LM, steps: dict[Any, list[Any]], monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    stats = repeated(text_lm, steps, monkeypatch, seed, traffic)
    assert min(stats[name] for name in ("prefix_hits", "prefix_evictions", "verify_steps", "scored_tokens")) > 0


@pytest.mark.slow
def test_a_thread_preempts_the_same_sequences_everywhere(
    text_lm: hybridlm.LM, steps: dict[Any, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a session is idle depends on threads and clocks, which process 0 has for all."""
    monkeypatch.setattr("hybridlm.engine.scheduler.IDLE_SECONDS", 0.2)
    assert repeated(text_lm, steps, monkeypatch, 0, threads)["preemptions"] > 0


def test_steps_unlike_process_0_are_found_with_the_next_message() -> None:
    store = MemoryStore()
    leader, follower = (
        Broadcast(Messages(store), leads=leads, history=lambda leads=leads: 7 + leads, where="process 2")
        for leads in (True, False)
    )
    with leader.command("warm up", every_bucket=True):
        pass
    with pytest.raises(Disagreement, match=r"process 2: steps before message 0 \(warm up\): expected the digest"):
        follower.receive()


@pytest.fixture
def pair() -> tuple[Broadcast, Broadcast]:
    store = MemoryStore()
    return Broadcast(Messages(store), leads=True), Broadcast(Messages(store), leads=False)


def test_an_interrupt_ends_a_command_at_the_same_checkpoint_everywhere(pair: tuple[Broadcast, Broadcast]) -> None:
    leader, follower = pair
    with pytest.raises(Interrupted), leader.command("score"):
        leader.checkpoint()
        os.kill(os.getpid(), signal.SIGINT)
        leader.checkpoint()
    assert follower.receive().kind == "score"
    follower.checkpoint()
    with pytest.raises(Interrupted):
        follower.checkpoint()


def test_an_interrupt_waits_for_the_end_of_a_command_without_checkpoints(pair: tuple[Broadcast, Broadcast]) -> None:
    results = []
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt), pair[0].command("step"):
            os.kill(os.getpid(), signal.SIGINT)
            results.append(True)
        assert results and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)


def test_a_decision_that_fails_fails_everywhere(pair: tuple[Broadcast, Broadcast]) -> None:
    leader, follower = pair
    with pytest.raises(ZeroDivisionError), leader.command("step"):
        leader.decide(lambda: 1 // 0)
    assert follower.receive().kind == "step"
    with pytest.raises(DecisionFailed, match="ZeroDivisionError"):
        follower.decide(lambda: 1 // 0)


def test_objects_dropped_in_process_0_are_dropped_everywhere(pair: tuple[Broadcast, Broadcast]) -> None:
    leader, follower = pair
    actual, reference = MemoryStore(), MemoryStore()
    leader.share(actual)
    follower.share(reference)
    with leader.command("step", session=actual):
        pass
    assert follower.receive().arguments["session"] is reference and follower._things
    del actual
    with leader.command("close"):
        pass
    assert follower.receive().kind == "close" and not follower._things
