"""Two processes with few pages preempt the same sequences; completions and scores equal solo runs of one process."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from comparison import TOLERANCES
from random_checkpoint import write_random_checkpoint
from random_traffic import FEW, SETTINGS, alone, request_of

import hybridlm
from hybridlm.multiprocess.environment import ADDRESS, COUNT, NUMBER
from hybridlm.multiprocess.launch import free_port

REFERENCE = Path(__file__).parents[2] / "reference"
FOLDERS = "processes", "scenes"
COUNT_OF_REQUESTS = 24


@pytest.mark.long
def test_completions_of_two_processes_in_few_pages_equal_solo_runs(tmp_path: Path) -> None:
    write_random_checkpoint("dense_base", tmp_path, num_hidden_layers=2, full_attention_interval=2)
    settings: dict[str, Any] = SETTINGS | {"cache": None}
    single = hybridlm.load(tmp_path, **settings)
    rng = random.Random(3)
    requests = [request_of(rng, FEW, single.config.vocab_size) for _ in range(COUNT_OF_REQUESTS)]
    expected = alone(single, requests)
    texts = [done.prompt_token_ids + done.token_ids for done in expected]
    (tmp_path / "requests.json").write_text(json.dumps([requests, texts, texts[:3]]))
    environment = os.environ | {
        ADDRESS: f"127.0.0.1:{free_port()}", COUNT: "2",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=1 --xla_backend_optimization_level=0",
        "PYTHONPATH": os.pathsep.join(str(REFERENCE / folder) for folder in FOLDERS),
    }  # fmt: skip
    command = [sys.executable, REFERENCE / "processes/preempt_together.py", tmp_path]
    running = [
        subprocess.Popen(command, env={**environment, NUMBER: str(i)}, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]
    messages = [process.communicate(timeout=900)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], messages
    record = json.loads((tmp_path / "found.json").read_text())
    for preempted, completions in record["traffic"]:
        assert preempted >= 3 and len(completions) == COUNT_OF_REQUESTS
        for index, want in enumerate(expected):
            reason, tokens = completions[str(index)]
            cancelled = reason == "cancelled"
            assert tokens == want.token_ids[: len(tokens)] and (cancelled or reason == want.finish_reason)
            assert cancelled or len(tokens) == len(want.token_ids)
    assert record["ended"] == 8 and record["stats"]["prefix_hits"] > 0
    assert 0 < record["stats"]["accepted_tokens"] < record["stats"]["drafted_tokens"]
    for logprobs, score in zip(record["scores"], single.score(texts[:3]), strict=True):
        np.testing.assert_allclose(logprobs, score.logprobs[1:], rtol=0, atol=TOLERANCES["qwen3_5"])
