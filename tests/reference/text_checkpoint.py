"""A tiny checkpoint that reads and writes text: a golden one with a tokenizer of single characters."""

import json
import pathlib
import shutil

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden" / "dense_interval"
END = "<end>"
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"


def write_text_checkpoint(directory: pathlib.Path) -> pathlib.Path:
    """Write it; returns the directory. Token 2 ends a completion; the characters are those of ASCII but "~"."""
    for file in (GOLDEN / "config.json", *GOLDEN.glob("model*")):
        shutil.copy(file, directory)
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
