"""GGUF files against transformers: tensors of the same file, and ids of texts."""

import json
import unicodedata
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from gguf_checkpoint import OF, TEMPLATE, write_gguf, write_tokenizer

from hybridlm.checkpoint import CheckpointDirectory, open_checkpoint
from hybridlm.text import Tokenizer

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0], ids=lambda path: path.name)
@pytest.mark.parametrize("architecture", OF)
def test_tensors(tmp_path: Path, architecture: str, kind: Type) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    write_gguf(tmp_path / "m.gguf", architecture, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings: dict[str, Any] = dict(gguf_file="m.gguf", dtype=torch.float32)
        if kind is not Type.F32:
            settings["quantization_config"] = GgufConfig(dequantize=True)
        model = AutoModelForCausalLM.from_pretrained(tmp_path, **settings)
    ref = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    actual = open_checkpoint(tmp_path / "m.gguf")
    assert isinstance(actual, CheckpointDirectory)
    for name in actual.names:
        result, part = np.asarray(actual.read(name), np.float32), name.split(".experts.")
        if len(part) == 1:
            expected = ref[name]
        else:
            expert, choice = part[1].split(".")[:2]
            fused = ref[f"{part[0]}.experts.{'down_proj' if choice == 'down_proj' else 'gate_up_proj'}"][int(expert)]
            half = len(fused) // 2
            expected = {"down_proj": fused, "gate_proj": fused[:half], "up_proj": fused[half:]}[choice]
        # The last bit of a logarithm.
        np.testing.assert_allclose(result, expected, rtol=0, atol=3e-7 if "A_log" in name else 0, err_msg=name)


TEXTS = """Hello, world! It's 12345 dogs' 3.14 <think>no</think><|end|>  two  spaces
    tabs\tand\r\n\r\nlines   \n we'LL naïve déjà vu 你好，世界 ١٢٣ नमस्ते e\u0301 ½ 🦊🦊 a_b-c//d ...!? \u00a0x"""


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("split", ["qwen2", "qwen35", "lfm2", "llama-bpe"])
def test_ids_of_texts(tmp_path: Path, split: str, begins: bool) -> None:
    import tokenizers
    from tokenizers import models, pre_tokenizers, trainers
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer, get_gguf_tokenizer

    trained = tokenizers.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<pad>", "<begin>", "<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    trained.train_from_iterator([TEXTS] * 3 + ["the world of 123 dogs says hello"] * 5, trainer)
    state = json.loads(trained.to_str())["model"]
    tokens = sorted(state["vocab"], key=state["vocab"].get)
    kinds = [3, 3, 3] + [1] * (len(tokens) - 3) + [4, 4]
    tokens += ["<think>", "</think>"]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "qwen35")
    write_tokenizer(writer, split, tokens, kinds, [" ".join(pair) for pair in state["merges"]], begins)
    _write_architecture(writer, len(tokens))
    tokenizer = Tokenizer.from_dir(tmp_path / "m.gguf")
    assert tokenizer is not None and tokenizer.chat_templates == {"default": TEMPLATE}
    assert tokenizer.special_tokens == {"bos_token": "<begin>", "eos_token": "<|end|>", "pad_token": "<pad>"}
    architecture, description, _ = get_gguf_tokenizer(str(tmp_path / "m.gguf"))
    reference, _ = convert_gguf_tokenizer(architecture, description)
    for text in (TEXTS, *TEXTS.split("\n"), *TEXTS.split(), "", " "):
        composed = unicodedata.normalize("NFC", text)
        # Of Qwen's own tokenizer.json, which composes characters; the one that transformers makes here does not.
        plain = composed if split.startswith("qwen") else text
        expected = reference.encode(plain, add_special_tokens=False).ids
        assert tokenizer.encode(text, add_special_tokens=False) == expected, text
        assert tokenizer.encode(text) == [1] * begins + expected
        assert tokenizer.decode(expected, skip_special_tokens=False) == plain


def _write_architecture(writer: gguf.GGUFWriter, tokens: int) -> None:
    """Write metadata that the tokenizer ignores, and tensors for comparison."""
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_key_length(8)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(4)
    writer.add_rope_dimension_sections([1, 1, 0, 0])
    for add in (writer.add_ssm_conv_kernel, writer.add_ssm_state_size, writer.add_ssm_group_count):
        add(2)
    writer.add_ssm_time_step_rank(2)
    writer.add_ssm_inner_size(4)
    writer.add_tensor("token_embd.weight", np.zeros((tokens, 8), np.float32))
    writer.add_tensor("blk.0.attn_norm.weight", np.zeros(8, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
