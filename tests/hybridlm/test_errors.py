"""Errors pass between processes, as from Ray's actors; models, sessions and prefixes do not."""

import copy
import pickle
from collections.abc import Callable, Iterator

import jax.numpy as jnp
import pytest

import hybridlm
from hybridlm import CheckpointError, ConfigError, GrammarError, MissingExtra, NumericalError
from hybridlm.compiler import AuditError, IsolationError, Lane, LaneContract, Pool, prove_isolation
from hybridlm.compiler.stages import PlacementError, Unplaced
from hybridlm.compiler.xla_audit import Finding, FindingKind
from hybridlm.quantised import DequantiseError
from models import Devices, ShardingError

ERRORS = [
    CheckpointError("dir", ["a fault", "another"], "Do this."),
    ConfigError("a family", ["a fault"]),
    MissingExtra("this", "that", "data"),
    NumericalError("texts[0]", 3),
    GrammarError("request 1", 3, "no such token"),
    AuditError((Finding(FindingKind.POOL_COPY, "fusion", "it copies", "write rows", ("state",)),)),
    PlacementError(Unplaced("args[0]", "x", "float32[8]", "P('data')")),
    DequantiseError("layers.0", "no scale"),
    ShardingError(Devices(model=2), ["heads: 3"], "\nuse less"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_survives_pickling(error: Exception):
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error) and str(other) == str(error)
    assert getattr(other, "faults", None) == getattr(error, "faults", None)


def test_an_error_of_the_proof_survives_without_its_equations() -> None:
    contract = LaneContract((Pool("state"), Lane()), (Pool("state"),))
    with pytest.raises(IsolationError) as raised:
        prove_isolation(lambda state, x: (state + x[::-1],), (jnp.zeros((3, 4)), jnp.ones((3, 4))), contract)
    other = pickle.loads(pickle.dumps(raised.value))
    assert str(other) == str(raised.value) and other.violations == raised.value.violations
    assert other.explain() == str(other.violations[0])


def test_every_error_with_arguments_says_how_it_is_pickled() -> None:
    """A process pool that cannot read an error breaks, or waits forever."""

    def below(cls: type[BaseException]) -> Iterator[type[BaseException]]:
        for subclass in cls.__subclasses__():
            yield subclass
            yield from below(subclass)

    own = {cls for cls in below(Exception) if cls.__module__.startswith(("hybridlm.", "ir_passes.", "models."))}
    attributes = {cls: {name for base in cls.__mro__ if base in own for name in vars(base)} for cls in own}
    assert len(own) > 30
    assert [cls for cls in own if "__init__" in attributes[cls] and "__reduce__" not in attributes[cls]] == []


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda lm: lm, "give its path and options"),
        (lambda lm: lm.session(), "open another one"),
        (lambda lm: lm.prefix([5, 6, 7]), "load_prefix"),
    ],
)
def test_copies_are_refused(
    text_lm: hybridlm.LM, make: Callable[[hybridlm.LM], object], advice: str, duplicate: Callable[[object], object]
) -> None:
    with pytest.raises(TypeError, match=rf"has one holder and cannot be copied; .*{advice}"):
        duplicate(make(text_lm))
