"""Memory of planned quantised models: packed parameters, and the table."""

from pathlib import Path
from typing import Any

import pytest
from published import PUBLISHED
from size_table import LARGE, SCHEMES, fit, row, table

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(("name", "scheme", "target", "fits"), [
    ("Qwen3-Next-80B", None, "nvidia-h200", False),
    ("Qwen3-Next-80B", "fp8-block", "nvidia-h200", True),
    ("Qwen3-Next-80B", "nvfp4", "nvidia-h100", True),
])  # fmt: skip
def test_published_models_fit(name: str, scheme: str | None, target: str, fits: bool) -> None:
    assert fit(name, scheme, target).fits == fits
    assert row(name, scheme) in (ROOT / "docs" / "tables" / "packed-weights.md").read_text()


@pytest.mark.long
def test_table() -> None:
    assert set(LARGE) <= set(PUBLISHED) and None in SCHEMES
    page = (ROOT / "docs" / "tables" / "packed-weights.md").read_text()
    assert f"<!-- sizes in memory -->\n{table()}<!-- end of sizes in memory -->\n" in page


@pytest.mark.parametrize(("cache", "fits"), [(None, False), (64 * 2048, True)])
def test_many_short_sequences_of_a_long_context_fit(cache: int | None, fits: bool) -> None:
    """64 lanes of Qwen3.5-35B-A3B with contexts of 262,144 share pages for 2,048 tokens each."""
    sizes: dict[str, Any] = {"lanes": 64, "context": 262_144, "cache": cache, "scratch": 2 * 10**9}
    assert fit("Qwen3.5-35B-A3B", "fp8-block", "nvidia-h100", **sizes).fits == fits
