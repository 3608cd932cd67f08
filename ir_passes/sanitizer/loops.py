"""Loops and branches: tags of pools are further carries and results.

Labels of read rows are compared before a loop; only pools keep their tags after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ir_passes.host.row_ledger import ReservedOwner
from ir_passes.jaxpr import ir
from ir_passes.sanitizer.judge import Judge
from ir_passes.sanitizer.tags import LABEL, Ints, Tags, computed, constant_row
from ir_passes.sanitizer.verdict import UntrackedFault

Tagged = list[Tags | None]
Run = Callable[[ir.ClosedJaxpr, Sequence[Any], Tagged], tuple[list[Any], Tagged]]
"""Interpreter of a program: (program, values, tags) -> values and tags of its results."""


def _enter(judge: Judge, eqn: ir.JaxprEqn, tags: Sequence[Tags | None]) -> Tagged:
    return [tag if tag is None or tag.whole else judge.use(eqn, tag) for tag in tags]


def _pools_only(tags: Sequence[Tags | None]) -> Tagged:
    return [tag if tag is not None and tag.whole else None for tag in tags]


def _arrays(tags: Sequence[Tags | None]) -> list[Ints]:
    return [tag.some_rows for tag in tags if tag is not None]


def _with_arrays(tags: Sequence[Tags | None], arrays: Sequence[Ints]) -> Tagged:
    rest = iter(arrays)
    return [None if tag is None else tag.with_rows(next(rest)) for tag in tags]


def _leave(judge: Judge, eqn: ir.JaxprEqn, outs: Sequence[Tags | None], pools: Sequence[Tags | None]) -> Tagged:
    """Return the tags of a body's results, with pools in the places of `pools`."""
    results: Tagged = []
    for out, pool in zip(outs, pools, strict=True):
        out = out if out is None or out.whole else judge.use(eqn, out)
        if pool is not None and (out is None or not out.whole or out.pools != pool.pools):
            judge.lose(eqn, [pool], UntrackedFault.LOOP)
            out = pool
        if pool is None or out is None:
            results.append(None)
        else:
            results.append(out.with_rows(jnp.broadcast_to(out.some_rows, pool.some_rows.shape)))
    return results


def scan(judge: Judge, run: Run, eqn: ir.JaxprEqn, values: list[Any], tags: Tagged) -> tuple[list[Any], Tagged]:
    body = ir.closed(eqn.params["jaxpr"])
    consts, carries = ir.scan_counts(eqn)
    split = consts + carries
    tags = _enter(judge, eqn, tags)
    shared, carried, xs_tags = tags[:consts], _pools_only(tags[consts:split]), tags[split:]
    for tag in xs_tags:
        if tag is not None and tag.whole and tag.shape[0] > 1:
            judge.lose(eqn, [tag], UntrackedFault.SCAN)
    # Lanes that differ between iterations are scanned over like their values.
    moving = [None if tag is None or tag.shape[0] == 1 else jnp.asarray(tag.lanes) for tag in xs_tags]
    results: Tagged = []

    def step(carry: tuple, x: tuple) -> tuple[tuple, tuple]:
        state, arrays, judge.verdict = carry
        xs, slices = x
        lanes = iter(slices)
        xs_in: Tagged = [
            None
            if tag is None
            else tag.map(lambda array: array[0])
            if moving_lanes is None
            else computed(next(lanes), tag.derived)
            for tag, moving_lanes in zip(xs_tags, moving, strict=True)
        ]
        inner = [*shared, *_with_arrays(carried, arrays), *xs_in]
        outs, out_tags = run(body, [*values[:consts], *state, *xs], inner)
        new = _leave(judge, eqn, out_tags[:carries], carried)
        results[:] = _pools_only(_enter(judge, eqn, out_tags[carries:]))
        return (
            (tuple(outs[:carries]), tuple(_arrays(new)), judge.verdict),
            (tuple(outs[carries:]), tuple(_arrays(results))),
        )

    init = (tuple(values[consts:split]), tuple(_arrays(carried)), judge.verdict)
    xs = (tuple(values[split:]), tuple(array for array in moving if array is not None))
    (state, arrays, verdict), (ys, stacked) = lax.scan(
        step, init, xs, length=eqn.params["length"], reverse=eqn.params["reverse"]
    )
    judge.verdict = verdict
    merged = [_agreed(array) for array in stacked]
    each = [None if tag is None else replace(tag, lanes=tag.lanes[None]) for tag in results]
    return [*state, *ys], [*_with_arrays(carried, arrays), *_with_arrays(each, merged)]


