"""The audit of the engine's own steps as XLA compiled them."""

import pathlib

import pytest
from tiny_variants import OTHER_GOLDENS

import hybridlm

LANES = 4
MOST_GAPS = 0.25
"""Gaps in the scratch, over the bytes that are live at once: XLA packs few large buffers. With kernels scratch is 10 to
80 KB, too little to judge."""
PAGE = 4096

MODEL_NAMES = ["dense_interval", *OTHER_GOLDENS]
# In the long run one of every family.
MODELS = [MODEL_NAMES[0], *(pytest.param(name, marks=pytest.mark.long) for name in OTHER_GOLDENS)]


@pytest.fixture(scope="module", params=MODELS)
def lm(root: pathlib.Path, request: pytest.FixtureRequest) -> hybridlm.LM:
    return hybridlm.load(root / "tests/golden" / request.param, lanes=LANES, context=64, dtype="float32", chunk=8)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, pytest.param(8, marks=pytest.mark.long)])
def test_generating_step_writes_its_pools_in_place(lm: hybridlm.LM, tokens: int) -> None:
    engine = lm.engine
    program = engine.program(engine.shape("generate", LANES, tokens, LANES))
    assert program.certificate.holds and program.audit is not None
    report = program.audit
    assert not report.findings
    assert not report.uncovered
    assert report.values > 150  # of two layers of Mamba alone
    assert not report.copies
    gaps = report.temp_bytes - report.temp_lower_bound
    assert 0 <= gaps < max(MOST_GAPS * report.temp_lower_bound, PAGE)


@pytest.mark.long
@pytest.mark.parametrize("lanes", [1, 8])
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_pools_of_other_sizes_and_a_narrow_dtype_are_written_in_place(root: pathlib.Path, name: str, lanes: int):
    """A narrow row is computed as two; two rows of a convolution are no copy."""
    lm = hybridlm.load(root / "tests/golden" / name, lanes=lanes, context=256, dtype="bfloat16", chunk=32)
    for count, tokens in ((lm.engine.lanes, 1), (lm.engine.prefill_lanes, 32)):
        report = lm.engine.program(lm.engine.shape("generate", count, tokens)).audit
        assert report is not None and not report.findings and not report.uncovered and not report.copies


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [65, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", MODELS)
def test_drafts_of_several_chunks_are_read_without_a_copy_of_the_state(root: pathlib.Path, name: str, tokens: int):
    """Both passes go chunk by chunk; the first must leave the state unwritten."""
    lm = hybridlm.load(root / "tests/golden" / name, lanes=3, context=256, dtype="float32", chunk=8)
    report = lm.engine.program(lm.engine.shape("verify", 3, tokens, 3)).audit
    assert report is not None and not report.findings and not report.uncovered and not report.copies


@pytest.mark.long
def test_an_array_of_the_caches_shape_is_no_copy_of_it(text_lm: hybridlm.LM) -> None:
    """Four query heads of 64 tokens have the shape of a cache of 256 positions."""
    lm = hybridlm.load(text_lm.path, lanes=3, context=256, chunk=64, dtype="float32")
    copies = lm.engine.program(lm.engine.shape("generate", 3, 64, 3)).certificate.copies
    assert not [copy for copy in copies if "attention" in copy]


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize(
    "name", ["lfm2_base", *(pytest.param(name, marks=pytest.mark.long) for name in MODEL_NAMES if name != "lfm2_base")]
)
def test_as_many_tokens_as_inputs_of_a_convolution_are_no_second_pool(root: pathlib.Path, name: str, kernels: str):
    """Outputs of a convolution have the type of its pool with a row for each lane."""
    lm = hybridlm.load(root / "tests/golden" / name, lanes=3, context=64, dtype="float32", chunk=8, kernels=kernels)
    for tokens in (2, 3):
        report = lm.engine.program(lm.engine.shape("generate", 3, tokens, 3)).audit
        assert report is not None and not report.findings
