"""Forty public reports of corrupted state in other engines, and the counterparts here.

The mechanisms of these forty cover all other known reports; scripts/write_mutants.py writes them into
the page of the engine's mutants.
"""

from dataclasses import dataclass

VERIFIED = "tests/hybridlm/steps/test_verify_step.py"
ISOLATION = "tests/hybridlm/isolation/test_isolation.py"
HISTORY = f"{ISOLATION}::test_rows_of_earlier_sequences_change_no_bit"
BESIDE_NAN = f"{ISOLATION}::test_a_lane_next_to_nan_keeps_its_bits"
IDLE = f"{ISOLATION}::test_an_idle_lane_keeps_its_rows_bit_for_bit"
CONVOLUTION = "tests/models/layers/test_short_conv.py::test_equals_its_definition_at_every_length"
COLD_AND_WARM = "tests/hybridlm/engine/test_prefix.py::test_cold_and_warm_agree"
LABEL = "tests/hybridlm/engine/test_prefix.py::test_a_snapshot_is_taken_at_the_position_that_its_row_has_reached"
EVERY_BOUNDARY = "tests/hybridlm/prefix_cache/test_prefix_cache.py::test_cold_and_warm_agree"
SCHEDULES = "tests/hybridlm/prefix_cache/test_prefix_cache_schedules.py::test_random_schedules"
PUBLISHED = "tests/hybridlm/engine/test_prefix.py::test_rows_that_hold_nan_and_neighbours_that_become_nan_change_no_bit"
COPIES = "tests/hybridlm/rows/test_row_parts.py::test_copies_are_proved_to_touch_one_row"
THEN_NO_DRAFTS = f"{VERIFIED}::test_three_of_four_accepted_and_then_a_step_without_drafts"
MIXED = f"{VERIFIED}::test_drafts_next_to_lanes_without_drafts"
SINGLY = f"{VERIFIED}::test_the_same_as_one_token_at_a_time"
REJECTED = f"{VERIFIED}::test_rejected_drafts_do_not_matter"
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
           ("rolled-back-on-the-host",), (REJECTED,)),
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
