"""The command line: output, exit status, and errors as one message."""

import dataclasses
import fnmatch
import inspect
import io
import json
import math
import re
import resource
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from command_line import load_in_commands, run_command
from paged_shapes import compiled_steps
from text_checkpoint import SETTINGS

import hybridlm
from hybridlm import Event, demo
from hybridlm.cli import demo as cli_demo
from hybridlm.cli import generate, options
from hybridlm.cli.main import main
from hybridlm.demo import story
from hybridlm.text import Tokenizer


@pytest.fixture(scope="module")
def loaded(text_path: Path) -> hybridlm.LM:
    return hybridlm.load(text_path, **SETTINGS)


@pytest.fixture
def lm(loaded: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> hybridlm.LM:
    """The model that all commands load, so that its steps are compiled once."""
    load_in_commands(monkeypatch, loaded)
    return loaded


def printed(*arguments: str | Path, stdin: str | bytes | None = None) -> str:
    return run_command(*arguments, stdin=stdin).stdout


def refused(*arguments: str | Path, stdin: str | bytes | None = None, status: int = 1) -> str:
    """The message of a command that fails; nothing on standard output, no traceback."""
    result = run_command(*arguments, stdin=stdin, code=status)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def rows(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


GENERATE = ("generate", "--model", "tiny", "--max-tokens", "6")


def test_options_of_generate_are_the_fields_of_sampling_params():
    declared = inspect.signature(generate.generate).parameters
    option_names = {"stop_token_ids": "stop_id", "bad_words": "bad_word", "allowed_token_ids": "allowed_token_id"}
    option_names["structured_outputs"] = "json_schema"
    for field in dataclasses.fields(hybridlm.SamplingParams):
        name = option_names.get(field.name, field.name)
        assert field.name in option_names or declared[name].default == field.default
        (option,) = declared[name].annotation.__metadata__
        assert len(option.help) > 10, field.name


@pytest.mark.slow
def test_several_prompts(lm: hybridlm.LM):
    prompts = ["Ada has a kite", "B", "Ben has"]
    texts = [completion.text for completion in lm.generate(prompts, max_tokens=6)]
    expected = "".join(f"==> prompt {i} <==\n{text}\n" for i, text in enumerate(texts, 1))
    assert printed(*GENERATE, *prompts) == expected
    assert printed(*GENERATE, stdin="\n".join(prompts)) == expected
    assert printed(*GENERATE, stdin="\r\n".join(prompts) + "\r\n\n") == expected


@pytest.mark.slow
def test_a_drawn_seed_is_shown_and_repeats_the_run(lm: hybridlm.LM):
    sampled = (*GENERATE, "--temperature", "1.5", "--max-tokens", "9", "--ignore-eos", "Ada")
    first = run_command(*sampled)
    seed = re.search(r"^seed: (\d+)", first.stderr, re.MULTILINE)
    assert seed is not None and printed(*sampled, "--seed", seed[1]) == first.stdout
    (row,) = rows(printed(*sampled, "--json"))
    (repeated,) = rows(printed(*sampled, "--json", "--seed", row["seed"]))
    assert repeated == row and row["seed"] != int(seed[1])
    assert "seed:" not in run_command(*GENERATE, "Ada", "--max-tokens", "1").stderr


def test_json(lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Read a file with prompts in every form; write all fields in order of input."""
    lines = [{"id": "a", "prompt": "Ada"}, {"text": "Ben", "answer": "unused"}, {"id": 3, "token_ids": [36, 71]}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    received = []

    def events(self: hybridlm.LM, prompts: Any, params: hybridlm.SamplingParams, **options: Any) -> Iterator[Event]:
        received.extend(prompts)
        for index in (4, 1, 0, 5, 3, 2):
            logprobs, tops = [-0.5, -math.inf], [{7: -0.5, 3: -1.5}, {3: -0.1, 7: -math.inf}]
            yield Event(index, 7, "x", None)
            completion = hybridlm.Completion(f"{index}é", [7, 8], logprobs, tops, "stop", [index])
            yield Event(index, 8, "y", dataclasses.replace(completion, prompt_logprobs=[None, {7: -0.5}]))

    monkeypatch.setattr(hybridlm.LM, "stream", events)
    output = printed(*GENERATE, "--n", "2", "--logprobs", "2", "--json", "--file", tmp_path / "p.jsonl")
    assert received == ["Ada", "Ben", [36, 71]] and output.isascii()
    assert "with --json only" in refused(*GENERATE, "Ada", "--prompt-logprobs", "1", status=2)
    assert rows(output) == [
        {
            "prompt": index // 2, "completion": index % 2, "id": ["a", None, 3][index // 2],
            "text": f"{index}é",
            "reasoning": None, "answer": None, "finish_reason": "stop", "token_ids": [7, 8],
            "prompt_token_ids": [index], "seed": None, "logprobs": [-0.5, None],
            "top_logprobs": [
                [{"token_id": 7, "logprob": -0.5}, {"token_id": 3, "logprob": -1.5}],
                [{"token_id": 3, "logprob": -0.1}, {"token_id": 7, "logprob": None}],
            ],
            "prompt_logprobs": [None, [{"token_id": 7, "logprob": -0.5}]],
        }
        for index in range(6)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "form"),
    [(["--regex", "a+"], {"regex": "a+"}), (["--json-schema", "schema.json"], {"json": '{"const": 3}'})],
    ids=str,
)
def test_forms_reach_generate(
    lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], form: dict[str, Any]
):
    received: list[Any] = []
    monkeypatch.setattr(hybridlm.LM, "stream", lambda self, prompts, params, n: received.append(params) or iter(()))
    (tmp_path / "schema.json").write_text('{"const": 3}')
    monkeypatch.chdir(tmp_path)
    printed("generate", "-m", "x", *arguments, "hi")
    assert received[0].structured_outputs == form
    assert "give one of them" in refused("generate", "-m", "x", "--regex", "a", "--choice", "b", "hi", status=2)


def test_settings_reach_generate(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    received: dict[str, Any] = {}

    def events(self: hybridlm.LM, prompts: Any, params: hybridlm.SamplingParams, n: int) -> Iterator[Event]:
        received.update(dataclasses.asdict(params), prompts=prompts, n=n)
        return iter(())

    monkeypatch.setattr(hybridlm.LM, "stream", events)
    options = "--repetition-penalty 1.1 --presence-penalty 1.5 --frequency-penalty 0.5 --min-tokens 2 --bad-word x"
    options += " --keep-special-tokens --keep-tool-markers --thinking-budget 9 --think-end </t> --logit-bias"
    arguments = options + ' {"3":1.5} '
    arguments += "--max-tokens 7 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --seed 11 --n 4 --ignore-eos"
    printed(
        "generate",
        "-m",
        "x",
        *arguments.split(),
        "--stop",
        "a b",
        "--stop",
        "c",
        "--stop-id",
        "9",
        "--choice",
        "a b",
        "--choice",
        "c",
        "--",
        "-x",
    )
    assert received == {
        "prompts": ["-x"], "max_tokens": 7, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "seed": 11,
        "stop": ["a b", "c", 9], "ignore_eos": True, "logprobs": None, "prompt_logprobs": None, "n": 4,
        "stop_token_ids": (), "repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5,
        "logit_bias": {"3": 1.5}, "min_tokens": 2, "bad_words": ["x"], "allowed_token_ids": None,
        "skip_special_tokens": False, "keep_tool_markers": True, "thinking_budget": 9, "think_end": "</t>",
        "structured_outputs": {"choice": ["a b", "c"]},
    }  # fmt: skip


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run commands in a folder with an input."""
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [("generate", "A"), ("score", "in.jsonl", "out.jsonl")])
def test_settings_reach_load(command: tuple[str, ...], in_folder: Path, monkeypatch: pytest.MonkeyPatch):
    def load(model: str, **settings: Any) -> hybridlm.LM:
        raise ValueError(f"{model} {settings}")

    monkeypatch.setattr(options, "load", load)
    flags = "--lanes 3 --context 40 --cache 1GB --dtype float32 --chunk 5"
    expected: dict[str, Any] = {"lanes": 3, "context": 40, "cache": "1GB", "dtype": "float32", "chunk": 5}
    if command[0] == "generate":
        flags += " --speculate ngram --draft-tokens 3 --prefix-cache 512MB"
        expected |= {"speculate": "ngram", "draft_tokens": 3, "prefix_cache": "512MB"}
    expected |= {"mesh": hybridlm.mesh(data=2), "kernels": "off", "adapter": "DIR"}
    message = refused(*command, "-m", "M", *flags.split(), "--mesh", "data=2", "--kernels", "off", "--adapter", "DIR")
    assert message == f"error: M {expected}\n"


@pytest.mark.parametrize(
    "command", [("generate",), ("score", "no.jsonl", "no/out.jsonl"), ("embed", "no.jsonl", "out.jsonl")]
)
def test_only_the_first_process_has_the_input(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch):
    """Others have no standard input, and may not see the files."""

    def load(model: str, **settings: Any) -> Any:
        return types.SimpleNamespace(run_worker=lambda: True)

    monkeypatch.setattr(options, "load", load)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    assert printed(*command, "-m", "M", stdin="") == ""
    monkeypatch.setattr(jax, "process_index", lambda: 0)
    assert "no" in refused(*command, "-m", "M", stdin="")


TWO_FILES = ("in.jsonl", "out.jsonl")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("generate", "A", "--top-p", "2", "--max-tokens", "0"), "max_tokens: expected"),
        (("generate", "A", "--stop", ""), "stop: expected strings that are not empty"),
        (("generate", "A", "--n", "0"), "n: expected"),
        (("generate", "A", "--draft-tokens", "2"), "--draft-tokens: expected --speculate"),
        (("inspect", "--weights", "--lanes", "3", "--no-measure"), "--no-measure, --lanes: not with --weights"),
        (("inspect", "--no-measure"), "--no-measure: expected --html"),
        (("generate", "A", "--logprobs", "1001", "--json"), "logprobs: expected 0..1000"),
        (("score", "no.jsonl", "out.jsonl"), "no.jsonl: No such file"),
        (
            ("score", "in.jsonl", "out.tsv"),
            "out.tsv: expected a name that ends in .jsonl, .jsonl.gz, .csv, .csv.gz or .parquet",
        ),
        (("score", "in.tsv", "out.jsonl"), "in.tsv: expected a name that ends in .jsonl, .jsonl.gz, .csv, .csv.gz, "),
        (("score", "in.jsonl", "no/out.jsonl"), "no: no such directory"),
        (("score", "in.jsonl", "in.jsonl"), "is also the input"),
        (("score", *TWO_FILES, "--shard", "2/2"), "shard: expected"),
        (("score", *TWO_FILES, "--window", "0"), "window: expected"),
        (("score", *TWO_FILES, "--interventions", "[{}]"), "interventions[0]"),
        (("score", *TWO_FILES, "--interventions", "[{]"), "interventions: expected a field's name or a JSON list"),
        (("embed", *TWO_FILES, "--pooling", "max"), "pooling: expected"),
        (("embed", "no.jsonl", "out.jsonl"), "no.jsonl: No such file"),
        (("classify", *TWO_FILES, "--sort-window", "-1"), "sort_window: expected"),
        (("divergence", "--other", "x", "no.jsonl", "out.jsonl"), "no.jsonl: No such file"),
        (("decide", "in.txt", "out.jsonl"), "in.txt: expected a name that ends in .jsonl or .jsonl.gz"),
        (("batch", "-i", "no.jsonl", "-o", "out.jsonl"), "no.jsonl: No such file"),
        (("bench", "--json", "no/figures.json"), "no: no such directory"),
        (("bench", "--start", "--plot", "no/figures.svg"), "no: no such directory"),
        (("batch", "-i", ".", "-o", "out.jsonl"), ".: Is a directory"),
        (("batch", "-i", "in.jsonl", "-o", "no/out.jsonl"), "no: no such directory"),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, tuple) else "",
)
def test_no_model_is_loaded_for_a_wrong_argument(
    arguments: tuple[str, ...], fault: str, in_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def load(*arguments: object, **settings: object) -> hybridlm.LM:
        raise AssertionError("a large model takes minutes to load")

    monkeypatch.setattr(options, "load", load)
    assert fault in refused(arguments[0], "-m", "M", *arguments[1:])


def test_system_message_of_a_chat(lm: hybridlm.LM):
    row = rows(printed(*GENERATE, "--chat", "--system", "Be brief.", "--json", "Hi!"))[0]
    assert lm.tokenizer is not None
    assert row["prompt_token_ids"] == lm.tokenizer.encode("<system>Be brief.<user>Hi!", add_special_tokens=False)
    assert "needs --chat" in refused(*GENERATE, "--system", "Be brief.", "Hi!", status=2)
    assert "--think-end: expected" in refused(*GENERATE, "--think-end", "x", "Hi!", status=2)
    for option in (["--disable-thinking"], ["--chat-template-kwargs", "{}"]):
        assert "needs --chat" in refused("eval", "-m", "x", "-t", "x", *option, status=2)


def test_tools_of_a_chat(lm: hybridlm.LM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tools, chat = tmp_path / "tools.json", (*GENERATE, "--chat", "--tools", tmp_path / "tools.json")
    tools.write_text('[{"type": "function", "function": {"name": "look"}}]')
    assert "tools: the chat template does not read this" in refused(*chat, "Hi!")
    assert lm.tokenizer is not None
    template = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
    shows = Tokenizer(lm.tokenizer._backend, lm.tokenizer.special_tokens, {"default": template})
    monkeypatch.setattr(lm, "tokenizer", shows)
    row = rows(printed(*chat, "--json", "Hi!"))[0]
    assert row["prompt_token_ids"] == shows.encode("lookHi!", add_special_tokens=False)
    assert "needs --chat" in refused(*GENERATE, "--tools", tools, "Hi!", status=2)
    for wrong, message in {
        "{}": "expected a list of tools",
        "[1": "--tools: ",
        '[{"type": "code"}]': "tools[0]: ",
    }.items():
        tools.write_text(wrong)
        assert message in refused(*chat, "Hi!")


@pytest.fixture
def without_tokenizer(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> hybridlm.LM:
    monkeypatch.setattr(lm, "tokenizer", None)
    return lm


def test_token_ids_only(without_tokenizer: hybridlm.LM, tmp_path: Path):
    (tmp_path / "p.jsonl").write_text('{"token_ids": [5, 6, 7]}\n')
    ids = without_tokenizer.generate([[5, 6, 7]], max_tokens=6)[0].token_ids
    assert printed(*GENERATE, "--file", tmp_path / "p.jsonl") == " ".join(map(str, ids)) + "\n"
    assert "no tokenizer.json" in refused(*GENERATE, "Ada")
    assert "no tokenizer.json" in refused(*GENERATE, "--chat", "Ada")


@pytest.mark.parametrize(("arguments", "stdin", "message"), [
    (["Ada", ""], None, "error: prompts[1]: is empty; at least one token is needed\n"),
    (["x" * 257], None, "prompts[0]: has 257 tokens, the context holds 256"),
    (["--file", "no.txt"], None, "error: no.txt: No such file or directory\n"),
    ([], "", "error: standard input: has no prompts\n"),
    ([], b"a\n\nb\n\xff\n", "error: standard input: 2 bad lines\n  line 2: expected a prompt, the line is blank\n"),
    ([], b"a\n\xff\n", "error: standard input: 1 bad line\n  line 2: expected UTF-8: "),
])  # fmt: skip
def test_input_errors(lm: hybridlm.LM, arguments: list[str], stdin: str | bytes | None, message: str):
    assert message in refused(*GENERATE, *arguments, stdin=stdin)


def test_bad_lines_of_prompts(lm: hybridlm.LM, tmp_path: Path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n{"prompt": 1}\n["a"]\n{"prompt": "a", "text": "a"}\n')
    message = refused(*GENERATE, "--file", tmp_path / "p.jsonl")
    assert "3 bad lines" in message and "line 2: prompt: expected a string" in message
    assert "line 3: expected a JSON object" in message and "line 4: expected exactly one" in message


@pytest.mark.parametrize("name", ["p.csv", "p.TSV", "p.json", "p.parquet", "p.jsonl.gz", "p.txt.zst"])
def test_lines_of_a_table_or_an_archive_are_no_prompts(lm: hybridlm.LM, tmp_path: Path, name: str):
    (tmp_path / name).write_text("id,text\n1,a\n")
    assert f"{name}: expected lines of text, or a .jsonl file" in refused(*GENERATE, "--file", tmp_path / name)


def test_not_every_line_of_a_file_of_another_kind_is_listed(lm: hybridlm.LM):
    message = refused(*GENERATE, stdin=b"\xff\n" * 2000)
    assert "2,000 bad lines" in message and "and 1,980 more" in message and len(message.splitlines()) == 22


@pytest.mark.parametrize(
    "arguments", [["--logprobs", "1", "A"], ["--file", "a.txt", "A"], ["--max-tokens", "many", "A"], ["--what"]]
)
def test_usage_errors(lm: hybridlm.LM, arguments: list[str]):
    assert "Usage: hybridlm generate" in refused(*GENERATE, *arguments, status=2)


def test_checkpoint_errors(text_path: Path, tmp_path: Path, in_folder: Path):
    for file in text_path.glob("model*"):
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert "gpt2" in refused("generate", "--model", tmp_path, "A")
    assert "expected config.json" in refused("score", "--model", tmp_path.parent, "in.jsonl", "out.jsonl")
    with pytest.raises(ValueError):
        run_command("generate", "--model", tmp_path, "--debug", "A")


@pytest.mark.filterwarnings("always::UserWarning")
def test_warnings_are_one_line(text_path: Path, tmp_path: Path):
    """A warning of a load reaches standard error without the line of our source."""
    for file in text_path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((text_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"unheard_of": 1}))
    result = run_command("generate", "--model", tmp_path, "--context", "16", "x" * 17, code=1)
    warning, error = result.stderr.splitlines()
    assert warning.startswith(f"warning: {tmp_path}: config.json has fields") and warning.endswith("unheard_of")
    assert error.startswith("error: prompts[0]: has 17 tokens")


def interrupted(count: int) -> Callable[..., Iterator[Event]]:
    def events(self: hybridlm.LM, prompts: Any, params: Any, n: int) -> Iterator[Event]:
        yield from (Event(0, i, f"word{i} ", None) for i in range(count))
        raise KeyboardInterrupt

    return events


def test_interrupt_keeps_the_text(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hybridlm.LM, "stream", interrupted(3))
    result = run_command(*GENERATE, "A", code=130)
    assert (result.stdout, result.stderr) == ("word0 word1 word2 \n", "")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), hybridlm.NumericalError("request 0", 5)], ids=["ctrl-c", "nan"])
