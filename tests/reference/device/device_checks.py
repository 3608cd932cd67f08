"""Checks of a device on a loaded model: certificates of all steps, numbers beside a CPU's, isolation, used rows.

scripts/check_device.py runs them in one command and `pytest -m gpu` one by one. A CPU's numbers are computed in a
process of their own (`write_expected`), since a process computes on one platform.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from comparison import TOLERANCES, Greedy, check_greedy, check_logits, check_logprobs, padded
from device_speed import speed
from disturbed_lanes import disturb_halves, measure
from reused_rows import check_reused_rows

import hybridlm
from hybridlm.engine.warmup import all_shapes
from hybridlm.programs.shapes import Shape

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
MAX_ROUNDING = 4.0
"""Error of a device in a dtype of 16 bits, over that of a CPU in the same dtype. Both round, at different places."""
ROUNDING = 1e-3
"""Root mean square of errors of log-probabilities up to which they are not compared."""
GREEDY = 12
"""Tokens of greedy completions."""
PROMPTS = (9, 2, 30, 1, 17, 6)
TEXTS = (90, 33, 61, 100)
"""Lengths."""


@dataclass(frozen=True)
class Case:
    """One checkpoint.

    Attributes:
        name: of the checkpoint.
        directory: of its files.
        settings: of `hybridlm.load`.
        exact: numbers are those of a CPU up to the rounding of float32; otherwise as far from a CPU's float32 as those
            of a CPU in the same dtype.
        each_lane: disturb each lane in turn, one array at a time, beside every second one in all arrays at once.
    """

    name: str
    directory: Path
    settings: dict[str, Any] = field(hash=False)
    exact: bool
    each_lane: bool = False

    def load(self, **settings: Any) -> hybridlm.LM:
        """Load the model; what is refused is run all the same, and its certificate says so."""
        return hybridlm.load(self.directory, **{**self.settings, "certify": "warn", "progress": False, **settings})


def golden_case(name: str) -> Case:
    """A tiny random model whose steps have as many lanes and tokens as `disturbed_lanes` needs."""
    return Case(name, GOLDEN / name, {"lanes": 4, "context": 140, "chunk": 7, "dtype": "float32"}, True, True)


def sequences(vocab: int, lengths: tuple[int, ...]) -> list[list[int]]:
    """Random sequences of these lengths, the same in every process."""
    rng = np.random.default_rng(7)
    return [rng.integers(1, vocab, length).tolist() for length in lengths]


def write_expected(case: Case, file: Path) -> None:
    """Compute a case's numbers on this process's platform, and write them."""
    found: dict[str, np.ndarray] = {}
    if case.exact:
        lm = case.load()
        prompts = sequences(lm.config.vocab_size, PROMPTS)
        found["logits"] = np.concatenate(_logits(lm, prompts))
        found["logprobs"] = np.concatenate([score.logprobs for score in lm.score(prompts)])
        tokens = [one.token_ids for one in lm.generate(prompts, max_tokens=GREEDY, ignore_eos=True)]
        found["greedy"] = np.array(tokens)
        whole = [prompt + completion for prompt, completion in zip(prompts, tokens, strict=True)]
        best = [np.sort(logits[-GREEDY - 1 : -1], axis=-1) for logits in _logits(lm, whole)]
        found["margins"] = np.array([logits[:, -1] - logits[:, -2] for logits in best])
    else:
        for dtype in ("float32", case.settings["dtype"]):
            lm = case.load(dtype=dtype, lanes=4)
            found[dtype] = np.concatenate([one.logprobs for one in lm.score(sequences(lm.config.vocab_size, TEXTS))])
            del lm
    with file.with_suffix(".part").open("wb") as out:
        np.savez(out, **found)  # type: ignore[arg-type]  # its stubs take keywords for allow_pickle
    file.with_suffix(".part").rename(file)


def certificates(lm: hybridlm.LM, case: Case, expected: Path) -> dict[str, Any]:
    """Every step is compiled, proved and audited, and copies no pool that it need not."""
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lm.engine.program, all_shapes(lm.engine, only_full=True, drafts=True)))
    faults = [f"{name}: {one}" for name, found in lm.certificates.items() for one in found.faults]
    faults += [f"{name}: not audited: {one.not_audited}" for name, one in lm.certificates.items() if one.not_audited]
    faults += [f"{name}: {one.state}" for name, one in lm.certificates.items() if not one.is_proof]
    assert not faults, "\n".join(faults)
    copies = sum(len(one.copies) for one in lm.certificates.values())
    return {"steps": len(lm.certificates), "pool-sized copies": copies}


def parity(lm: hybridlm.LM, case: Case, expected: Path) -> dict[str, Any]:
    """Numbers are those of a CPU."""
    with np.load(expected) as file:
        want = dict(file)
    if not case.exact:
        return _rounding(lm, case, want)
    prompts, tolerance = sequences(lm.config.vocab_size, PROMPTS), TOLERANCES[lm.config.family]
    ends, worst = np.cumsum(PROMPTS)[:-1], 0.0
    for found, logits in zip(_logits(lm, prompts), np.split(want["logits"], ends), strict=True):
        check_logits(found, logits, case.name, tolerance)
        worst = max(worst, float(np.abs(found - logits).max()))
    for score, logprobs in zip(lm.score(prompts), np.split(want["logprobs"], ends), strict=True):
        check_logprobs(score.logprobs, logprobs, case.name, tolerance)
    completions = lm.generate(prompts, max_tokens=GREEDY, ignore_eos=True)
    ties = 0
    for completion, tokens, margins in zip(completions, want["greedy"], want["margins"], strict=True):
        ties += check_greedy(completion.token_ids, Greedy(tokens, margins), case.name, tolerance)
    return {"largest difference of a logit": worst, "tolerance": tolerance, "completions that part at a tie": ties}


def _rounding(lm: hybridlm.LM, case: Case, want: dict[str, np.ndarray]) -> dict[str, Any]:
    found = np.concatenate([one.logprobs for one in lm.score(sequences(lm.config.vocab_size, TEXTS))])
    exact, rounded = want["float32"], want[case.settings["dtype"]]
    assert (np.isnan(found) == np.isnan(exact)).all(), "other tokens than a CPU's have no log-probability"

    def error(numbers: np.ndarray) -> float:
        return float(np.sqrt(np.nanmean((numbers - exact) ** 2)))

    here, cpu = error(found), error(rounded)
    assert here <= max(MAX_ROUNDING * cpu, ROUNDING), (
        f"{case.name}: log-probabilities differ from a CPU's in float32 by {here:.2e} (root mean square), those of a "
        f"CPU in {case.settings['dtype']} by {cpu:.2e}; expected at most {MAX_ROUNDING} times as much"
    )
    return {"error beside float32": here, f"a CPU's in {case.settings['dtype']}": cpu}


def isolation(lm: hybridlm.LM, case: Case, expected: Path) -> dict[str, Any]:
    """No lane changes a bit of another: every second one is disturbed, and of small models each in turn."""
    engine, found = lm.engine, list[str]()
    shapes = [
        Shape("generate", engine.lanes, 1),
        Shape("verify", engine.lanes, engine.draft_tokens + 1),
        Shape("generate", engine.prefill_rows, engine.chunk),
        Shape("score", engine.prefill_rows, engine.chunk, 0),
    ]
    for shape in shapes:
        reached, inert = disturb_halves(lm, shape)
        found += [f"{shape}: lanes beside disturbed ones changed in {output}" for output in reached]
        if case.each_lane:
            seen = measure(lm, shape)
            found += [f"{shape}: {one}" for one in seen.leaks]
            # lane 3 does nothing in these steps
            inert += [lane for lane, what in seen.inert if what == "everything" and lane < 3]
        found += [f"{shape}: lane {lane} was disturbed, and changed nothing" for lane in inert]
    assert not found, "\n".join(found[:20])
    return {"steps": len(shapes), "lanes": engine.lanes}


def used_rows(lm: hybridlm.LM, case: Case, expected: Path) -> dict[str, Any]:
    """Rows full of NaN, and rows of earlier sequences, change no bit."""
    check_reused_rows(lm)
    return {}


Check = Callable[[hybridlm.LM, Case, Path], dict[str, Any]]
"""(model, case, file of a CPU's numbers) -> figures; raises if anything is wrong."""
SMALL: tuple[Check, ...] = (parity, isolation, used_rows, certificates)
LARGE: tuple[Check, ...] = (certificates, isolation, speed, parity)
"""Checks in their order: the certificates of small models come last, so that all their steps are there, and the numbers
of the large one, which take a CPU longest."""


def _logits(lm: hybridlm.LM, prompts: list[list[int]]) -> list[np.ndarray]:
    found = lm.forward(padded(prompts)).logits
    return [np.asarray(one)[: len(prompt)] for one, prompt in zip(found, prompts, strict=True)]
