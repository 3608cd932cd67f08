"""The error of a forked process."""

import pickle

from ir_passes.jaxpr.refused import ForkedProcessError


def test_the_error_can_be_sent_to_the_parent() -> None:
    error = pickle.loads(pickle.dumps(ForkedProcessError("lm")))
    assert str(error) == str(ForkedProcessError("lm")) and "spawn" in str(error)
