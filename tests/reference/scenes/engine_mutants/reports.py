"""Public reports of corrupted state in other engines, sixty mechanisms, and the counterparts here.

The mechanisms of the forty in `REPORTS` cover all other known reports; `MECHANISMS` are numbered in a list of 94.
scripts/write_mutants.py writes them into the page of the engine's mutants.
"""

from dataclasses import dataclass, replace

VERIFIED = "tests/hybridlm/steps/test_verify_step.py"
ISOLATION = "tests/hybridlm/isolation/test_isolation.py"
HISTORY = f"{ISOLATION}::test_rows_of_earlier_sequences_change_no_bit"
BESIDE_NAN = f"{ISOLATION}::test_a_lane_next_to_nan_keeps_its_bits"
IDLE = f"{ISOLATION}::test_an_idle_lane_keeps_its_rows_bit_for_bit"
CONVOLUTION = "tests/models/layers/test_short_conv.py::test_equals_its_definition_at_every_length"
COLD_AND_WARM = "tests/hybridlm/engine/test_prefix.py::test_cold_and_warm_agree"
LABEL = "tests/hybridlm/engine/test_prefix.py::test_a_snapshot_is_taken_at_the_position_that_its_row_has_reached"
EVERY_BOUNDARY = "tests/hybridlm/prefix_cache/test_prefix_cache.py::test_cold_and_warm_agree"
SCHEDULES = "tests/hybridlm/isolation/test_rollback.py::test_random_schedules"
PUBLISHED = "tests/hybridlm/engine/test_prefix.py::test_rows_that_hold_nan_and_neighbours_that_become_nan_change_no_bit"
COPIES = "tests/hybridlm/rows/test_row_parts.py::test_copies_are_proved_to_touch_one_row"
THEN_NO_DRAFTS = f"{VERIFIED}::test_three_of_four_accepted_and_then_a_step_without_drafts"
MIXED = f"{VERIFIED}::test_drafts_next_to_lanes_without_drafts"
SINGLY = f"{VERIFIED}::test_the_same_as_one_token_at_a_time"
ACCEPTED_ALONE = f"{VERIFIED}::test_rows_bitwise_match_the_accepted_tokens_alone"
ORDER = f"{VERIFIED}::test_the_order_of_lanes_does_not_matter"
ACCEPT = f"{VERIFIED}::test_accept"


@dataclass(frozen=True)
class Report:
    """One report.

    Attributes:
        id: as project#number.
        fault: the fault, in one line.
        engine: ids of mutants of the engine.
        compiler: ids of mutants of steps and hosts (tests/reference/proofs/mutants).
        tests: regression tests, as file::name.
        cannot: why it cannot exist here, in one sentence; "" for what can.
    """

    id: str
    fault: str
    engine: tuple[str, ...] = ()
    compiler: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    cannot: str = ""


