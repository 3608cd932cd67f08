"""Runs of equations that occur again, as the layers of a model do: interpreted once, and renamed where they come again.

`ir.inline` puts the body of a call in the place of each call, so that a layer which occurs 18 times is a run of the
same equations 18 times. The results of a run are those of an earlier one under other names, and it has the same
effects, where

* its equations are the same: operation, parameters, literals, and which variable stands where;
* the values that it is given are the same but for a one-to-one renaming of value numbers, of versions of pools, and of
  pools that the contract describes alike;
* every number that the earlier run was given is given again, in order: an expression of renamed operands is found
  where it was found then, and new where it was new then. The second run of a kind often finds what the first made of
  arguments that all layers share, so it is the second that the others repeat.

A transfer function knows nothing else: it compares numbers, asks the contract about a pool, and looks up what `Prover`
has under a number. The walk goes on exactly as if it had interpreted the run, to the last number. A run that reports
anything, or hands out what several lanes reach, is never repeated; a proof that fails is made again without this
module, so that a fault is described where it stands.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from ir_passes.contract.opaque_names import exact_name, same_body
from ir_passes.jaxpr import ir
from ir_passes.proof.numbering import Version
from ir_passes.proof.prover import Env, Prover
from ir_passes.proof.repeated_runs.renaming import Renaming, Tables, form_of, unwritten
from ir_passes.proof.repeated_runs.runs import Run
from ir_passes.proof.site import entered_with, interpret_part
from ir_passes.proof.values import Value

MAX_TEMPLATES = 4
"""Runs of one kind that later ones are compared with."""


def interpret_repeating(
    prover: Prover, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value], runs: Sequence[Run]
) -> list[Value]:
    """Return the abstract results of a program, as `interpret` does.

    Args:
        runs: of the program; those that repeat another one are not interpreted.
    """
    env = entered_with(prover, jaxpr, consts, args)
    templates: dict[int, list[Template]] = {}
    seen: set[int] = set()
    at = 0
    for run in runs:
        interpret_part(prover, jaxpr, env, at, run.first)
        at = run.end
        known = templates.setdefault(run.kind, [])
        if any(one.repeat(env, jaxpr, run) for one in reversed(known)):
            continue
        template = None
        if run.kind in seen and run.followed and len(known) < MAX_TEMPLATES:
            template = Template(prover, env, run)
        seen.add(run.kind)
        interpret_part(prover, jaxpr, env, run.first, run.end)
        if template is not None and template.complete(env, jaxpr):
            known.append(template)
    interpret_part(prover, jaxpr, env, at, len(jaxpr.eqns))
    return [prover.read(env, atom) for atom in jaxpr.outvars]


class Template:
    """A run that was interpreted, for those like it: what it was given, what it made, and what it did to the prover."""

    def __init__(self, prover: Prover, env: Env, run: Run):
        """Begin to listen; `complete` ends it."""
        self._prover, self._run = prover, run
        self._given = [form_of(env[var]) for var in run.given]
        self._unwritten = all(
            unwritten(prover, atom)
            for one in self._given if one is not None for atom in one[1] if isinstance(atom, Version)
        )  # fmt: skip
        self._before = Tables.of(prover)
        self._still = self._unrepeatable()
        self._consumed, self._last = set(prover.versions.consumed), prover.versions.last
        self._accesses = len(prover.accesses)
        self._calls = {name: len(calls) for name, calls in prover.declared.items()}
        self._said = prover.assumed, prover.notes
        prover.assumed, prover.notes = set(), set()
        prover.numbers.events = []

    def _unrepeatable(self) -> Hashable:
        """Return the state of the prover that a run must leave as it is, if runs like it are to be renamed."""
        prover = self._prover
        return len(prover.violations), len(prover.comparisons), frozenset(prover.device_varying)

    def complete(self, env: Env, jaxpr: Any) -> bool:
        """Stop to listen, and return whether the run may be repeated."""
        prover = self._prover
        self._events, prover.numbers.events = prover.numbers.events or [], None
        said, (prover.assumed, prover.notes) = (prover.assumed, prover.notes), self._said
        prover.assumed |= said[0]
        prover.notes |= said[1]
        self._made = [env.get(var) for var in self._run.made]
        self._records = prover.accesses[self._accesses :]
        self._end = prover.versions.last
        now = Tables.of(prover)
        same = all(
            after.get(key) == value
            for before, after in zip(self._before.parts(), now.parts(), strict=True)
            for key, value in before.items()
        )
        self._noted = [
            [(key, value) for key, value in after.items() if key not in before]
            for before, after in zip(self._before.parts(), now.parts(), strict=True)
        ]
        self._written = prover.versions.consumed - self._consumed
        self._sources = _sources(jaxpr, self._run) if said[0] or said[1] else ()
        same &= self._still == self._unrepeatable() and self._consumed <= prover.versions.consumed
        same &= self._find_declared(jaxpr)
        return same and self._unwritten and None not in self._given

    def _find_declared(self, jaxpr: Any) -> bool:
        """Find the places of the calls whose declaration the run takes for granted; False if one is inside a body."""
        eqns = jaxpr.eqns[self._run.first : self._run.end]
        places = {id(eqn): place for place, eqn in enumerate(eqns)}
        known = self._prover.declared.items()
        calls = [(name, one) for name, every in known for one in every[self._calls.get(name, 0) :]]
        self._declared = [(name, places[id(one)], one) for name, one in calls if id(one) in places]
        return len(self._declared) == len(calls)

    def repeat(self, env: Env, jaxpr: Any, run: Run) -> bool:
        """Put the results of a run like this one into `env` and do what it does; False, and nothing done, if it is not.

        Whatever is left to fail comes before the first change that cannot be taken back.
        """
        prover, versions = self._prover, self._prover.versions
        if self._sources and _sources(jaxpr, run) != self._sources:
            return False
        calls = [(name, jaxpr.eqns[run.first + place], one) for name, place, one in self._declared]
        if not all(exact_name(call) == exact_name(one) and same_body(call, one) for _, call, one in calls):
            return False
        names = Renaming(prover, self._before)
        for mine, var in zip(self._given, run.given, strict=True):
            its = form_of(env[var])
            if mine is None or its is None or mine[0] != its[0] or not names.pair_all(mine[1], its[1]):
                return False
        last = prover.numbers.last
        inserted = prover.numbers.again(self._events, names)
        if inserted is None:
            return False
        offset = versions.last - self._last
        names.add_versions(self._last + 1, self._end + 1, offset)
        try:
            results = [names.renamed(self._made[place]) for place in run.used]
            records = [
                replace(one, **{name: names.renamed(getattr(one, name)) for name in ("leaf", "coordinate", "lane")})
                for one in self._records
            ]
            noted = [[names.renamed(pair) for pair in part] for part in self._noted]
            made = {one: versions.leaf_of[one] for one in range(self._last + 1, self._end + 1)}
            leaves = {one: names.renamed((Version(one), leaf)) for one, leaf in made.items()}
            above = [
                [names.renamed((Version(one), Version(part[one]))) for one in made if one in part]
                for part in (versions.parent, versions.origin)
            ]
            written = [names.renamed(Version(one)) for one in self._written]
        except KeyError:
            prover.numbers.forget(inserted, last)
            return False
        env.update({run.made[place]: value for place, value in zip(run.used, results, strict=True)})
        prover.accesses += records
        for name, call, _ in calls:
            prover.declared[name].append(call)
        for part, pairs in zip((prover.same_counts, prover.sort_keys, prover.own_orders), noted, strict=True):
            part.update(pairs)
        versions.leaf_of.update(leaves.values())
        for part, pairs in zip((versions.parent, versions.origin), above, strict=True):
            part.update(pairs)
        versions.consumed.update(written)
        versions.last += self._end - self._last
        return True


def _sources(jaxpr: Any, run: Run) -> tuple[str, ...]:
    """The user's line of each equation, which statements name."""
    return tuple(next(iter(ir.frames_of(eqn)), "unknown") for eqn in jaxpr.eqns[run.first : run.end])
