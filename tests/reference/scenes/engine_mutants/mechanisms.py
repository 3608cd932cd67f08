"""Sixty mechanisms of public reports, numbered in a list of 94, with their
counterparts here: mutants, tests, or the reason for their absence."""

from dataclasses import replace

from engine_mutants.prefix_reports import PREFIXES
from engine_mutants.reports import REPORTS, Report
from engine_mutants.rollback_reports import MIXED_BATCHES, ROLLBACK

KNOWN = {report.id: report for report in (*PREFIXES, *MIXED_BATCHES, *ROLLBACK, *REPORTS)}
SHARES = "tests/models/sharding/test_sharding.py"


def _with(id: str, *compiler: str) -> Report:
    """A report of the other tables, with more mutants of steps and hosts."""
    return replace(KNOWN[id], compiler=tuple(dict.fromkeys((*KNOWN[id].compiler, *compiler))))


MECHANISMS: dict[int, Report] = {
    1: KNOWN["Atlas#6"],
    2: KNOWN["Atlas#214"],
    3: KNOWN["ik#1932"],
    4: KNOWN["ik#2260"],
    5: KNOWN["flashinfer#3145"],
    8: KNOWN["tpu-inference#3453"],
    11: KNOWN["vLLM#32118"],
    12: KNOWN["tpu-inference#2431"],
    13: KNOWN["vLLM#35219"],
    14: KNOWN["vllm-metal#488"],
    15: Report("SGLang#22493", "retracted with keys and values alone: the row goes to somebody else",
               ("state-without-the-keys",), ("retracted",)),
    16: KNOWN["kekzl/imp#500"],
    17: KNOWN["mistral.rs#2357"],
    20: KNOWN["Atlas#141"],
    23: KNOWN["tpu-inference#2752"],
    24: KNOWN["SGLang#36885"],
    25: KNOWN["flashinfer#5042"],
    26: KNOWN["vLLM#39064"],
    27: KNOWN["vllm-gaudi#1431"],
    28: KNOWN["TRT-LLM#13151"],
    29: KNOWN["vLLM#37728"],
    30: KNOWN["SGLang#17404"],
    32: KNOWN["flashinfer#3230"],
    36: KNOWN["vLLM#39273"],
    37: KNOWN["vLLM#40738"],
    38: KNOWN["vLLM#51812"],
    39: _with("vLLM#40766", "not-put-back"),
    40: _with("vLLM#55894", "shortest-lane"),
    41: KNOWN["vLLM#47123"],
    42: KNOWN["SGLang#39342"],
    44: _with("SGLang#26351", "state-not-written"),
    45: KNOWN["vLLM#51508"],
    46: KNOWN["xLLM#2247"],
    47: KNOWN["llama.cpp#28019"],
    48: KNOWN["llama.cpp#29117"],
    49: KNOWN["vLLM#55178"],
    53: KNOWN["SGLang#31833"],
    54: KNOWN["vLLM#43559"],
    55: _with("SGLang#31369", "snapshot-label"),
    56: KNOWN["vLLM#56196"],
    57: KNOWN["vLLM#43090"],
    58: _with("vLLM#53142", "block-of-position"),
    63: KNOWN["vLLM#23279"],
    64: Report("sparkinfer#604", "the state is taken at the padded end of a chunk, not behind the last token",
               ("state-at-the-padded-end",), ("tail-at-the-padded-end",)),
    65: Report("transformers#46032", "a prompt that is read in two calls begins twice", ("every-chunk-begins",)),
    66: KNOWN["mlx-lm#1736"],
    67: Report("Automodel#2147", "packed sequences run as one", compiler=("packed-convolution",)),
    69: _with("SGLang#288", "layout-not-moved", "layout-bit"),
    70: KNOWN["sparkinfer#615"],
    71: Report("SGLang#22060", "three parts that are each split over devices are cut as one",
               compiler=("rows-leave-as-heads",), tests=(f"{SHARES}::test_shards_of_other_units_are_found",)),
    74: Report(
        "ik#1649", "a kernel reads what another of its threads overwrites",
        cannot="no kernel of this project's own has threads that share memory: steps are XLA's operations, whose order "
        "XLA keeps, and what a declared foreign kernel does inside is assumed and listed in the certificate",
    ),
    76: KNOWN["vLLM#53919"],
    77: Report("SGLang#24221", "a state is stored before the step has run that it is of",
               ("tokens-of-the-step-after", "kept-before-the-step"), ("snapshot-too-early", "read-after-write")),
    78: Report("Atlas#101", "every lane samples from the last lane's logits, or from each other's",
               ("last-lane-for-all",), ("last-lane-for-all", "two-rows-swapped")),
    79: Report("tenstorrent#51", "the host's map of rows moves on, the device's does not", ("lanes-exchanged",),
               ("rows-swapped",)),
    80: Report("sglang-jax copy_slots", "rows of one donated pool are gathered and scattered in another order",
               compiler=("copies-in-sequence", "copied-by-the-partitioner")),
    83: Report("vLLM#34874", "one group's metadata serves another group", compiler=("one-map-for-two",)),
    86: Report("Atlas#101", "devices call their collectives in different orders", compiler=("order-by-device",)),
    87: Report("Atlas#969", "devices replay different numbers of tokens", compiler=("replay-by-device",)),
    91: Report("SGLang#27869", "numbers depend on who else is in the batch", compiler=("load-balanced-routing",)),
}  # fmt: skip
"""Number -> what stands against it."""