REPORTS = (
    Report("Atlas#6", "scratch sized for one lane", compiler=("scratch-too-small", "foreign-call-on-the-pool")),
    Report("Atlas#214", "a batch read with another array's stride", compiler=("row-stride",)),
    Report("ik#1932", "scratch freed while other sequences use it",
           compiler=("scratch-freed-early", "two-scratch-rows")),
    Report("ik#2260", "a program used again by its shape decodes on the first sequence's state",
           ("operands-kept-for-the-shape",), ("row-of-the-first-trace", "rows-as-constants")),
    Report("flashinfer#3145", "a buffer of the batch indexed by the pool's row", compiler=("batch-buffer-by-row",)),
    Report("tpu-inference#3453", "a tile reads more rows of metadata than there are", compiler=("tile-past-the-end",)),
    Report("vLLM#32118", "a prompt of one token goes on from the tenant before", ("one-token-prompt",),
           ("one-token-prompt",), (HISTORY,)),
    Report("tpu-inference#2431", "one of two kernels ignores that a sequence begins", ("replay-forgets-the-beginning",),
           ("forgetful-kernel",), (HISTORY,)),
    Report("vLLM#35219", "bytes of another owner, NaN among them, survive a mask by zero", (),
           ("idle-by-multiplication", "one-hot-rows"), (HISTORY, BESIDE_NAN)),
    Report("vllm-metal#488", "a sequence put back begins again on its state", ("put-back",), ("preempted",)),
    Report("kekzl/imp#500", "the row is the request's number", ("row-by-request-number",), ("row-from-request",)),
    Report("mistral.rs#2357", "a row given back twice", ("freed-twice",), ("freed-twice",)),
    Report("Atlas#141", "two snapshots in one row of a ring", ("ring-of-states",), ("snapshots-share-a-row",)),
    Report("tpu-inference#2752", "a padding index is clamped to the last row", ("slot-becomes-the-last-row",),
           ("clamped-padding",), (IDLE,)),
    Report("SGLang#36885", "-1 becomes the last row", ("slot-becomes-the-last-row",), ("sentinel-last-row",)),
    Report("flashinfer#5042", "a negative row wraps", ("slot-below-0-wraps",), ("wrapped-padding",), (COPIES,)),
    Report("vLLM#39064", "two kernels disagree about the padding row", ("row-0-is-padding",), ("sentinels-differ",)),
    Report("vllm-gaudi#1431", "rows modulo a size", ("slot-modulo",), ("remainder",)),
    Report("TRT-LLM#13151", "rows of parked sequences are taken for free", ("parked-rows-are-free",), ("stale-tail",)),
    Report("vLLM#37728", "condensing leaves a row twice", ("duplicate-after-condensing",),
           ("two-lanes-one-row", "dummy-writes")),
    Report("SGLang#17404", "a warm-up writes rows that are handed out", ("first-use-runs-twice",), ("warm-up-row",),
           (HISTORY,)),
    Report("flashinfer#3230", "row times stride overflows", compiler=("narrow-offsets", "narrow-rows")),
    Report("vLLM#39273", "state and convolution at different places after a draft",
           ("first-token-kept", "count-of-the-step-before"), (), (THEN_NO_DRAFTS,)),
    Report("vLLM#40738", "mended for batches of drafted lanes alone",
           ("undrafted-lanes-move-by-one", "drafted-lanes-alone-move", "count-of-the-step-before"), (), (MIXED,)),
    Report("vLLM#51812", "one input is permuted, another is not",
           ("settings-in-order-of-joining", "gates-of-another-order"), ("gates-not-permuted",)),
    Report("vLLM#47123", "a prompt of one special length takes another path and writes nothing",
           ("whole-chunk-not-written", "prompt-taken-for-drafts"), ("uniform-path", "never-captured"), (SINGLY,)),
    Report("SGLang#39342", "what is kept beside a batch is not renewed when a sequence joins",
           ("operands-kept-for-the-lanes", "kept-and-never-written"), ("snapshot-never-written",), (LABEL,)),
    Report("vLLM#51508", "no token accepted: the neighbour's row", ("carried-from-minus-one", "drafts-alone-counted"),
           ("none-accepted", "idle-lane-accepts", "idle-lane-counted", "count-below-zero"), (ACCEPT,)),
    Report("xLLM#2247", "the accepted count is clamped to the convolution's width", ("clamped-to-the-convolution",)),
    Report(
        "llama.cpp#28019", "the convolution stays behind the recurrent state",
        ("one-array-stays-behind", "convolution-of-all-tokens", "convolution-left-behind", "recurrence-of-all-tokens"),
        ("state-not-written",), (ACCEPTED_ALONE,),
    ),
    Report("llama.cpp#29117", "tokens are taken back, the state is not", ("replayed-on-top",),
           ("rolled-back-on-the-host",), (ACCEPTED_ALONE,)),
    Report("vLLM#55178", "placeholders that fill up a prompt enter the state",
           ("padding-is-consumed", "placeholders-replayed"), ("tail-at-the-padded-end",)),
    Report("SGLang#31833", "a grid of chunks over the flat batch", ("kept-of-the-first-row",),
           ("chunks-of-the-flat-batch",), (COLD_AND_WARM, SCHEDULES)),
    Report("vLLM#43559", "a snapshot under another position's label",
           ("one-token-further", "labelled-as-the-whole-prompt"), ("snapshot-label",), (LABEL,)),
    Report("vLLM#56196", "a chunk shorter than the convolution", ("shared-state-written",), ("read-pointer",),
           (CONVOLUTION, PUBLISHED, EVERY_BOUNDARY)),
    Report("vLLM#43090", "a hit of attention alone", ("keys-without-the-state", "state-without-the-keys"),
           ("half-a-hit",), (COLD_AND_WARM, EVERY_BOUNDARY)),
    Report("vLLM#23279", "decays summed from the chunk's start", ("every-chunk-begins",),
           ("sums-over-the-flat-batch",)),
    Report("mlx-lm#1736", "padding enters the state", ("padding-is-consumed",), ("tail-at-the-padded-end",),
           (CONVOLUTION, BESIDE_NAN)),
    Report("sparkinfer#615", "written in one layout, read in another", (), ("written-transposed", "layout-bit"),
           (COPIES,)),
    Report("vLLM#53919", "what comes back is read by the rows of now",
           ("lanes-of-now", "counts-of-the-lane-beside", "count-of-the-lane-beside", "counts-close-ranks"),
           ("permuted-twice", "another-lanes-count")),
)  # fmt: skip


