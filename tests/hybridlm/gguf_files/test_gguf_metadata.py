"""Metadata of GGUF files that llama.cpp computes with: implemented values are read, others are refused by name."""

from pathlib import Path
from typing import Any

import pytest
from gguf_checkpoint import OF, write_gguf

from hybridlm.checkpoint import CheckpointDirectory, CheckpointError, open_checkpoint
from hybridlm.gguf_files import GgufHeader, read_architecture, read_header


@pytest.fixture(scope="module", params=OF)
def header(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> GgufHeader:
    return read_header(write_gguf(tmp_path_factory.mktemp("gguf") / "m.gguf", request.param))


def changed(header: GgufHeader, **fields: Any) -> GgufHeader:
    prefix = f"{header.metadata['general.architecture']}."
    added = {prefix + name.replace("__", "."): value for name, value in fields.items()}
    return GgufHeader(header.path, {**header.metadata, **added}, header.tensors)


@pytest.mark.parametrize("fields", [
    {"rope__scaling__factor": 4.0}, {"rope__scale_linear": 4.0}, {"rope__scaling__attn_factor": 2.0},
    {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0}, {"attention__scale": 0.5},
    {"attention__sliding_window": 4}, {"attention__value_length": 4}, {"logit_scale": 0.5}, {"embedding_scale": 2.0},
    {"residual_scale": 2.0}, {"final_logit_softcapping": 30.0}, {"attn_logit_softcapping": 30.0},
    {"expert_weights_scale": 2.5}, {"expert_weights_norm": False}, {"expert_gating_func": 2},
    {"expert_group_count": 4},
], ids=str)  # fmt: skip
def test_other_mathematics_are_refused(header: GgufHeader, fields: dict[str, Any]) -> None:
    """A factor without a type stretches RoPE linearly in llama.cpp (`load_hparams`)."""
    with pytest.raises(CheckpointError) as caught:
        read_architecture(changed(header, **fields))
    (fault,) = caught.value.faults
    assert next(iter(fields)).replace("__", ".") in fault


@pytest.mark.parametrize("fields", [
    {"rope__scaling__factor": 1.0}, {"rope__scale_linear": 0.0}, {"rope__scaling__attn_factor": 1.0},
    {"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, {"attention__scale": 0.0}, {"logit_scale": 0.0},
    {"expert_weights_scale": 1.0}, {"expert_weights_norm": True}, {"expert_gating_func": 1}, {"expert_group_count": 0},
], ids=str)  # fmt: skip
def test_the_implemented_value_may_be_written(header: GgufHeader, fields: dict[str, Any]) -> None:
    assert read_architecture(changed(header, **fields))[0] == read_architecture(header)[0]


def test_part_of_a_head_is_turned_as_the_file_wants_it(header: GgufHeader) -> None:
    other = changed(header, rope__dimension_count=2)
    if "rope_parameters" in (config := read_architecture(header)[0]) and "head_dim" in config:
        assert read_architecture(other)[0]["rope_parameters"]["partial_rotary_factor"] == 2 / config["head_dim"]
        return
    with pytest.raises(CheckpointError, match=r"rope\.dimension_count"):
        read_architecture(other)
    with pytest.raises(CheckpointError, match=r"attention\.key_length"):
        read_architecture(changed(header, attention__key_length=4))


@pytest.mark.parametrize("kind", ["adapter", "imatrix", 3])
def test_other_kinds_of_files_are_named(header: GgufHeader, kind: Any) -> None:
    other = GgufHeader(header.path, {**header.metadata, "general.type": kind}, header.tensors)
    with pytest.raises(CheckpointError, match=f"holds {kind!r}"):
        read_architecture(other)


def test_unused_keys_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf_checkpoint

    def with_more(writer: Any, architecture: str, *arguments: Any) -> None:
        written(writer, architecture, *arguments)
        writer.add_float32(f"{architecture}.made_up", 1.0)
        writer.add_uint32(f"{architecture}.vocab_size", 3)

    path = write_gguf(tmp_path / "m.gguf", "lfm2")
    unchanged = open_checkpoint(path)
    assert isinstance(unchanged, CheckpointDirectory) and unchanged.notes == ()
    written = gguf_checkpoint.write_metadata
    monkeypatch.setattr(gguf_checkpoint, "write_metadata", with_more)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "n.gguf", "lfm2"))
    assert isinstance(checkpoint, CheckpointDirectory)
    assert checkpoint.notes == ("metadata that are not used: lfm2.made_up",)
