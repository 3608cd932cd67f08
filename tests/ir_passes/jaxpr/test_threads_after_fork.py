"""A fork before JAX starts is no fault."""

import os

import pytest
from forked import outcomes

from ir_passes.jaxpr import jax_private, refused


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_before_jax_starts_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax_private, "backends_are_initialized", lambda: False)
    assert outcomes({"check": lambda: refused.require_threads("step")}) == {"check": "returned"}
