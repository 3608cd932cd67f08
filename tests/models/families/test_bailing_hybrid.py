"""config.json of Ling 3.0: both spellings, derived layers, and refusals."""

import pytest
from published import LING, read

from hybridlm.families import KimiDeltaAttentionConfig, LatentAttentionConfig, MlpConfig, MoeConfig, Rope, SwigluLimit
from models import family_of


def test_published_model() -> None:
    config = read(LING)
    assert config.unknown_keys == ()
    attention = [i for i, (mixer, _) in enumerate(config.layers) if isinstance(mixer, LatentAttentionConfig)]
    assert attention == [5, 11, 17, 23, 29, 35, 41]
    assert config.layers[5][0] == LatentAttentionConfig(32, 512, 64, 128, 128, Rope(64, 6e6), head_gate=True)
    assert config.layers[0][0] == KimiDeltaAttentionConfig(32, 128, 4, 1e-6, None, -5.0)
    assert [type(forward) for _, forward in config.layers] == [MlpConfig] * 2 + [MoeConfig] * 40
    moe = config.layers[2][1]
    assert isinstance(moe, MoeConfig) and (moe.router.groups, moe.router.groups_kept) == (8, 4)


def test_limits_of_experts() -> None:
    """The last layers have limits, and the head has the one after these; transformers reads none."""
    routed, shared = [0] * 35 + [4.0] * 7, [0] * 34 + [5.0] * 6 + [7.0] * 2
    moes = [forward for _, forward in read(LING).layers if isinstance(forward, MoeConfig)]
    for name, sizes in (("limit", routed), ("shared_limit", shared)):
        expected = [SwigluLimit(size, of_silu=True) if size else None for size in sizes[2:]]
        assert [getattr(moe, name) for moe in moes] == expected
    prediction = family_of(LING).with_head
    assert prediction is not None
    lists = {"expert_swiglu_limit_list": [*routed, 3.0], "share_expert_swiglu_limit_list": shared}
    for fields, limit in ((LING, None), (LING | lists, SwigluLimit(3.0, of_silu=True))):
        head = prediction.read_config(fields).head
        assert head is not None and isinstance(head[1], MoeConfig)
        assert (head[1].limit, head[1].shared_limit) == (limit, None)
    assert read(LING | lists) == read(LING)
    unbounded = read(LING | dict.fromkeys(lists)).layers
    assert {(moe.limit, moe.shared_limit) for _, moe in unbounded[2:] if isinstance(moe, MoeConfig)} == {(None, None)}


def test_as_transformers_saves_it() -> None:
    """There `head_dim` is another size than in published files."""
    saved = LING | {"head_dim": 64, "linear_head_dim": 128, "linear_num_heads": 32, "qk_head_dim": 192}
    assert read(saved).layers == read(LING).layers


def test_layers_of_multi_token_prediction_behind_the_decoder_are_skipped() -> None:
    """Published files number the MTP head's layer 42, after the decoder's 42 layers."""
    names = [f"model.layers.{layer}.mlp.gate.weight" for layer in (4, 41, 42, 43)]
    assert [name for name in names if family_of(LING).skips(name)] == ["model.layers.42.mlp.gate.weight"]
    saved = {name: value for name, value in LING.items() if name != "num_nextn_predict_layers"}
    assert [name for name in names if family_of(saved | {"num_mtp_layers": 2}).skips(name)] == names[2:]
    assert not any(map(family_of(LING | {"num_nextn_predict_layers": 0}).skips, names))
    assert not any(map(family_of(LING | {"num_nextn_predict_layers": "1"}).skips, names))


@pytest.mark.parametrize("rank", [None, 1536])
def test_query_rank(rank: int | None) -> None:
    """Queries come from the token or from its normed, compressed query."""
    family, config = family_of(LING), read(LING | {"q_lora_rank": rank})
    attention = config.layers[5][0]
    assert isinstance(attention, LatentAttentionConfig) and attention.query_rank == rank
    name = "model.layers.5.attention.q"
    shapes = {n: shape for weight in family.weights(config) for n, shape in weight.options[0].shapes.items()}
    queries = {n: shape for n, shape in shapes.items() if n.startswith(name)}
    if rank is None:
        assert queries == {f"{name}_proj.weight": (6144, 2560)}
    else:
        assert queries == {
            f"{name}_a_proj.weight": (rank, 2560),
            f"{name}_a_layernorm.weight": (rank,),
            f"{name}_b_proj.weight": (6144, rank),
        }
    family.abstract(config)


def test_a_fraction_of_the_head_that_is_the_rotated_part() -> None:
    assert read(LING | {"partial_rotary_factor": 0.5}).layers == read(LING).layers


def test_kernel_as_transformers_saves_it() -> None:
    (kernel,) = {
        mixer.kernel
        for mixer, _ in read(LING | {"linear_conv_kernel_dim": 3}).layers
        if isinstance(mixer, KimiDeltaAttentionConfig)
    }
    assert kernel == 3


def test_unbounded_decay() -> None:
    mixer = read(LING | {"kda_safe_gate": False}).layers[0][0]
    assert isinstance(mixer, KimiDeltaAttentionConfig) and mixer.lower_bound is None
