"""config.json of mamba_ssm: published models, defaults, refused fields."""

from typing import Any

import pytest

from hybridlm.families import Mamba1Config, Mamba2Config
from models import ConfigError, DecoderConfig, UnsupportedModel, family_of

MAMBA_2_8B: dict[str, Any] = {
    "d_model": 2560, "n_layer": 64, "vocab_size": 50277, "ssm_cfg": {}, "rms_norm": True, "residual_in_fp32": True,
    "fused_add_norm": True, "pad_vocab_size_multiple": 8,
}  # fmt: skip
MAMBA2_2_7B: dict[str, Any] = MAMBA_2_8B | {
    "d_intermediate": 0, "ssm_cfg": {"layer": "Mamba2"}, "attn_layer_idx": [], "attn_cfg": {},
    "pad_vocab_size_multiple": 16, "tie_embeddings": True,
}  # fmt: skip
ATTENTION = {"causal": True, "d_conv": 4, "head_dim": 128, "num_heads": 30, "rotary_emb_dim": 64}
"""attn_cfg of mamba2attn-2.7b."""


def read(fields: dict[str, Any]) -> DecoderConfig:
    return family_of(fields).read_config(fields)


def test_published_mamba() -> None:
    """64 layers of 5120 channels: 16 states of 4 bytes, 3 inputs of 2 bytes."""
    config = read(MAMBA_2_8B)
    assert set(config.layers) == {(Mamba1Config(5120, 16, 160, 4),)} and config.num_layers == 64
    assert (config.family, config.vocab_size, config.tied, config.eps) == ("mamba", 50280, True, 1e-5)
    assert not config.unknown_keys and config.max_position_embeddings == 1 << 20
    size = family_of(MAMBA_2_8B).abstract(config).state_size("bfloat16")
    assert (size.fixed, size.token) == (64 * 5120 * (16 * 4 + 3 * 2), 0)


def test_published_mamba2() -> None:
    """64 layers: 80 heads of 64 by 128 float32, 3 bfloat16 inputs of 5376 channels."""
    config = read(MAMBA2_2_7B)
    assert set(config.layers) == {(Mamba2Config(80, 64, 1, 128, 4, 1e-5),)} and not config.unknown_keys
    assert (config.family, config.vocab_size, config.tied, config.eps) == ("mamba2", 50288, True, 1e-5)
    size = family_of(MAMBA2_2_7B).abstract(config).state_size("bfloat16")
    assert (size.fixed, size.token) == (64 * (80 * 64 * 128 * 4 + 3 * (5120 + 256) * 2), 0)


def test_every_size_is_read() -> None:
    inner = {"d_state": 12, "d_conv": 3, "expand": 3, "conv_bias": False}
    ((first,), *_) = read(MAMBA_2_8B | {"ssm_cfg": inner | {"dt_rank": 7, "layer": "Mamba1"}}).layers
    assert first == Mamba1Config(7680, 12, 7, 3, conv_bias=False)
    second = {"layer": "Mamba2", "headdim": 96, "ngroups": 4, "dt_limit": [0.1, 2.0], "norm_before_gate": True}
    ((mixer,), *_) = read(MAMBA2_2_7B | {"ssm_cfg": inner | second, "n_layer": 2, "tie_embeddings": False}).layers
    expected = Mamba2Config(80, 96, 4, 12, 3, 1e-5, conv_bias=False, step_limits=(0.1, 2.0), norm="normed")
    assert mixer == expected


def inner(**fields: Any) -> dict[str, Any]:
    return {"ssm_cfg": {"layer": "Mamba2", **fields}}


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"d_intermediate": 4096}, "d_intermediate"),
        ({"attn_layer_idx": [9, 18], "attn_cfg": ATTENTION}, "attn_layer_idx"), ({"rms_norm": False}, "rms_norm"),
        ({"n_layer": None}, "n_layer"), ({"ssm_cfg": 3}, "ssm_cfg"), (inner(layer="Mamba3"), "ssm_cfg.layer"),
        (inner(bias=True), "ssm_cfg.bias"), (inner(rmsnorm=False), "ssm_cfg.rmsnorm"),
        (inner(D_has_hdim=True), "ssm_cfg.D_has_hdim"), (inner(d_ssm=2560), "ssm_cfg.d_ssm"),
        (inner(headdim=48), "ssm_cfg.headdim"), (inner(ngroups=3), "ssm_cfg.ngroups"),
        (inner(dt_limit=[1.0, 0.0]), "ssm_cfg.dt_limit"),
    ],
)  # fmt: skip
def test_faults_are_named(fields: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(MAMBA2_2_7B | fields)
    assert [line.partition(":")[0] for line in raised.value.faults] == [fault]


def test_unknown_fields_are_named() -> None:
    config = read(MAMBA2_2_7B | {"scale": 2, "ssm_cfg": {"layer": "Mamba2", "chunk_size": 64, "rope": True}})
    assert config.unknown_keys == ("scale", "ssm_cfg.rope")


def test_other_files_without_a_model_type_are_refused() -> None:
    """A class of another model, or a file without the three sizes."""
    with pytest.raises(UnsupportedModel, match="'HyenaForCausalLM'"):
        family_of(MAMBA_2_8B | {"architectures": ["HyenaForCausalLM"]})
    for missing in ("d_model", "n_layer", "ssm_cfg"):
        with pytest.raises(UnsupportedModel, match="no model_type"):
            family_of({key: value for key, value in MAMBA_2_8B.items() if key != missing})
