"""Hash of a traced program or contract, equal in every process, without source lines."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

import jax
import numpy as np

from ir_passes.jaxpr import ir
from ir_passes.jaxpr.bodies import computing_params
from ir_passes.jaxpr.dtypes import to_numpy

_ADDRESS = re.compile(r"0x[0-9a-fA-F]+")


PLACES = frozenset({"sharding", "out_sharding"})
"""Parameters that determine a result's devices, not its elements."""


def fingerprint(value: Any, *, without: frozenset[str] = frozenset(), lengths: bool = True) -> str:
    """Return the sha256 of a jaxpr, dataclass, container or array.

    Variable names, addresses, source lines and the parameters in `without` do not count, nor without `lengths` the
    lengths of a program's arrays; callbacks count by name.
    """
    return _Writer(without, lengths).digest(value)


class _Writer:
    """Writer of programs and contracts as canonical text."""

    def __init__(self, without: frozenset[str], lengths: bool) -> None:
        self._without, self._lengths = without, lengths
        # Each body is hashed once, and kept alive for its id.
        self._bodies: dict[int, tuple[ir.Jaxpr, str]] = {}
        self._types: dict[Any, str] = {}

    def digest(self, value: Any) -> str:
        return hashlib.sha256(self._text(value).encode()).hexdigest()

    def _text(self, value: Any) -> str:
        if value is None or isinstance(value, bool | int | float | complex | str | bytes):
            return repr(value)
        if isinstance(value, ir.ClosedJaxpr):
            return f"closed({self._body(value.jaxpr)},{self._text(tuple(value.consts))})"
        if isinstance(value, ir.Jaxpr):
            return self._body(value)
        if isinstance(value, tuple | list):
            return f"{type(value).__name__}({','.join(map(self._text, value))})"
        if isinstance(value, Mapping):
            return f"map({','.join(sorted(f'{self._text(key)}:{self._text(entry)}' for key, entry in value.items()))})"
        if isinstance(value, set | frozenset):
            return f"set({','.join(sorted(map(self._text, value)))})"
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            array = to_numpy(value)
            return f"array({value.dtype},{array.shape},{hashlib.sha256(array.tobytes()).hexdigest()})"
        if isinstance(value, Enum):
            return str(value)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
            return f"{type(value).__name__}({','.join(f'{name}={self._text(entry)}' for name, entry in fields)})"
        name = getattr(value, "__qualname__", None) if callable(value) else None
        return f"{getattr(value, '__module__', '')}.{name}" if name else _ADDRESS.sub("", repr(value))

    def _body(self, jaxpr: ir.Jaxpr) -> str:
        cached = self._bodies.get(id(jaxpr))
        if cached is None:
            cached = self._bodies[id(jaxpr)] = jaxpr, self._hash(jaxpr)
        return cached[1]

    def _hash(self, jaxpr: ir.Jaxpr) -> str:
        numbers: dict[Any, int] = {}
        lines: list[str] = []

        def define(variables: Any) -> str:
            for variable in variables:
                numbers[variable] = len(numbers)
            return ",".join(self._type(variable.aval) for variable in variables)

        def read(atom: Any) -> str:
            if isinstance(atom, ir.Literal):
                return f"{self._type(atom.aval)}={self._text(atom.val)}"
            return str(numbers[atom])

        lines.append(f"{define(jaxpr.constvars)};{define(jaxpr.invars)}")
        for eqn in jaxpr.eqns:
            operands = ",".join(map(read, eqn.invars))
            computing = computing_params(eqn)
            params = ",".join(
                f"{name}={self._text(computing[name])}" for name in sorted(computing.keys() - self._without)
            )
            lines.append(f"{define(eqn.outvars)}={eqn.primitive.name}({operands})[{params}]")
        lines.append(",".join(map(read, jaxpr.outvars)))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def _type(self, aval: Any) -> str:
        text = self._types.get(aval)
        if text is None:
            weak = "~" if getattr(aval, "weak_type", False) else ""
            rank, dtype = len(getattr(aval, "shape", ())), getattr(aval, "dtype", None)
            description = aval if self._lengths else f"{type(aval).__name__}({dtype}, {rank} dimensions)"
            text = self._types[aval] = _ADDRESS.sub("", f"{description}{weak}")
        return text
