"""Public reports of wrong cached prompt states, and the counterparts here."""

from engine_mutants.reports import EVERY_BOUNDARY, REPORTS, SCHEDULES, Report

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
