"""Every known report of wrong state behind drafts or in mixed steps."""

from engine_mutants.reports import MIXED, ORDER, REPORTS, SINGLY, VERIFIED, Report

FORTY = {report.id: report for report in REPORTS}

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
           (f"{VERIFIED}::test_rejected_drafts_do_not_matter",)),
    FORTY["tpu-inference#2431"],
)  # fmt: skip
"""Rejected drafts, and counts of accepted tokens."""
