"""Soak test: send random traffic through sessions, and compare every completion with its solo run.

    python scripts/soak.py [--minutes 60 | --sessions N] [--model DIRECTORY] [--lanes 8] [--seed 0]

Requests of random lengths, limits, stops and priorities join at random steps; some are cancelled, and texts are scored
between steps. Half of the prompts have a common prefix; pages are so few that sequences are preempted. Half of the
sessions draft right and wrong tokens, half have a prefix cache, a tenth runs with the sanitizer. A completion must
equal the request's solo run, except where its two best logits are closer than 5e-3. The exit status is 1 if a
completion differs, or if one of these events never happened.
"""

import argparse
import random
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import hybridlm
from hybridlm import demo
from hybridlm.engine import scheduler
from hybridlm.engine.cache_size import KV_BLOCK
from hybridlm.engine.speculation import Speculation

NEAR_TIE = 5e-3
SAMPLES = 10
"""Number of memory measurements."""
LIBRARY = 48
"""Number of requests; each has a solo run."""
EVENTS = (
    "cancelled", "scored texts", "shared pages", "forced numbers of lanes", "preemptions", "drafted_tokens",
    "accepted_tokens", "prefix_hits",
)  # fmt: skip
"""Without these a run shows little."""


class Soak:
    def __init__(self, model: Path, lanes: int, seed: int):
        settings: dict[str, Any] = {"lanes": lanes, "context": 512, "chunk": 16, "dtype": "float32"}
        self.lm = hybridlm.load(model, **settings)
        settings["cache"] = (lanes + 2) * KV_BLOCK
        self.few = hybridlm.load(model, **settings)
        self.sanitized = hybridlm.load(model, sanitize=True, **settings)
        self.cached = hybridlm.load(model, prefix_cache="20MB", **settings)
        self.random = random.Random(seed)
        self.begins = [self.random.randrange(self.lm.config.vocab_size) for _ in range(280)]
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.requests = [self._request() for _ in range(LIBRARY)]
        self.alone = [self.lm.generate([prompt], **settings)[0] for prompt, settings in self.requests]
        self.texts = [self.begins[:150], self.begins[:150][::-1], self.begins[:17]]
        self.scores = [score.logprobs for score in self.lm.score(self.texts)]

    def _request(self) -> tuple[list[int], dict[str, Any]]:
        rng = self.random
        prompt = [rng.randrange(self.lm.config.vocab_size) for _ in range(rng.choice((1, 2, 15, 16, 17, 33, 120)))]
        if rng.random() < 0.5:
            prompt = self.begins[: rng.choice((5, 16, 100, 128, 129, 260))] + prompt
        settings: dict[str, Any] = {"max_tokens": rng.randint(1, 40), "ignore_eos": rng.random() < 0.5}
        if rng.random() < 0.3:
            settings["stop"] = [rng.randrange(self.lm.config.vocab_size) for _ in range(40)]
        return prompt, settings

    def session(self) -> None:
        """Run a random session."""
        rng, count = self.random, self.seen["sessions"]
        sanitize = count % 10 == 5
        lm = self.sanitized if sanitize else self.cached if count % 2 == 1 else self.few
        todo = rng.randint(1, 60)
        pending: dict[int, int] = {}
        stats = lm.stats
        with lm.session(speculate=self if count % 4 < 2 else None) as session:
            while todo or session.busy:
                if todo and rng.random() < 0.5:
                    number = rng.randrange(LIBRARY)
                    prompt, settings = self.requests[number]
                    pending[session.submit(prompt, priority=rng.randint(0, 2), **settings)] = number
                    todo -= 1
                if pending and rng.random() < 0.02:
                    self._cancel(session, rng.choice(list(pending)))
                if rng.random() < 0.03:
                    self._resize(session)
                if rng.random() < 0.005:
                    self._score(lm)
                for event in session.step():
                    if event.completion is not None:
                        self._compare(pending.pop(event.index), event.completion)
                session.check_integrity()
                pages = lm.engine.pool.page_owner
                self.seen["shared pages"] += 0 if pages is None else int((pages.counts() > 1).sum())
        if pending:
            self.wrong.append(f"requests {sorted(pending)} never ended")
        self._look_for_nan(lm)
        self.seen.update({name: lm.stats[name] - stats.get(name, 0) for name in EVENTS if name in lm.stats})
        self._look_for_holders(lm)
        self.seen["sessions"] += 1
        self.seen["sanitized sessions"] += sanitize
        self.seen["cached sessions"] += lm is self.cached

    def propose(self, token_ids: Sequence[int], k: int) -> list[int]:
        """Draft two right tokens and a wrong one of a request."""
        ids, count = list(token_ids), len(token_ids)
        texts = (completion.prompt_token_ids + completion.token_ids for completion in self.alone)
        right = next((text[count : count + 2] for text in texts if text[:count] == ids), [])
        return [*right, self.begins[count % len(self.begins)]][:k]

    def _score(self, lm: hybridlm.LM) -> None:
        for expected, score in zip(self.scores, lm.score(self.texts), strict=True):
            self.seen["scored texts"] += 1
            if not np.allclose(score.logprobs[1:], expected[1:], atol=1e-3):
                self.wrong.append(f"a text of {len(expected)} tokens has other log-probabilities")

    def _look_for_holders(self, lm: hybridlm.LM) -> None:
        """Check that no row has a holder, and without cached states no page."""
        if lm is self.cached:
            lm.engine.clear_prefix_cache()
        pool = lm.engine.pool
        free = sum(map(pool.free_pages, range(pool.devices)))
        if pool.owner.held or free != pool.pages - pool.devices:
            self.wrong.append(f"rows {pool.owner.held} are held, {free} pages are free, after all requests have ended")

    def _cancel(self, session: hybridlm.Session, index: int) -> None:
        try:
            session.cancel(index)
        except KeyError:  # the request ended in the previous step
            return
        self.seen["cancelled"] += 1

    def _resize(self, session: hybridlm.Session) -> None:
        scheduler, engine = session._scheduler, session._engine
        if scheduler.decoding:
            count = self.random.randint(len(scheduler.decoding), engine.lanes)
            scheduler._decode_lanes = engine.bucket(count, engine.lanes)
            self.seen["forced numbers of lanes"] += 1

    def _compare(self, number: int, completion: hybridlm.Completion) -> None:
        expected = self.alone[number]
        self.seen["completions"] += 1
        self.seen["tokens"] += len(completion.token_ids)
        if completion.token_ids == expected.token_ids and (completion.finish_reason, completion.text) == (
            expected.finish_reason,
            expected.text,
        ):
            return
        count = len(completion.token_ids)
        if completion.finish_reason == "cancelled" and completion.token_ids == expected.token_ids[:count]:
            return
        pairs = zip(completion.token_ids, expected.token_ids, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        if first is not None and self._margin(expected, first) < NEAR_TIE:
            self.seen["near ties"] += 1
            return
        self.wrong.append(
            f"request {number}: alone {expected.token_ids}, here {completion.token_ids} ({completion.finish_reason})"
        )

    def _margin(self, expected: hybridlm.Completion, count: int) -> float:
        best = np.sort(np.asarray(self.lm.forward(expected.prompt_token_ids + expected.token_ids[:count]).logits[-1]))
        return float(best[-1] - best[-2])

    def _look_for_nan(self, lm: hybridlm.LM) -> None:
        pool = lm.engine._pool
        if pool is not None:
            for leaf in jax.tree.leaves(pool.look()):
                if not np.isfinite(np.asarray(leaf)).all():
                    self.wrong.append(f"a pool of {pool.size} rows holds numbers that are not finite")


def resident() -> int:
    """Return the resident memory of the process in bytes."""
    status = Path("/proc/self/statm")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status.read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--sessions", type=int, help="end after as many, however long they take")
    parser.add_argument("--model", type=Path, default=demo.path(), help="checkpoint (default: the embedded one)")
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scheduler.ROOM, Speculation.always = 3, True  # sequences soon need more pages; every draft is verified
    warnings.filterwarnings("ignore", ".*was preempted after")
    start, sizes = time.monotonic(), list[int]()
    soak = Soak(options.model, options.lanes, options.seed)
    limit = options.minutes if options.sessions is None else float("inf")
    while (minutes := (time.monotonic() - start) / 60) < limit and not soak.wrong:
        if soak.seen["sessions"] == options.sessions:
            break
        soak.session()
        if len(sizes) < minutes // (options.minutes / SAMPLES):
            sizes.append(resident())
    print(f"{minutes:.1f} minutes, {options.lanes} lanes, seed {options.seed}, jax {jax.__version__}")
    for name in sorted(soak.seen):
        print(f"{name:20} {soak.seen[name]:9d}")
    for name, lm in (("steps", soak.few), ("sanitized steps", soak.sanitized), ("cached steps", soak.cached)):
        print(f"{name:20} {lm.stats['steps']:9d}")
    for name in ("prefix_hits", "prefix_spills", "prefix_evictions"):
        print(f"{name.replace('_', ' '):20} {soak.cached.stats[name]:9d}")
    soak.wrong += [f"nothing is shown: 0 {name}" for name in EVENTS if not soak.seen[name]]
    sizes.append(resident())
    print(f"resident memory, MB, at each part of the time: {' '.join(f'{size / 1e6:.0f}' for size in sizes)}")
    for line in soak.wrong:
        print(f"WRONG: {line}")
    sys.exit(bool(soak.wrong))


if __name__ == "__main__":
    main()
