"""Contradictions between tensors of quantised weights and the configuration."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from hybridlm.quantised.groups import module_name
from hybridlm.quantised.schemes import QuantisedTensor
from hybridlm.quantised.settings import QuantisationSettings


def contradictions(
    settings: QuantisationSettings, quantised: Mapping[str, QuantisedTensor], plain: Iterable[str]
) -> Iterator[str]:
    """Yield weights with tensors that contradict the configuration, with both sides.

    A plain weight must be listed by name: patterns of real files miss plain modules (routers, convolutions).
    """
    exact = {module_name(entry) for entry in settings.ignored if not _is_pattern(entry)}
    patterns = _by_words(entry for entry in settings.ignored if _is_pattern(entry))
    for name, tensor in quantised.items():
        module = module_name(name)
        listed = None if settings.listed is None else _listed(module, settings.listed)
        pattern = _matching(patterns, name.removesuffix(".weight"), module)
        if module in exact or pattern is not None:
            statement = f"lists {pattern or module} as stored plainly"
        elif listed is not None and not _forms(tensor) & listed:
            statement = f"lists it as {_or(listed)}" if listed else "does not list it"
        elif settings.schemes is not None and not _forms(tensor) & settings.schemes:
            statement = f"says {_or(settings.schemes)} ({settings.method})"
        elif (bits := settings.hints.bits) and tensor.scheme in ("int-packed", "int8") and tensor.bits not in bits:
            statement = f"says integers of {_or(map(str, bits))} bits, and not of {tensor.bits}"
        else:
            continue
        yield f"{name}: the files hold {tensor.scheme} codes, the configuration {statement}"
    if settings.listed:
        for name in plain:
            if name.endswith(".weight") and (module := module_name(name)) in settings.listed:
                statement = _or(settings.listed[module])
                yield f"{name}: the files hold plain numbers, the configuration lists it as {statement}"


def _listed(module: str, listed: Mapping[str, frozenset[str]]) -> frozenset[str]:
    while module and module not in listed:
        module = module.rpartition(".")[0]
    return listed.get(module, frozenset())


def _forms(tensor: QuantisedTensor) -> frozenset[str]:
    """Return the possible schemes of a weight: the scale of a single block is ambiguous."""
    rows, columns = tensor.shape[-2:]
    forms = {tensor.scheme}
    if tensor.scheme == "fp8-tensor":
        forms |= {"fp8-channel"} if rows == 1 else set()
        forms |= {"fp8-block"} if rows <= tensor.block[0] and columns <= tensor.block[1] else set()
    return frozenset(forms)


def _or(schemes: Iterable[str]) -> str:
    return " or ".join(sorted(schemes))


def _is_pattern(entry: str) -> bool:
    return entry.startswith("re:") or any(sign in entry for sign in "*?[")


def _by_words(entries: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
    """Return patterns of the configuration with their entries, by first whole words.

    This bounds the comparisons of hundreds of patterns with a hundred thousand tensors. Regular expressions of a file
    are not run: they could take forever.
    """
    patterns: dict[str, list[tuple[str, str]]] = {}
    for entry in entries:
        if not entry.startswith("re:"):
            for pattern in {entry, module_name(entry)}:
                literal = re.split(r"[*?[]", pattern, maxsplit=1)[0]
                patterns.setdefault(literal.rpartition(".")[0], []).append((pattern, entry))
    return patterns


def _matching(patterns: Mapping[str, Sequence[tuple[str, str]]], *names: str) -> str | None:
    for name in names:
        words = name.split(".")
        for count in range(len(words)):
            for pattern, entry in patterns.get(".".join(words[:count]), ()):
                if fnmatchcase(name, pattern):
                    return entry
    return None
