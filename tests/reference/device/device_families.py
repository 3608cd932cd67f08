"""Part 3: every family in float32 against stored CPU numbers, in kernel sizes.

    python tests/reference/device/device_families.py [NAME ...]    # computes numbers of a CPU anew: family_numbers.npz

A checkpoint is random, by `random_checkpoint`; its checksum is stored with the numbers.
"""

import sys
import tempfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), *map(str, (ROOT / "tests" / "reference").glob("*/"))]

import numpy as np  # noqa: E402
from comparison import TOLERANCES  # noqa: E402
from device_records import Failure, Records  # noqa: E402
from random_checkpoint import write_random_checkpoint  # noqa: E402

import hybridlm  # noqa: E402

NUMBERS = Path(__file__).with_name("family_numbers.npz")
FAMILIES: dict[str, dict[str, Any]] = {
    "dense_base": {}, "sparse_base": {}, "mamba2_base": {"state_size": 16},
    "kimi_base": {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16}, "next_base": {}, "lfm2_moe_base": {},
    "nemotron_experts": {"head_dim": 32, "ssm_state_size": 16}, "granite_experts": {"mamba_d_state": 16},
    "bamba_base": {"mamba_d_state": 16}, "falcon_base": {"mamba_d_state": 16},
    "ling_base": {"qk_rope_head_dim": 16, "qk_nope_head_dim": 16},
    "olmo_base": {"linear_key_head_dim": 16, "linear_value_head_dim": 32}, "minimax_base": {}, "lara_base": {},
    "lfm3_base": {}, "zamba2_base": {"mamba_d_state": 16, "adapter_rank": 16}, "jamba_base": {"mamba_d_state": 16},
    "mamba_base": {"state_size": 16}, "lfm2_base": {}, "falcon_mamba_base": {"state_size": 16},
}  # fmt: skip
"""A checkpoint of each family: fields of its config in sizes that kernels take."""
REHEARSED = ("mamba2_base",)
SETTINGS: dict[str, Any] = {"lanes": 2, "dtype": "float32", "chunk": 40, "context": 128, "progress": False}
LENGTHS = (17, 65, 1)
"""Tokens of the prompts; the second has a whole chunk and a part of one."""
GREEDY = 6
"""Tokens of each completion."""


def check_families(records: Records, rehearse: bool, share: tuple[int, int] = (0, 1)) -> None:
    """Run a share of part 3: the families of number `share[0]` modulo `share[1]`."""
    names = list(REHEARSED if rehearse else FAMILIES)[share[0] :: share[1]]
    modes = ("interpret",) if rehearse else ("off", "auto")
    records.plan([f"{name}, {mode}" for name in names for mode in modes])
    with np.load(NUMBERS) as file:
        numbers = dict(file)
    for name in names:
        for mode in modes:
            checked: dict[str, np.ndarray] = {}
            work: Callable[[], dict[str, Any]] = partial(_check, name, mode, numbers, checked)
            records.check(f"{name}, {mode}", work, partial(records.write_arrays, f"{name}-{mode}", checked))


def family_numbers(name: str, kernels: str) -> tuple[dict[str, np.ndarray], str]:
    """Return scores and completions of a family's checkpoint on this process's platform, and its family.

    Returns:
        `scores` float32 [token] of all prompts, `greedy` int32 [prompt, token], `logprobs` float32 of these tokens, and
        the `checksum` of the checkpoint.
    """
    with tempfile.TemporaryDirectory(prefix="hybridlm-family-") as folder:
        directory = write_random_checkpoint(name, Path(folder) / name, **FAMILIES[name])
        checksum = zlib.crc32((directory / "model.safetensors").read_bytes())
        lm = hybridlm.load(directory, kernels=kernels, certify="off", compilation_cache=False, **SETTINGS)
    rng = np.random.default_rng(7)
    prompts = [rng.integers(1, lm.config.vocab_size, length).tolist() for length in LENGTHS]
    scores = np.concatenate([score.logprobs for score in lm.score(prompts)]).astype(np.float32)
    completions = lm.generate(prompts, max_tokens=GREEDY, ignore_eos=True, logprobs=0)
    greedy = np.array([completion.token_ids for completion in completions], np.int32)
    logprobs = np.array([completion.logprobs for completion in completions], np.float32)
    numbers = {"scores": scores, "greedy": greedy, "logprobs": logprobs, "checksum": np.array(checksum)}
    return numbers, lm.config.family


def _check(name: str, mode: str, expected: dict[str, np.ndarray], checked: dict[str, np.ndarray]) -> dict[str, Any]:
    numbers, family = family_numbers(name, mode)
    checked |= {f"{key}": array for key, array in numbers.items()}
    checked |= {f"{key} of a CPU": expected[f"{name}/{key}"] for key in numbers}
    if numbers["checksum"] != expected[f"{name}/checksum"]:
        raise Failure("the checkpoint has other weights: NumPy's random numbers have changed", {})
    tolerance = 2 * TOLERANCES[family]
    errors = {key: _error(numbers[key], expected[f"{name}/{key}"]) for key in ("scores", "logprobs")}
    mean = (numbers["greedy"] == expected[f"{name}/greedy"]).mean()
    figures = {**errors, "equal greedy tokens": float(mean), "tolerance": tolerance}
    # after a near tie completions and their log-probabilities are of other tokens
    wrong = errors["scores"] > tolerance or (mean == 1 and errors["logprobs"] > tolerance) or mean < 0.5
    if wrong or not np.isfinite(errors["scores"]):
        raise Failure(f"expected differences of at most {tolerance}, got {figures}", figures)
    return figures


def _error(numbers: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference; infinity where one of both is NaN alone."""
    if (np.isnan(numbers) != np.isnan(expected)).any():
        return float("inf")
    return float(np.nanmax(np.abs(numbers - expected)))


def main(names: list[str]) -> None:
    """Compute the numbers of a CPU for families, by default all; others are kept."""
    with np.load(NUMBERS) as file:
        numbers = {key: array for key, array in file.items() if key.partition("/")[0] in FAMILIES}
    for name in names or FAMILIES:
        numbers |= {f"{name}/{key}": array for key, array in family_numbers(name, "off")[0].items()}
    np.savez_compressed(NUMBERS, **numbers)  # type: ignore[arg-type]  # its stubs take keywords for allow_pickle


if __name__ == "__main__":
    main(sys.argv[1:])
