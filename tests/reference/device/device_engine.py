"""Part 6: isolation, certificates, completions of a 752M model, a mixed batch.

python tests/reference/device/device_engine.py FOLDER [tiny]    # writes the checkpoint that the part loads
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]

import numpy as np  # noqa: E402
from device_checks import certificates, each_lane, golden_model, isolation, used_rows  # noqa: E402
from device_programs import keep_step  # noqa: E402
from device_records import Failure, NotRun, Records  # noqa: E402

import hybridlm  # noqa: E402
from hybridlm.bench.mixed import SAMPLED, mixed_requests  # noqa: E402
from hybridlm.programs.shapes import Shape  # noqa: E402

LARGE_MODEL = "752M"
GOLDEN_MODELS = ("sparse_base", "kimi_base")
TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 2,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "vocab_size": 4096,
}  # fmt: skip
"""Fields of the large model's config in a rehearsal."""
WRITTEN = "written"
"""Empty file, made when the checkpoint is complete."""
SAMPLED_STREAM: dict[str, Any] = {**SAMPLED, "ignore_eos": True, "seed": 3}


def check_engine(records: Records, rehearse: bool, folder: Path) -> None:
    """Run part 6.

    Args:
        records: of the part.
        rehearse: tiny models.
        folder: of the large checkpoint, which another process writes meanwhile.
    """
    golden = GOLDEN_MODELS[:1] if rehearse else GOLDEN_MODELS
    modes = ("off",) if rehearse else ("auto", "off")
    small = {} if rehearse else {"isolation": isolation}  # the rehearsal of the large model has it
    small |= {"used rows": used_rows} | ({} if rehearse else {"each lane": each_lane}) | {"certificates": certificates}
    large = {"generate": _generate, "sampled stream": _stream, "mixed batch": _mixed}
    large |= {"isolation": isolation, "certificates": certificates}
    planned = [f"{LARGE_MODEL}, {mode}, {check}" for mode in modes for check in large]
    records.plan([*planned, *(f"{name}, {mode}, {check}" for name in golden for mode in modes for check in small)])
    for mode in modes:
        size = {"lanes": 4, "context": 160, "chunk": 16} if rehearse else {"lanes": 64, "context": 2048}
        _checks(records, f"{LARGE_MODEL}, {mode}", partial(_large, folder, records, kernels=mode, **size), large)
    for name in golden:
        for mode in modes:
            _checks(records, f"{name}, {mode}", partial(golden_model, name, mode), small)


def write_large(folder: Path, tiny: bool) -> None:
    """Write the large checkpoint with random weights."""
    sys.path.append(str(ROOT / "scripts" / "benchmarks"))
    config = import_module("bench_models").BENCH_MODELS[LARGE_MODEL]
    import_module("make_bench_checkpoint").write(folder / LARGE_MODEL, config | (TINY if tiny else {}), 0)
    (folder / WRITTEN).touch()


def _checks(
    records: Records,
    name: str,
    load: Callable[[], hybridlm.LM],
    checks: dict[str, Callable[[hybridlm.LM], dict[str, Any]]],
) -> None:
    """Run checks on a model that the first check loads."""
    models: list[hybridlm.LM] = []

    def run(check: Callable[[hybridlm.LM], dict[str, Any]]) -> dict[str, Any]:
        if not models:
            models.append(load())
        return check(models[0])

    for label, check in checks.items():
        evidence = partial(keep_faulty, records, name, models) if check is certificates else lambda: None
        records.check(f"{name}, {label}", partial(run, check), evidence)


def keep_faulty(records: Records, name: str, models: list[hybridlm.LM]) -> None:
    """Write certificates and programs of the steps with faults, until the part's time is over."""
    for lm in models:
        for shape in lm.engine.programs.shapes:
            certificate = lm.certificates[str(shape)]
            if certificate.is_proof and not certificate.not_audited:
                continue
            records.write_evidence("programs", f"{name}-{shape}.json", certificate.to_json().encode())
            if isinstance(shape, Shape) and records.seconds_left > 0:
                keep_step(records, f"{name}-{shape}", lm.engine, shape)


def _large(folder: Path, records: Records, **settings: Any) -> hybridlm.LM:
    while not (folder / WRITTEN).exists():
        if records.seconds_left <= 0:
            raise NotRun("the checkpoint was not written in time")
        time.sleep(0.05)
    return hybridlm.load(folder / LARGE_MODEL, dtype="bfloat16", certify="warn", progress=False, **settings)


def _generate(lm: hybridlm.LM) -> dict[str, Any]:
    """Time completions of as many prompts as lanes, the compilation apart."""
    lanes, length = lm.engine.lanes, min(128, lm.context // 4)
    prompts = np.random.default_rng(3).integers(1, lm.config.vocab_size, (lanes, length)).tolist()
    settings: dict[str, Any] = {"ignore_eos": True, "progress": False}
    start = time.perf_counter()
    lm.generate(prompts, max_tokens=2, **settings)
    first = time.perf_counter() - start
    start = time.perf_counter()
    completions = lm.generate(prompts, max_tokens=length, **settings)
    seconds = time.perf_counter() - start
    repeat = lm.generate(prompts, max_tokens=length, **settings)
    figures = {"first call, s": first, "tokens/s": lanes * length / seconds, "lanes": lanes}
    if [completion.token_ids for completion in completions] != [completion.token_ids for completion in repeat]:
        raise Failure("expected the same tokens in a second run", figures)
    return figures


def _stream(lm: hybridlm.LM) -> dict[str, Any]:
    """Compare a sampled prompt's tokens alone and in a batch of equal shape."""
    rng = np.random.default_rng(9)
    prompts = [rng.integers(1, lm.config.vocab_size, length).tolist() for length in range(5, 5 + lm.engine.lanes)]
    rest = [prompts[0], *(prompt[::-1] for prompt in prompts[1:])]
    runs: list[list[int]] = [[], []]
    for tokens, texts in zip(runs, (prompts, rest), strict=True):
        for event in lm.stream(texts, max_tokens=24, **SAMPLED_STREAM):
            if event.index == 0 and event.token is not None:
                tokens.append(event.token)
    figures = {"tokens": len(runs[0])}
    if runs[0] != runs[1] or not runs[0]:
        raise Failure(f"expected equal tokens among other prompts, got {runs[0]} and {runs[1]}", figures)
    return figures


def _mixed(lm: hybridlm.LM) -> dict[str, Any]:
    """Time the mixed batch of `hybridlm bench --mixed`, with two requests for each lane."""
    requests = mixed_requests(2 * lm.engine.lanes, lm.config.vocab_size, lm.context)
    count, tokens = len(requests), sum(length for _, length in requests)
    start, finished = time.perf_counter(), 0
    with lm.session() as session:
        for prompt, length in requests:
            session.submit(prompt, max_tokens=length, ignore_eos=True)
        while session.busy:
            finished += sum(event.completion is not None for event in session.step())
    seconds = time.perf_counter() - start
    figures = {"requests": count, "s": seconds, "completion tokens/s": tokens / seconds}
    if finished != count:
        raise Failure(f"expected {count} completions, got {finished}", figures)
    return figures


if __name__ == "__main__":
    write_large(Path(sys.argv[1]), sys.argv[2:] == ["tiny"])
