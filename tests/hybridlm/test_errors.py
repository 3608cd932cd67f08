"""Errors pass between processes, as from Ray's actors."""

import pickle

import pytest

from hybridlm import CheckpointError, ConfigError, GrammarError, MissingExtra, NumericalError

ERRORS = [
    CheckpointError("dir", ["a fault", "another"], "Do this."),
    ConfigError("a family", ["a fault"]),
    MissingExtra("this", "that", "data"),
    NumericalError("texts[0]", 3),
    GrammarError("request 1", 3, "no such token"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_survives_pickling(error: Exception):
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and str(copy) == str(error)
    assert getattr(copy, "faults", None) == getattr(error, "faults", None)
