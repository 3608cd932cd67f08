"""Steps compiled ahead: no later compilation; one lane compiles to plain JAX's program."""

import re
import warnings

import jax
import pytest
from hlo_text import text_of
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm.engine import warmup

PARTS = ("keep a state of", "keep a span of", "restore a state to", "restore a span to")


def operations(compiled: jax.stages.Compiled) -> list[str]:
    """Return sorted lines of HLO without sources and names."""
    return sorted(re.sub(r"%[\w.\-]+|\b[A-Za-z_][\w\-]*\.\d+[\w.\-]*", "%", text_of(compiled)).splitlines())


@pytest.fixture(scope="module")
def lm(text_lm: hybridlm.LM) -> hybridlm.LM:
    return hybridlm.load(text_lm.path, **{**SETTINGS, "lanes": 2})


@pytest.mark.long
def test_nothing_compiles_after_a_warm_up(lm: hybridlm.LM) -> None:
    seconds = lm.warmup(every_bucket=True)
    buckets = (1, 2)
    shapes = {f"generate {lanes}x{tokens} of 2" for lanes in buckets for tokens in (1, 5)}
    shapes |= {f"score {lanes}x5 of {lanes}" for lanes in buckets}
    pages = {bucket: lm.engine.pages(bucket) for bucket in buckets}
    shapes |= {f"{way} {pages[bucket] if 'span' in way else bucket}" for bucket in buckets for way in PARTS}
    assert set(seconds) == shapes and all(took > 0 for took in seconds.values())
    assert lm.stats["compiled"] == len(shapes) == len(lm.certificates)
    for count in (1, 2, 5):
        lm.generate([[7] * (count + 4)] * count, max_tokens=3, ignore_eos=True)
        lm.score([[7] * 9] * count)
        lm.generate([[8]] * count, prefix=lm.prefix([7] * 9), max_tokens=1)
    assert lm.stats["compiled"] == len(shapes)


@pytest.mark.slow
def test_a_slow_step_is_named(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert set(lm.warmup()) == {"generate 2x5 of 2", "generate 2x1 of 2", "score 2x5 of 2"}
    monkeypatch.setattr(warmup, "COMPILE_SECONDS", -1.0)
    with pytest.warns(UserWarning, match="generate 2x1 of 2: 0 s"):
        lm.warmup()


@pytest.mark.slow
def test_one_lane_pays_nothing(lm: hybridlm.LM) -> None:
    """The HLO has the operations and types of the jitted step with donated state."""
    shape = lm.engine.shape("generate", 1, 1)
    step, _ = lm.engine.programs.step(shape)
    plain = jax.jit(step, donate_argnums=1).lower(*lm.engine.example_arguments(shape)).compile()
    names, expected = (operations(compiled) for compiled in (lm.engine.program(shape).compiled, plain))
    assert len(names) > 500 and names == expected


def test_warming_up_compiles_what_a_cache_needs(cached_lm: hybridlm.LM) -> None:
    names = {str(shape) for shape in warmup.all_shapes(cached_lm.engine, only_full=True)}
    pages = cached_lm.engine.pages(3)
    spans = {f"keep a span of {pages}", f"restore a span to {pages}"}
    assert {"keep a state of 3", "restore a state to 3", *spans} < names


MESH_WORDS = (
    "shard_map psum pmax pmin ppermute pbroadcast pgather pcast pvary all_gather all_to_all reduce_scatter axis_index"
).split()
"""Parts of the names of all primitives that need a mesh."""


def test_one_device_has_no_mesh_in_its_steps(text_lm: hybridlm.LM) -> None:
    engine = text_lm.engine
    for shape in warmup.all_shapes(engine, only_full=True, drafts=True):
        step, _ = engine.programs.step(shape)
        text = str(jax.make_jaxpr(step)(*engine.example_arguments(shape)))
        for word in MESH_WORDS:
            assert word not in text, f"{shape}: {word}"