@pytest.mark.parametrize("form", [(), ("--json",)], ids=["text", "json"])
def test_what_is_finished_is_printed_before_the_end(
    lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch, error: BaseException, form: tuple[str, ...]
):
    """Completions that wait for an earlier prompt are not lost with it."""

    def events(self: hybridlm.LM, prompts: Any, params: Any, n: int) -> Iterator[Event]:
        for index in (1, 3):
            yield Event(index, 7, "x", hybridlm.Completion(f"text {index}", [7], None, None, "stop", [index]))
        raise error

    monkeypatch.setattr(hybridlm.LM, "stream", events)
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    result = run_command(*GENERATE, *form, "A", "B", "C", "D", code=code)
    assert "2 of 4 completions were finished and are printed" in result.stderr
    if form:
        assert [(row["prompt"], row["text"]) for row in rows(result.stdout)] == [(1, "text 1"), (3, "text 3")]
    else:
        assert result.stdout == "==> prompt 2 <==\ntext 1\n==> prompt 4 <==\ntext 3\n"


def test_completions_that_the_context_cuts_are_named(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    ends: list[tuple[Any, int]] = []

    def events(self: hybridlm.LM, prompts: Any, params: Any, n: int) -> Iterator[Event]:
        for index, (reason, tokens) in enumerate(ends):
            yield Event(index, 7, "x", hybridlm.Completion("x", [7] * tokens, None, None, reason, [1]))

    monkeypatch.setattr(hybridlm.LM, "stream", events)
    for values, message in (
        ([("length", 6), ("stop", 2)], ""),
        ([("length", 6), ("length", 5)], "warning: prompt 2 ends before --max-tokens: the context of 256 tokens"),
        ([("length", 0), ("length", 5)], "warning: 2 completions, the first of prompt 1, end before --max-tokens"),
    ):
        ends[:] = values
        result = run_command(*GENERATE, "A", "B")
        assert result.stderr.startswith(message) and bool(result.stderr) == bool(message)


ENDLESS = """
import itertools, signal, time
# Where the tests run in the background of a shell, interrupts are ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
from hybridlm import LM; from hybridlm.cli import options as _cli_options
from hybridlm.cli.main import main
from hybridlm.session import Event

class Endless(LM):
    def __init__(self):
        self.tokenizer = "some"
    def run_worker(self):
        return False
    def stream(self, prompts, params, n):
        for i in itertools.count():
            time.sleep(0.01)
            yield Event(0, i, f"word{i} ", None)

_cli_options.load = lambda *args, **settings: Endless()
main()
"""


@pytest.mark.parametrize("buffering", [0, -1], ids=["unbuffered", "buffered"])
@pytest.mark.parametrize(
    "arguments", [("--help",), ("score", "-h"), ("--version",), ("cache", "list"), ("generate", "-m", "tiny", "A")]
)
def test_a_full_disk_behind_standard_output_is_named(
    lm: hybridlm.LM,
    arguments: tuple[str, ...],
    buffering: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    monkeypatch.setattr(lm, "stream", lambda *prompts, **settings: iter([Event(0, 1, "word", None)]))
    full = io.TextIOWrapper(open("/dev/full", "wb", buffering), write_through=not buffering)
    monkeypatch.setattr(sys, "stdout", full)
    monkeypatch.setattr(sys, "argv", ["hybridlm", *arguments])
    with full, pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: standard output: ")


def test_without_standard_output_what_is_printed_is_dropped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "argv", ["hybridlm", "cache", "list"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0


@pytest.mark.parametrize("stored", [True, False])
def test_warmup_fails_where_a_step_is_not_kept(stored: bool, lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    origins = {
        "generate 1x1 of 1": types.SimpleNamespace(stored=True, seconds={}, reusable=True),
        "generate 2x1 of 2": types.SimpleNamespace(stored=False, seconds={}, reusable=stored),
    }
    monkeypatch.setattr(lm.engine.programs, "origins", origins)
    monkeypatch.setattr(lm, "warmup", lambda every_bucket: {})
    result = run_command("warmup", "-m", "tiny", code=0 if stored else 1)
    assert len(result.stderr.splitlines()) == (0 if stored else 1)


@pytest.mark.long
@pytest.mark.parametrize("end", ["interrupt", "SIGTERM", "closed pipe"])
def test_ends_of_a_stream(root: Path, end: str):
    """Ctrl-C, SIGTERM and a reader that goes away, in a process: SIGTERM alone is named."""
    command = [sys.executable, "-c", ENDLESS, "generate", "-m", "x", "A"]
    process = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    deadline = threading.Timer(120, process.kill)
    deadline.start()
    assert process.stdout.read(6) == b"word0 "
    if end != "closed pipe":
        process.send_signal(signal.SIGTERM if end == "SIGTERM" else signal.SIGINT)
        # Signals and text race, the line end comes last.
        assert process.stdout.read().endswith(b"\n")
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    deadline.cancel()
    statuses = {"interrupt": (130, b""), "SIGTERM": (143, b"ended by SIGTERM\n"), "closed pipe": (141, b"")}
    assert (process.wait(), errors) == statuses[end]


def test_score(lm: hybridlm.LM, tmp_path: Path):
    (tmp_path / "in.jsonl").write_text(
        '{"id": "a", "text": "Ada"}\n{"id": "b", "token_ids": [97]}\n{"text": "Ben"}\n{"text": "Bo"}\n'
    )
    result = run_command("score", "-m", "tiny", tmp_path / "in.jsonl", tmp_path / "out.jsonl", code=3)
    assert result.stdout == ""
    assert "3 texts of 8 tokens" in result.stderr and "1 rows have an error" in result.stderr
    results = rows((tmp_path / "out.jsonl").read_text())
    assert results[0]["sum_logprob"] == lm.score(["Ada", "Ben", "Bo"])[0].sum_logprob
    assert [row["id"] for row in results] == ["a", "b", None, None] and results[1]["error"].startswith("line 2: ")
    message = refused("score", "-m", "tiny", "--strict", tmp_path / "in.jsonl", tmp_path / "strict.jsonl")
    assert message.startswith(f"error: {tmp_path / 'in.jsonl'}: line 2: token_ids: token id 97")
    assert not (tmp_path / "strict.jsonl").exists()


@pytest.fixture
def embedded(loaded: hybridlm.LM, monkeypatch: pytest.MonkeyPatch) -> Iterator[hybridlm.LM]:
    """Return a demo with three stories; the untrained model gives equal, wrong answers."""
    monkeypatch.setattr(cli_demo, "load", lambda *args, **settings: loaded)
    monkeypatch.setattr(cli_demo, "STORIES", 3)
    monkeypatch.setattr(cli_demo, "MIN_RIGHT", 0)
    monkeypatch.setattr(cli_demo, "MAX_TOKENS", 6)
    monkeypatch.setattr(demo, "story", lambda seed: story(seed, holders=1))
    yield loaded
    loaded.engine.after_step = None


def test_demo(embedded: hybridlm.LM):
    output = printed("demo", "--seed", "3")
    assert output.startswith("LM(qwen3_5,") and f"jax {jax.__version__}" in output
    stories = [demo.story(seed) for seed in demo.UNSEEN[9:12]]
    answers = embedded.generate([story.prompt for story in stories], max_tokens=6)
    for tale, answer in zip(stories, answers, strict=True):
        assert tale.question in output and f"wrong: {tale.answer}" in output
        assert answer.text is not None and output.count(answer.text.strip()) == 2
    assert output.count("tokens/s") == 2 and output.count("0 of 3 right") == 2 and "NO" not in output
    assert output.endswith("all 3 answers are equal, token by token\n")
    # One step for the batch, another one for a single lane.
    assert {(3, 5), (3, 1), (1, 5), (1, 1)} <= {(shape.lanes, shape.tokens) for shape in compiled_steps(embedded)}


def test_demo_sees_a_leak(embedded: hybridlm.LM):
    """Three lanes exchange their states after every step: all answers differ from those alone."""

    def swap(pools: Any, owners: list[Any]) -> Any:
        if None in owners:
            return pools
        return jax.tree.map(lambda pool: pool[jax.numpy.array([1, 2, 0])] if len(pool) == 3 else pool, pools)

    embedded.engine.after_step = swap
    result = run_command("demo", code=1)
    assert result.stdout.count("NO") == 3
    assert result.stderr == "error: 3 of 3 answers differ between the batch and alone\n"


def test_demo_refuses_wrong_answers(embedded: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    """Wrong answers are refused although they are equal."""
    monkeypatch.setattr(cli_demo, "MIN_RIGHT", 2)
    result = run_command("demo", code=1)
    assert "all 3 answers are equal" in result.stdout
    assert result.stderr.startswith("error: 0 of 3 answers are right, expected at least 2: ")


def test_demo_right_answers():
    tale = story(5)
    reply = hybridlm.Completion(tale.reply, [1], None, None, "stop", [2])
    other = hybridlm.Completion(tale.reply.replace(tale.answer, "Nobody"), [1], None, None, "stop", [2])
    assert cli_demo._is_right(tale, reply) and not cli_demo._is_right(tale, other)


def test_brackets_and_colons_are_no_markup(capsys: pytest.CaptureFixture[str]):
    """Names of files and of lanes are no markup, in lines and in cells."""
    name = "a[bold]b[/] :smile: [red]"
    console, table = options.console_for_table(), options.table_of("name")
    table.add_row(name)
    console.print(name)
    console.print(table)
    assert capsys.readouterr().out.count(name) == 2


def test_batch(lm: hybridlm.LM, tmp_path: Path):
    bodies = [{"prompt": ["Ada has", "B", "Ben has"], "max_tokens": 6, "temperature": 0}, {"prompt": "x", "tools": 1}]
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": b} for i, b in enumerate(bodies)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run_command("batch", "-m", "tiny", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", code=3)
    assert result.stdout == ""
    assert "1 responses" in result.stderr and "1 of 2 lines have an error" in result.stderr
    assert "  line 2: tools: is supported only with" in result.stderr
    # Lines of progress where standard error is no terminal.
    assert "answering: 100% after " in result.stderr
    first, second = rows((tmp_path / "out.jsonl").read_text())
    texts = [completion.text for completion in lm.generate(["Ada has", "B", "Ben has"], max_tokens=6)]
    assert [choice["text"] for choice in first["response"]["body"]["choices"]] == texts
    assert second["error"]["message"].startswith("line 2: tools: is supported only with the value []")
    message = refused("batch", "-m", "tiny", "-i", tmp_path / "in.jsonl", "-o", tmp_path / "in.jsonl")
    assert "also the input" in message


def test_eval_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: None)
    message = refused("eval", "-m", "tiny", "-t", "any")
    assert message == 'error: eval: needs lm_eval, which is not installed: pip install "hybridlm[eval]"\n'


def test_eval_asks_for_a_place_to_write_before_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: name)
    for output, fault in ((tmp_path / "absent" / "x.json", "no such directory"), (tmp_path, "expected a regular file")):
        assert fault in refused("eval", "-m", "no-such-model", "-t", "any", "-o", output)


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Results as lm_eval returns them; lm_eval itself is not installed."""
    results = {"results": {"any": {f"metric {i}": float(i) for i in range(300)}}}

    def matching(names: list[str]) -> list[str]:
        return [name for name in ("any", "another") if fnmatch.filter([name], names[0])]

    for name, attributes in {
        "lm_eval.evaluator": {"simple_evaluate": lambda **settings: results},
        "lm_eval.tasks": {"TaskManager": lambda include_path: types.SimpleNamespace(match_tasks=matching)},
        "lm_eval.utils": {"handle_non_serializable": str, "make_table": lambda results: "|table|"},
        "hybridlm.evals": {"HybridLM": lambda lm, **settings: None},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("hybridlm.errors.find_spec", lambda name: name)
    return results


def test_eval_finds_its_tasks_before_it_loads(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    loaded, task_lists = list[str](), list[list[str]]()
    monkeypatch.setattr(options, "load", lambda model, **settings: loaded.append(model))
    monkeypatch.setattr(
        sys.modules["lm_eval.evaluator"], "simple_evaluate", lambda tasks, **_: task_lists.append(tasks) or results
    )
    message = refused("eval", "-m", "tiny", "-t", "any,helaswag", "-t", "mmlu_*")
    assert "lm_eval has no task, group or tag helaswag, mmlu_*" in message and not loaded
    printed("eval", "-m", "tiny", "-t", "an*,any")
    assert task_lists == [["any", "another"]] and loaded == ["tiny"]


def test_eval_keeps_an_older_file_where_the_new_one_does_not_fit(
    tmp_path: Path, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(options, "load", lambda *args, **settings: None)
    output = tmp_path / "out.json"
    output.write_text("older")
    command = ("eval", "-m", "tiny", "-t", "any", "-o", output)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        failed = run_command(*command, code=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert failed.stderr.startswith(f"error: {output}: File too large"), failed.output
    assert failed.stdout == "|table|\n", "the figures are shown in any case"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"] and output.read_text() == "older"
    assert printed(*command) == "|table|\n" and json.loads(output.read_text()) == results
