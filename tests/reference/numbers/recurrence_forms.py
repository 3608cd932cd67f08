"""Recurrence forms on plain arrays, as the float64 equations take them."""

from collections.abc import Callable
from typing import Any

from models.ops.recurrences.recurrence import RecurrenceInputs, RecurrenceOutputs
from models.sharding.devices import Devices


def on_arrays(
    form: Callable[..., RecurrenceOutputs], platform: str = "cpu", **options: Any
) -> Callable[..., RecurrenceOutputs]:
    """Return `form` of query, key, value, log-decay, beta, state, valid and fresh."""

    def run(query: Any, key: Any, value: Any, log_decay: Any, *rest: Any) -> RecurrenceOutputs:
        *beta, state, valid, fresh = rest
        return form(
            RecurrenceInputs(
                query, key, value, log_decay, state, valid, fresh, *beta, devices=Devices(platform=platform)
            ),
            **options,
        )

    return run