def _agreed(stacked: Array) -> Array:
    """Return the rows of stacked pools; rows with different labels become mixed."""
    uniform = jnp.all(stacked == stacked[:1], axis=(0, -1))[..., None]
    labels = jnp.where(
        uniform, stacked[0, ..., LABEL:], constant_row(ReservedOwner.MIXED, stacked.ndim - 2)[..., LABEL:]
    )
    return jnp.concatenate([stacked[0, ..., :LABEL], labels], axis=-1)[None]


def while_loop(judge: Judge, run: Run, eqn: ir.JaxprEqn, values: list[Any], tags: Tagged) -> tuple[list[Any], Tagged]:
    first, second = eqn.params["cond_nconsts"], eqn.params["body_nconsts"]
    test, body = ir.closed(eqn.params["cond_jaxpr"]), ir.closed(eqn.params["body_jaxpr"])
    tags = _enter(judge, eqn, tags)
    shared, carried = tags[first : first + second], _pools_only(tags[first + second :])

    def again(carry: tuple) -> Any:
        operands = [*values[:first], *carry[0]]
        return run(test, operands, [None] * len(operands))[0][0]

    def step(carry: tuple) -> tuple:
        state, arrays, judge.verdict = carry
        inner = [*shared, *_with_arrays(carried, arrays)]
        outs, out_tags = run(body, [*values[first : first + second], *state], inner)
        new = _leave(judge, eqn, out_tags, carried)
        return tuple(outs), tuple(_arrays(new)), judge.verdict

    init = (tuple(values[first + second :]), tuple(_arrays(carried)), judge.verdict)
    state, arrays, judge.verdict = lax.while_loop(again, step, init)
    return list(state), _with_arrays(carried, arrays)


def cond(judge: Judge, run: Run, eqn: ir.JaxprEqn, values: list[Any], tags: Tagged) -> tuple[list[Any], Tagged]:
    tags = _enter(judge, eqn, tags)
    verdict = judge.verdict
    returned: list[Tagged] = []

    def branch(program: ir.ClosedJaxpr, pools: Tagged | None) -> Callable[..., tuple]:
        def chosen(*operands: Any) -> tuple:
            judge.verdict = verdict
            outs, out_tags = run(program, operands, tags[1:])
            if pools is None:
                returned.append(_pools_only(out_tags))
                return ()
            return tuple(outs), tuple(_arrays(_leave(judge, eqn, out_tags, pools))), judge.verdict

        return chosen

    programs = [ir.closed(program) for program in eqn.params["branches"]]
    for program in programs:
        jax.eval_shape(branch(program, None), *values[1:])
    shapes = {tag.pools[0]: tag for tag in tags if tag is not None and tag.whole}
    pools: Tagged = []
    for place in zip(*returned, strict=True):
        pool_tag = next((tag for tag in place if tag is not None), None)
        pools.append(None if pool_tag is None else shapes.get(pool_tag.pools[0]))
    state, arrays, judge.verdict = lax.switch(
        jnp.asarray(values[0], jnp.int32), [branch(program, pools) for program in programs], *values[1:]
    )
    return list(state), _with_arrays(pools, arrays)


RULES = {"scan": scan, "while": while_loop, "cond": cond}
