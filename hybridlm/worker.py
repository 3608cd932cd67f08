"""The loop of workers that repeats commands of process 0."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from hybridlm.engine.computed_prefix import compute_prefix
from hybridlm.engine.engine import Engine
from hybridlm.engine.inputs import Inputs
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.warmup import warm_up
from hybridlm.errors import GrammarError, NumericalError
from hybridlm.multiprocess.decisions import Broadcast, DecisionFailed, Interrupted
from hybridlm.multiprocess.environment import ProcessLost, exit_peer_lost
from hybridlm.multiprocess.process_group import ProcessGroup
from hybridlm.requests.sequence import Request, ResolvedParams
from hybridlm.rows.pool import RowsLost
from hybridlm.scoring.distributions import Question, TextQuestion
from hybridlm.scoring.pooling import read_hidden
from hybridlm.scoring.scorer import scores
from hybridlm.session import DRAFTED_BY_USER, Session
from ir_passes import AuditError, IsolationError
from ir_passes.xla_audit.hlo import HloError

CLASSES = (Prefix, Question, Request, ResolvedParams, TextQuestion)
"""Data classes of messages."""
USERS = (AuditError, DecisionFailed, GrammarError, HloError, Interrupted, IsolationError, NumericalError, RowsLost)
"""Errors for the user, which process 0 raises at the same point; others end this process."""


def run_worker(engine: Engine, inputs: Inputs, group: ProcessGroup) -> None:
    """Repeat the commands of process 0 to its end; report a failure and exit.

    All other processes wait for it, so it must exit.
    """
    group.messages.classes = {cls.__name__: cls for cls in CLASSES}
    try:
        repeat(engine, inputs, group.decisions, group.busy_with)
        group.check_all()
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        print(f"error: process {group.process}: {message}", file=sys.stderr, flush=True)
        if not isinstance(error, ProcessLost):
            group.heartbeat.report_failure(message)
        exit_peer_lost()
    group.end()


def _in_process_0(token_ids: object, k: int) -> list[int]:
    """Stand for the user's drafter outside process 0: proposals are received."""
    raise RuntimeError("the drafter is in process 0")


def repeat(engine: Engine, inputs: Inputs, decisions: Broadcast, busy_with: Callable[[str], Any]) -> None:
    """Run the commands of process 0 until its end."""

    def session(logits_processor: None, speculate: Any) -> None:
        drafter: Any = SimpleNamespace(propose=_in_process_0) if speculate == DRAFTED_BY_USER else speculate
        Session(engine, inputs, logits_processor, drafter)

    def warm(every_bucket: bool) -> None:
        with busy_with("warmup"):
            warm_up(engine, every_bucket, False)

    commands: dict[str, Callable[..., Any]] = {
        "session": session,
        "add": lambda session, request: session.add(request),
        "cancel": lambda session, index: session.cancel(index),
        "step": lambda session: session.step(),
        "close": lambda session: session.close(),
        "score": lambda **arguments: scores(engine, **arguments),
        "read": lambda **arguments: read_hidden(engine, **arguments),
        "prefix": lambda tokens: compute_prefix(engine, tokens),
        "clear prefix cache": engine.clear_prefix_cache,
        "warm up": warm,
    }
    while (message := decisions.receive()).kind != "end":
        try:
            commands[message.kind](**message.arguments)
        except USERS:
            pass  # process 0 reports the error to the user
