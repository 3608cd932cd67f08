"""The commands of docs/scoring.md run in order with the packaged model."""

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from command_line import run_command
from safetensors.numpy import load_file, save_file

import hybridlm

pytestmark = pytest.mark.long


def write_reward_model(directory: Path) -> Path:
    """The small model with a one-label head; the page leaves it to the reader."""
    shutil.copytree(hybridlm.demo.path(), directory)
    tensors = load_file(directory / "model.safetensors")
    hidden = json.loads((directory / "config.json").read_text())["hidden_size"]
    weight = np.random.default_rng(0).normal(size=(1, hidden)).astype(np.float32)
    save_file(tensors | {"score.weight": weight}, directory / "model.safetensors")
    return directory


@pytest.mark.long
def test_the_commands_of_the_page(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (root / "docs" / "scoring.md").read_text()
    part = page.split("## From a file of texts to each of these\n")[1].split("\n## ")[0]
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```$", part, re.MULTILINE | re.DOTALL))
    names = {"$MODEL": str(hybridlm.demo.path()), "$REWARD_MODEL": str(write_reward_model(tmp_path / "rewards"))}
    assert blocks.startswith('MODEL=$(python -c "import hybridlm; print(hybridlm.demo.path())")\n')
    monkeypatch.chdir(tmp_path)
    results: list[str] = []
    for name, content, command in re.findall(
        r"^cat > (\S+) <<'END'\n(.*?)^END$|^(hybridlm [^\n]*)$", blocks, re.M | re.S
    ):
        if name:
            Path(name).write_text(content)
            continue
        words = shlex.split(command)
        arguments = [names.get(word, word) for word in words[1:]]
        local = (
            [] if "quantise" in words else ["--context", "256", "--chunk", "16", "--lanes", "4", "--dtype", "float32"]
        )
        run_command(*arguments, *local)
        results.append(words[1])
    assert results == ["score", "embed", "score", "quantise", "divergence", "classify", "decide", "batch"]
    rows = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in Path().glob("*.jsonl")}
    assert [len(rows[name]) for name in ("scores", "divergence", "rewards", "answers")] == [2] * 4
    assert pq.read_table("vectors.parquet").num_rows == 2
    tops = hybridlm.token_logprobs(pq.read_table("top.parquet"), "top")
    first = tops[0]
    assert len(tops) == 2 and first is not None and {len(first.at(i)[0]) for i in range(1, len(first))} == {8}
    assert rows["scores"][0]["perplexity"] < rows["scores"][1]["perplexity"]
    assert all(0 < row["mean_kl"] < 0.1 and row["agreement"] > 0.9 for row in rows["divergence"])
    first, second = (row["answers"] for row in rows["answers"])
    assert list(first["tone"]) == ["type", "choice", "confidence", "probabilities"]
    assert list(first["tone"]["probabilities"]) == ["calm", "angry"]
    assert second["urgent"]["legend"] == {"0": "can wait", "1": "this week", "2": "today"}
    assert 0 < second["urgent"]["score"] < 2
    messages = [row["response"]["body"]["choices"][0]["text"] for row in rows["forms"]]
    assert messages[0] == " Ada" and re.fullmatch(" [0-9]{2}", messages[1])
