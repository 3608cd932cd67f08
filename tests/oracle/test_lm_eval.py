"""Tasks of lm_eval, all three kinds: the figures of its transformers backend, offline."""

# lm_eval is an extra: where it is not installed, its types are not known.
# pyright: reportMissingImports=false

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import load_in_commands, run_command
from patched_functions import record_calls
from text_checkpoint import SETTINGS, write_text_checkpoint

import hybridlm

# Long because lm_eval and its dependencies take half a minute to install (.ci/long does). Warnings of their imports are
# not ours (2026-11-22).
pytestmark = [pytest.mark.oracle, pytest.mark.long, pytest.mark.filterwarnings("ignore")]

TASKS = {
    "kites": """
output_type: multiple_choice
doc_to_text: "Question: {{question}} Answer:"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
""",
    "pages": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{page}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "lines": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["=", "+"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}
QUESTIONS = ["Who has it?", "Where is the green kite ", "", "What?"]
DOCS: dict[str, list[dict[str, Any]]] = {
    "kites": [
        {"question": question * (1 + 60 * (i == 3)), "choices": ["Ada", "Ben has", "the red drum", "x"], "gold": i % 4}
        for i, question in enumerate(QUESTIONS)
    ],
    # Shorter than the context, equal to it, and much longer.
    "pages": [{"page": "a b"}, {"page": "abcdefgh" * 32}, {"page": "Ben has the green kite. " * 30}],
    "lines": [{"question": f"Line {i}:" + " and so on" * (30 * (i == 2)), "answer": "x"} for i in range(5)],
}


def test_models_of_lm_eval_stay_known() -> None:
    """lm_eval registers its models on first use unless another is registered."""
    program = "import hybridlm.evals; from lm_eval.api.registry import get_model; print(get_model('dummy').__name__)"
    process = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tasks and their documents."""
    folder = tmp_path_factory.mktemp("tasks")
    for name, settings in TASKS.items():
        data = folder / f"{name}.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS[name]))
        head = f"task: {name}\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\ntest_split: test\n"
        (folder / f"{name}.yaml").write_text(head + settings.strip() + "\nmetadata: {version: 1}\n")
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_text_checkpoint(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def lm(checkpoint: Path) -> hybridlm.LM:
    return hybridlm.load(checkpoint, **SETTINGS)


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def evaluated(model: Any, tasks: Path, **settings: Any) -> dict[str, Any]:
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    names: list[Any] = sorted(TASKS)
    results = simple_evaluate(model=model, tasks=names, task_manager=manager, bootstrap_iters=0, **settings)
    assert results is not None
    return dict(results)


def answers(results: dict[str, Any], task: str) -> list[Any]:
    """Return the model's answers, document by document."""
    return [sample["resps"] for sample in sorted(results["samples"][task], key=lambda sample: sample["doc_id"])]


@pytest.mark.parametrize("settings", [{}, {"num_fewshot": 1}, {"apply_chat_template": True}], ids=str)
def test_figures_match_the_transformers_backend(
    checkpoint: Path, tasks: Path, lm: hybridlm.LM, settings: dict[str, Any]
):
    from lm_eval.models import huggingface

    from hybridlm.evals import HybridLM

    backend: Any = huggingface.HFLM
    reference = backend(pretrained=str(checkpoint), dtype="float32", device="cpu", batch_size=1, max_length=lm.context)
    want = evaluated(reference, tasks, **settings)
    result = evaluated(HybridLM(lm), tasks, **settings)
    for task in TASKS:
        numbers = {name: value for name, value in want["results"][task].items() if not isinstance(value, str)}
        assert numbers and {name: result["results"][task][name] for name in numbers} == pytest.approx(
            numbers, rel=1e-4, nan_ok=True
        )
    for item, other in zip(answers(result, "kites"), answers(want, "kites"), strict=True):
        assert [greedy for ((_, greedy),) in item] == [greedy for ((_, greedy),) in other]
        assert [total for ((total, _),) in item] == pytest.approx([total for ((total, _),) in other], abs=1e-3)
    for item, other in zip(answers(result, "pages"), answers(want, "pages"), strict=True):
        assert item[0][0] == pytest.approx(other[0][0], abs=1e-3)
    assert answers(result, "lines") == answers(want, "lines")


def test_pairs_are_cut_as_lm_eval_cuts_them(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM

    from hybridlm.evals import HybridLM

    model, calls = HybridLM(lm), record_calls(monkeypatch, "hybridlm.evals.encode_pair")
    pairs = (("a", " b"), ("a ", "b"), ("a  \n", " b"), ("<begin>a", "b"))
    model.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)])
    assert [call.result for call in calls] == [TemplateLM._encode_pair(model, *pair) for pair in pairs]


