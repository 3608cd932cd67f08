"""Options of `load`: signature, checks, command line, and texts for the comparison of processes."""

import inspect
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

import hybridlm
from hybridlm import FileOptions
from hybridlm.engine.config import EngineConfig
from models import family_of


class Repeats:
    """A custom drafter."""

    def propose(self, token_ids: Any, k: int) -> list[int]:
        return [token_ids[-1]] * k


def test_load_has_the_options_in_their_order_with_their_defaults() -> None:
    _, *parameters = inspect.signature(hybridlm.load).parameters.values()
    assert [(parameter.name, parameter.default) for parameter in parameters] == [
        (option.name, option.default) for option in fields(EngineConfig)
    ]
    assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize(("options", "error", "field"), [
    ({"lanes": None}, ValueError, "lanes: "),
    ({"lanes": 0, "chunk": 5}, ValueError, "lanes: expected a whole number of at least 1, got 0"),
    ({"lanes": 2.0}, ValueError, "lanes: "), ({"lanes": True}, ValueError, "lanes: "),
    ({"context": "16"}, ValueError, "context: "), ({"dtype": np.float32}, ValueError, "dtype: "),
    ({"context": 0, "dtype": "f32"}, ValueError, "context: .*; dtype: "),
    ({"context": 8, "chunk": 9}, ValueError, "chunk: "), ({"certify": True}, ValueError, "certify: "),
    ({"compilation_cache": True}, ValueError, "compilation_cache: "),
    ({"compilation_cache": ""}, ValueError, "compilation_cache: "), ({"speculate": 4}, TypeError, "speculate: "),
    ({"context": 8, "draft_tokens": 8}, ValueError, "draft_tokens: "),
    ({"draft_tokens": 0}, ValueError, "draft_tokens: "), ({"draft_tokens": True}, ValueError, "draft_tokens: "),
    ({"draft_tokens": 2.0}, ValueError, "draft_tokens: "), ({"prefix_cache": "much"}, ValueError, "prefix_cache: "),
    ({"kernels": "on"}, ValueError, "kernels: "), ({"dequantise": "int8"}, ValueError, "dequantise: "),
    ({"dequantise": "float16", "dtype": "float32"}, ValueError, "dequantise: "),
])  # fmt: skip
def test_wrong_options_are_refused_without_a_model(options: dict[str, Any], error: type[Exception], field: str) -> None:
    with pytest.raises(error, match=f"^{field}"):
        EngineConfig(**options)
    with pytest.raises(error, match=f"^{field}"):
        hybridlm.load("no such model", **options)


def test_numbers_of_numpy_are_those_of_python() -> None:
    sizes: dict[str, Any] = {
        "lanes": 2, "context": 16, "chunk": 8, "cache": 512, "draft_tokens": 3, "prefix_cache": 4096,
    }  # fmt: skip
    numbers: dict[str, Any] = {name: np.int64(size) for name, size in sizes.items()}
    config = EngineConfig(**numbers)
    assert config == EngineConfig(**sizes) and config.texts() == EngineConfig(**sizes).texts()
    assert all(type(getattr(config, name)) is int for name in sizes)
    windows: dict[str, Any] = {"window": np.int64(5), "sort_window": np.int64(0)}
    assert repr(FileOptions(**windows)) == repr(FileOptions(window=5, sort_window=0))
    questions: dict[str, Any] = {"top": np.int64(2), "temperature": np.float32(0.5), "entropy": np.True_}
    expected = hybridlm.DistributionSettings(top=2, temperature=0.5, entropy=True)
    assert repr(hybridlm.DistributionSettings(**questions)) == repr(expected)
    axes: dict[str, Any] = {"data": np.int64(1)}
    assert hybridlm.mesh(**axes).shape == hybridlm.mesh(data=1).shape


CONFIG: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 64,
    "num_attention_heads": 2, "num_key_value_heads": 1, "layer_types": ["full_attention"],
    "max_position_embeddings": 100,
}  # fmt: skip


def test_resolved_options_have_the_values_of_the_model() -> None:
    model, placement = family_of(CONFIG).read_config(CONFIG), EngineConfig().place()
    settings = EngineConfig(prefix_cache="1kB").resolved(model, "float16", placement)
    assert (settings.context, settings.chunk, settings.dtype) == (100, 100, "float16")
    assert settings.prefix_cache == (1000, 1000)
    assert EngineConfig(context=20).resolved(model, "float16", placement, chunk=8).chunk == 8
    for options in (EngineConfig(context=101), EngineConfig(chunk=101), EngineConfig(draft_tokens=100)):
        with pytest.raises(ValueError, match="^(context|chunk|draft_tokens): "):
            options.resolved(model, "float16", placement)


def test_texts_differ_where_options_do_and_not_between_processes() -> None:
    options = EngineConfig()
    changes: dict[str, Any] = {"lanes": 4, "kernels": "off", "certify": "off", "dequantise": "float16"}
    for name, value in changes.items():
        assert replace(options, **{name: value}).texts() == options.texts() | {name: str(value)}
    first, second = (replace(options, speculate=Repeats()) for _ in range(2))
    assert first.texts() == second.texts() != options.texts()
    assert options.texts().keys() - options.texts("progress").keys() == {"progress"}