CACHE = "tests/hybridlm/prefix_cache/test_prefix_cache.py"
REFUSED = f"{CACHE}::test_states_of_another_position_tokens_or_model_are_refused"
SAME_GRID = f"{CACHE}::test_the_same_grid_gives_the_same_bits"
TOGETHER = f"{CACHE}::test_prompts_of_one_call_that_begin_alike_share_it"
FORTY = {report.id: report for report in REPORTS}

PREFIXES = (
    FORTY["SGLang#31833"],
    FORTY["vLLM#43559"],
    Report("SGLang#31369", "a label from a counter that leads the state", ("labelled-one-ahead",)),
    FORTY["vLLM#56196"],
    FORTY["vLLM#43090"],
    Report("vLLM#53142", "a state found by blocks of another size", ("another-size-of-spans",), tests=(REFUSED,)),
    Report("SGLang#34820", "a state kept in a narrower dtype", tests=(SAME_GRID,)),
    Report("vLLM#53505", "what comes from elsewhere is another state", ("back-from-the-host",)),
    Report("SGLang#29973", "three grids that do not meet", ("hit-rounded-to-chunks", "cut-edge-from-its-beginning"), (),
           (EVERY_BOUNDARY,)),
    Report("vLLM#57267", "requests that share a prefix in one step", tests=(TOGETHER, SCHEDULES)),
    FORTY["Atlas#141"],
    FORTY["SGLang#39342"],
    Report("SGLang#288", "the layout does not move with the state", ("layout-left-behind",), tests=(REFUSED,)),
    Report("SGLang#24954", "kept before the step has run", ("kept-before-the-step",)),
    Report("vLLM#45477", "found under a hash of something else", ("found-by-length",), tests=(REFUSED,)),
)  # fmt: skip


MIXED_BATCHES = (
    FORTY["vLLM#39273"],
    FORTY["vLLM#40738"],
    FORTY["vLLM#51812"],
    Report("vLLM#40766", "prompts are taken to come before sequences that decode",
           ("prompts-first", "lanes-close-ranks"), (), (ORDER,)),
    Report("vLLM#55894", "drafts behind a long chunk are cut like a prompt",
           ("drafts-taken-for-a-prompt", "drafts-are-certain"), (), (SINGLY,)),
    FORTY["vLLM#47123"],
    Report("vLLM#34871", "a last chunk of one token beside drafts is taken for a sequence that decodes",
           ("one-token-forgotten", "last-token-left-out"), (), (SINGLY,)),
)  # fmt: skip
"""Steps that mix lanes of several kinds."""

ROLLBACK = (
    Report("SGLang#26351", "of what is accepted nothing is written", ("never-replayed", "decodes-in-another-row"), (),
           (SINGLY,)),
    FORTY["vLLM#51508"],
    FORTY["xLLM#2247"],
    FORTY["llama.cpp#28019"],
    FORTY["llama.cpp#29117"],
    FORTY["vLLM#55178"],
    Report("turboquant#352", "the state trails the tokens, or is that of all drafts",
           ("one-token-behind", "every-draft-kept", "moved-by-one", "moved-by-all-drafts"), (), (SINGLY,)),
    Report("vllm-ascend#11262", "what is handed over is the row of a draft",
           cannot="drafts have no rows: a sequence has one, and it holds accepted tokens only"),
    Report("SGLang hybrid_linear_attn_backend", "two counters move on in the same step", ("moved-twice",), (),
           (MIXED,)),
    FORTY["vLLM#53919"],
    Report("vLLM#40880", "a program keeps the lengths that it was first run with", ("drafts-of-the-step-before",), (),
           (f"{VERIFIED}::test_rows_bitwise_match_the_accepted_tokens_alone",)),
    FORTY["tpu-inference#2431"],
)  # fmt: skip
"""Rejected drafts, and counts of accepted tokens."""


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
