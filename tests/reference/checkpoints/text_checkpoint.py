"""A tiny text checkpoint: two golden layers and a character tokenizer."""

import json
import pathlib
import re
from typing import Any

import tokenizers
from safetensors.numpy import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers

import hybridlm

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden" / "dense_interval"
END = "<end>"
SETTINGS: dict[str, Any] = {"lanes": 3, "context": 256, "dtype": "float32", "chunk": 5}
"""Settings of tests of behaviour, all alike, so that they share compiled steps through the tests' cache."""
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def _write_last_two_layers(directory: pathlib.Path) -> None:
    """Keep a recurrent and an attention layer; steps compile in two thirds the time."""
    config = json.loads((GOLDEN / "config.json").read_text())
    dropped = config["num_hidden_layers"] - 2
    config |= {"num_hidden_layers": 2, "full_attention_interval": 2}
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {}
    for file in GOLDEN.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            layer = re.match(r"(.*layers\.)(\d+)(\..*)", name)
            if layer is None:
                tensors[name] = tensor
            elif int(layer[2]) >= dropped:
                tensors[f"{layer[1]}{int(layer[2]) - dropped}{layer[3]}"] = tensor
    save_file(tensors, directory / "model.safetensors")


def write_text_checkpoint(directory: pathlib.Path) -> pathlib.Path:
    """Write it and return the directory; token 2 ends, characters are ASCII without "~"."""
    _write_last_two_layers(directory)
    # Byte-level: " " is written "Ġ".
    characters = ["Ġ", *map(chr, range(ord("!"), ord("~")))]
    vocabulary = {token: i for i, token in enumerate(["<pad>", "<begin>", END, *characters])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<pad>", "<begin>", END])
    backend.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": END, "chat_template": TEMPLATE}))
    return directory


def load_with_steps(lm: hybridlm.LM, path: pathlib.Path, **settings: Any) -> hybridlm.LM:
    """Load a checkpoint with the compiled steps of a model of the same shapes."""
    loaded = hybridlm.load(path, **{**SETTINGS, **settings})
    loaded.engine.runner.programs = lm.engine.programs
    return loaded
