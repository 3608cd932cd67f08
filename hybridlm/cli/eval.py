"""`hybridlm eval`: tasks of lm_eval (extra `eval`)."""

# lm_eval is an extra: where it is not installed, its types are not known.
# pyright: reportMissingImports=false

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from hybridlm.cli.options import ChatOptions, Loading, Model, json_object, loads, write_json
from hybridlm.errors import require_extra
from hybridlm.files.atomic import replaceable


@dataclass(frozen=True, kw_only=True)
class EvalTasks:
    """Tasks and documents of an evaluation."""

    tasks: Annotated[
        list[str], typer.Option("--tasks", "-t", help="Names or patterns, separated by commas; repeatable.")
    ]
    include_path: Annotated[Path | None, typer.Option(help="A folder with your own tasks.")] = None
    num_fewshot: Annotated[
        int | None, typer.Option(min=0, help="Examples before each question.", show_default="the task's")
    ] = None
    limit: Annotated[int | None, typer.Option(min=1, help="Most documents per task, for a trial run.")] = None
    seed: Annotated[int, typer.Option(help="Seed of tasks that sample.")] = 0


@loads()
def evaluate(
    loading: Loading,
    *,
    model: Model,
    work: EvalTasks,
    template: ChatOptions,
    think_end: Annotated[str | None, typer.Option(help="End marker of thoughts, if it is not a known one.")] = None,
    thinking_budget: Annotated[int | None, typer.Option(min=1, help="Most tokens of thoughts.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write results, settings and versions as JSON.")
    ] = None,
    samples: Annotated[bool, typer.Option("--samples", help="With --output: also every document and answer.")] = False,
) -> None:
    """Evaluate a model on tasks of lm_eval, the Language Model Evaluation Harness."""
    if samples and output is None:
        raise typer.BadParameter("needs --output", param_hint="--samples")
    if not template.chat and (template.thinking is not None or template.chat_template_kwargs is not None):
        raise typer.BadParameter("needs --chat", param_hint="--enable-thinking, --chat-template-kwargs")
    variables = json_object(template.chat_template_kwargs, "--chat-template-kwargs")
    require_extra("eval", "lm_eval", "eval")
    if output is not None:
        replaceable(output)  # an evaluation takes hours
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import handle_non_serializable, make_table

    from hybridlm.evals import HybridLM

    manager = TaskManager(include_path=None if work.include_path is None else str(work.include_path))
    named = [name.strip() for names in work.tasks for name in names.split(",") if name.strip()]
    matches = {name: manager.match_tasks([name]) for name in named}
    if missing := [name for name, matching in matches.items() if not matching]:
        raise ValueError(
            f"--tasks: lm_eval has no task, group or tag {', '.join(missing)}; --include-path adds your own"
        )
    evaluated = HybridLM(
        loading.load(model),
        seed=work.seed,
        enable_thinking=template.thinking,
        chat_template_args=variables,
        think_end_token=think_end,
        thinking_budget=thinking_budget,
    )
    try:
        results = simple_evaluate(
            model=evaluated,
            tasks=list(dict.fromkeys(name for matching in matches.values() for name in matching)),
            num_fewshot=work.num_fewshot,
            limit=work.limit,
            apply_chat_template=template.chat,
            system_instruction=template.system,
            log_samples=samples,
            task_manager=manager,
        )
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(
            "no results are kept: they are written once all tasks are done; --tasks takes fewer at a time"
        )
        raise
    assert results is not None  # None in processes of other ranks
    typer.echo(make_table(results))
    if results.get("groups"):
        typer.echo(make_table(results, "groups"))
    if output is not None:
        write_json(output, results, handle_non_serializable)