@pytest.mark.parametrize(("context", "continuation"), [("<begin>a", ""), ("", ""), ("a", "b" * 300), ("", "b" * 300)])
def test_continuations_without_tokens_are_refused_with_both_texts(lm: hybridlm.LM, context: str, continuation: str):
    """Also those longer than the context; lm_eval's own backend stops at an assertion."""
    from lm_eval.api.instance import Instance

    from hybridlm.evals import HybridLM

    requests = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate([("a", "b"), (context, continuation)])]
    with pytest.raises(ValueError, match=r"continuation of 1\.\.256 tokens, got (0|300): ") as error:
        HybridLM(lm).loglikelihood(requests)
    assert repr((context, continuation)) in str(error.value)


def test_the_boundary_is_lm_evals(lm: hybridlm.LM):
    """Trailing white space of a context belongs to the continuation, unlike in `LM.score`."""
    from lm_eval.api.instance import Instance

    from hybridlm.evals import HybridLM

    ((total, _),) = HybridLM(lm).loglikelihood([Instance("loglikelihood", {}, ("Who ", "Ada"), 0)])
    (score,) = lm.score([{"prompt": "Who", "completion": " Ada"}])
    assert total == pytest.approx(score.sum_logprob, abs=1e-4)
    (completion,) = lm.score([{"prompt": "Who ", "completion": "Ada"}])
    assert len(completion.token_ids) == 3 and completion.sum_logprob > total


def test_command(checkpoint: Path, tasks: Path, tmp_path: Path, lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    from hybridlm.evals import HybridLM

    load_in_commands(monkeypatch, lm)
    arguments = ["eval", "-m", "tiny", "-t", "kites,pages", "--include-path", str(tasks), "--limit", "2"]
    result = run_command(*arguments, "-o", tmp_path / "out.json", "--samples")
    assert "|kites|" in result.stdout and "word_perplexity" in result.stdout
    written = json.loads((tmp_path / "out.json").read_text())
    want = evaluated(HybridLM(lm), tasks, limit=2)
    for task in ("kites", "pages"):
        equal = {name: value for name, value in want["results"][task].items() if "stderr" not in name}
        assert {name: written["results"][task][name] for name in equal} == equal
    assert len(written["samples"]["pages"]) == 2
    run_command(*arguments[:3], "-t", "no_such_task", code=1)


def test_a_model_without_a_tokenizer_is_refused(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    from hybridlm.evals import HybridLM

    monkeypatch.setattr(lm, "tokenizer", None)
    with pytest.raises(ValueError, match="has no tokenizer.json"):
        HybridLM(lm)


def test_options_reach_load_and_are_refused_for_a_loaded_model(lm: hybridlm.LM, monkeypatch: pytest.MonkeyPatch):
    from hybridlm import evals

    calls: list[Any] = []
    monkeypatch.setattr(evals, "load", lambda *args, **options: calls.append((args, options)) or lm)
    evals.HybridLM("tiny", batch_size="4", prefix_cache="1MB", kernels="off")
    evals.HybridLM("tiny", batch_size="auto")
    assert calls == [(("tiny",), {"lanes": 4, "prefix_cache": "1MB", "kernels": "off"}), (("tiny",), {})]
    options: dict[str, Any]
    for options in ({"context": 8}, {"batch_size": 4}):
        with pytest.raises(TypeError, match="^(context|lanes): "):
            evals.HybridLM(lm, **options)
