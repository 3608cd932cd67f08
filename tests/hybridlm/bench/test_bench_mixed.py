"""The mixed batch: its requests, fake peers, and one run of the command."""

import json
import sys
from pathlib import Path

import pytest
from command_line import run_command

import hybridlm
from hybridlm import demo
from hybridlm.bench.llama_cpp import LlamaServerSide
from hybridlm.bench.mixed import OwnMixedSide, mixed_requests
from hybridlm.bench.sides import SideFailed
from hybridlm.bench.vllm_side import VllmSide

SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def do_GET(self):
        self.answer({"status": "ok"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert body["ignore_eos"] and not body["cache_prompt"] and len(body["prompt"])
        self.answer({"tokens_predicted": min(body["n_predict"], LIMIT)})

    def log_message(self, *args):
        pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""
VLLM = """
import json, sys
print("INFO loading")
print("{}", flush=True)
for line in sys.stdin:
    batch = json.loads(line)
    assert batch["settings"]["temperature"] == EXPECTED
    print("INFO running")
    print(json.dumps({"seconds": 1.5, "tokens": sum(batch["max_tokens"])}), flush=True)
"""


def program(path: Path, source: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{source}")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("context", [64, 300, 2048, 100_000])
def test_requests_fit_the_context_and_differ(context: int) -> None:
    requests = mixed_requests(64, 1000, context)
    assert len({len(request.prompt) for request in requests}) > 10
    for request in requests:
        assert 16 <= len(request.prompt) and 8 <= request.max_tokens <= 400
        assert len(request.prompt) + request.max_tokens <= context
    assert requests == mixed_requests(64, 1000, context)


def test_contexts_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="context"):
        mixed_requests(1, 1000, 24)


@pytest.mark.parametrize("limit, failed", [(1000, False), (3, True)])
def test_llama_server_generates_every_token(tmp_path: Path, limit: int, failed: bool) -> None:
    server = program(tmp_path / "llama-server", SERVER.replace("LIMIT", str(limit)))
    side = LlamaServerSide(server, tmp_path / "131M-q8_0.gguf", 2, 300)
    try:
        assert side.name == "llama-server q8_0"
        if failed:
            with pytest.raises(SideFailed):
                side.run(mixed_requests(3, 100, 300), sampled=False)
        else:
            assert side.run(mixed_requests(3, 100, 300), sampled=True) > 0
    finally:
        side.close()


def test_peers_that_end_are_failures_with_their_command(tmp_path: Path) -> None:
    ends = program(tmp_path / "ends", "import sys; print('no model', file=sys.stderr); raise SystemExit(3)")
    for start in (
        lambda: LlamaServerSide(ends, tmp_path / "a.gguf", 2, 300),
        lambda: VllmSide(ends, tmp_path, "bfloat16", 2, 300),
    ):
        with pytest.raises(SideFailed, match=r"status 3.*ends.*no model"):
            start()


def test_vllm_answers_between_lines_of_its_log(tmp_path: Path) -> None:
    side = VllmSide(program(tmp_path / "python", VLLM.replace("EXPECTED", "0.6")), tmp_path, "bfloat16", 2, 300)
    assert [side.run(mixed_requests(3, 100, 300), sampled=True) for _ in range(2)] == [1.5, 1.5]
    side.close()


@pytest.mark.slow
def test_shares_of_real_tokens_match_the_run() -> None:
    lm = hybridlm.load(demo.path(), lanes=2, context=64, certify="off", progress=False)
    side = OwnMixedSide(lm, "hybridlm")
    side.run(mixed_requests(3, lm.config.vocab_size, 64), sampled=False)
    assert side.prefill is not None and side.decode is not None
    # Two of two lanes decode until one sequence is left.
    assert 0 < side.prefill <= 1 and 0.5 < side.decode <= 1


@pytest.mark.slow
def test_command_compares_engines_in_turns(tmp_path: Path) -> None:
    figures, server = tmp_path / "figures.json", program(tmp_path / "llama-server", SERVER.replace("LIMIT", "1000"))
    ends = program(tmp_path / "ends", "raise SystemExit(3)")
    options = ["--mixed", "--requests", "2", "--lanes", "2", "--rounds", "2", "--context", "64", "--json", str(figures)]
    peers = ["--against", "llama-server", "--llama-server", str(server), "--gguf", str(tmp_path / "demo-f32.gguf")]
    peers += ["--against", "vllm", "--vllm-python", str(ends)]
    run_command("bench", "--model", demo.path(), *options, *peers, code=3)  # vllm is left out
    measured = json.loads(figures.read_text())
    assert {name: len(rounds) for name, rounds in measured["seconds"].items()} == {"hybridlm": 2, "llama-server f32": 2}
    assert set(measured["shares"]["hybridlm"]) == {"prefill", "decode"}
    assert measured["late"]["hybridlm"]["seconds"] > 0 and measured["late"]["hybridlm"]["steps"] >= 1


@pytest.mark.parametrize(("options", "refused"), [
    (["--mixed", "--against", "llama.cpp"], "--against"), (["--mixed", "--against", "llama-server"], "--against"),
    (["--mixed", "--against", "vllm"], "--against"), (["--against", "vllm"], "--against"),
    (["--mixed", "--profile"], "--profile"), (["--mixed", "--plot", "plot.svg"], "--plot"),
    (["--mixed", "--prefill", "8"], "--prefill"), (["--mixed", "--start"], "--mixed"),
    (["--start", "--profile"], "--profile"),
    (["--start", "--tokens", "5", "--beside", "x"], "--beside, --tokens: not measured with --start"),
    (["--start", "--lanes", "1", "--lanes", "2"], "--lanes: expected one number with --start, got 1, 2"),
    (["--mixed", "--prompt", "5", "--llama-bench", "x"], "--llama-bench, --prompt: not measured with --mixed"),
    (["--mixed", "--gguf", "x"], "--gguf: expected --against llama-server or llama.cpp with it"),
    (["--requests", "5", "--sampled"], "--requests, --sampled: only with --mixed"),
    (["--llama-bench", "x"], "--llama-bench: expected --against llama.cpp with it"),
])  # fmt: skip
def test_options_that_do_not_go_together_are_refused(options: list[str], refused: str) -> None:
    assert refused in run_command("bench", "--model", demo.path(), *options, code=1).output
