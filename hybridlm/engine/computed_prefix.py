"""Computation of a prefix, as a text that is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hybridlm.engine.engine import Engine
from hybridlm.engine.prefix import Prefix
from hybridlm.engine.reading import QueuedText, Reading
from hybridlm.engine.scheduler import Scheduler
from hybridlm.errors import NumericalError
from hybridlm.requests.sampling_operands import sampling_inputs
from hybridlm.rows.snapshot import Snapshot, nothing_consumed
from hybridlm.steps.generate import SampledTokens
from hybridlm.steps.operands import Batch, StepInputs


@dataclass(eq=False)
class PrefixText(QueuedText):
    """A prefix that is prefilled.

    Attributes:
        outside: the sampler's token for logits that are not numbers.
    """

    outside: int = field(kw_only=True)

    def take(self, outputs: SampledTokens, lane: int, first: int, count: int) -> None:
        if first + count == len(self.tokens) and np.asarray(outputs.token)[lane] >= self.outside:
            self.mark_wrong(first + count - 1)


def compute_prefix(engine: Engine, tokens: tuple[int, ...]) -> Prefix:
    """Prefill all tokens except the last, a chunk per step.

    Raises:
        NumericalError: the logits after them are not numbers.
        IsolationError, AuditError, HloError: the step is refused.
    """
    with engine.decisions.command("prefix", tokens=tokens):
        snapshot = _compute(engine, tokens) if len(tokens) > 1 else nothing_consumed(engine.kind)
        engine.decisions.share(snapshot)
    return Prefix(tokens, snapshot)


def _compute(engine: Engine, tokens: tuple[int, ...]) -> Snapshot:
    def inputs(batch: Batch, lanes: Sequence[Any], feeds: Sequence[Any]) -> StepInputs:
        return sampling_inputs(batch, [None] * len(lanes), engine.vocab_size)

    reading: Reading[PrefixText] = Reading(
        [engine], engine.bucket(1, engine.lanes), inputs, widths=(engine.chunk,), counter="prompt_tokens"
    )
    text, queue = PrefixText(0, tokens, keeps_state=True, outside=engine.vocab_size), Scheduler(engine)
    queue.add_texts(reading, [text])
    try:
        list(queue.run())
    finally:
        queue.close()
    if text.first_wrong is not None:
        raise NumericalError("prefix", text.first_wrong)
    assert text.snapshot is not None
    return text.snapshot
