"""All-gathers that XLA computes as sums of parts in zeros.

Each device writes its part into zeros at its own place, if a gather does not fit the tiles of a TPU, as with the logits
of one lane (openxla/xla, xla/service/all_gather_decomposer.cc). Places follow for every device from the program's
integers. The sum only changes -0 to 0, an equal number.
"""

from dataclasses import dataclass

from ir_passes.xla_audit.program import Array, Computation, Groups, Instruction, Module

_VIEWS = ("bitcast", "copy", "copy-done", "copy-start", "reshape")
"""Opcodes with the bits of their first operand."""
_INTEGERS = ("s32", "s64", "u32", "u64")


@dataclass(frozen=True)
class _Value:
    """An instruction, and the operands of the enclosing fusion."""

    instruction: Instruction
    computation: Computation
    outer: tuple["_Value", ...] = ()

    @property
    def operands(self) -> tuple["_Value", ...]:
        return tuple(
            _Value(operand, self.computation, self.outer) for operand in self.computation.operands(self.instruction)
        )


def padded_gather(
    operand: Instruction, computation: Computation, module: Module, groups: Groups, devices: int
) -> tuple[frozenset[tuple[int, ...]], Array] | None:
    """Return the ordered groups and the part that a sum of `operand` gathers, or None."""
    update = _source(_Value(operand, computation), module)
    if update.instruction.opcode != "dynamic-update-slice":
        return None
    padded, part, *starts = update.operands
    dims, sizes = padded.instruction.array.dims, part.instruction.array.dims
    split = [dim for dim, (full, size) in enumerate(zip(dims, sizes, strict=True)) if full != size]
    # Bits of numbers in integers are disjoint, so nothing is carried.
    exact = operand.array.dtype in (*_INTEGERS, part.instruction.array.dtype)
    if len(split) != 1 or not exact or not _is_zero(_source(padded, module)):
        return None
    size, ordered = sizes[split[0]], set[tuple[int, ...]]()
    for members in (members or tuple(range(devices)) for members in groups):
        places: dict[int, int] = {}
        for device in members:
            numbers = [_number(start, module, device) for start in starts]
            place = numbers.pop(split[0])
            if place is None or any(number != 0 for number in numbers):
                return None
            places[place] = device
        if sorted(places) != list(range(0, dims[split[0]], size)) or len(places) != len(members):
            return None
        ordered.add(tuple(places[place] for place in sorted(places)))
    return frozenset(ordered), part.instruction.array


def _source(value: _Value, module: Module) -> _Value:
    """Follow views, fusions and their parameters back to the computing instruction."""
    while True:
        opcode = value.instruction.opcode
        if opcode == "parameter" and value.outer:
            value = value.outer[value.instruction.parameter]
        elif opcode == "fusion" and value.instruction.array.dtype != "tuple":
            body = module.computations[value.instruction.called[0]]
            value = _Value(body.result, body, value.operands)
        elif opcode in _VIEWS:
            value = value.operands[0]
        else:
            return value


def _is_zero(value: _Value) -> bool:
    if value.instruction.opcode == "broadcast":
        value = value.operands[0]
        while value.instruction.opcode == "parameter" and value.outer:
            value = value.outer[value.instruction.parameter]
    return value.instruction.opcode == "constant" and value.instruction.is_zero


def _number(value: _Value, module: Module, device: int) -> int | None:
    """Return the integer that a device computes, or None if it depends on more."""
    value = _source(value, module)
    opcode, integers = value.instruction.opcode, value.instruction.integers
    if opcode == "partition-id":
        return device
    if opcode == "constant":
        return integers[0] if len(integers) == 1 else None
    if opcode not in ("add", "dynamic-slice", "multiply") or len(value.operands) != 2:
        return None
    first, second = value.operands[0], _number(value.operands[1], module, device)
    if opcode == "dynamic-slice":
        table = _source(first, module).instruction.integers
        return table[second] if second is not None and 0 <= second < len(table) else None
    other = _number(first, module, device)
    if other is None or second is None:
        return None
    return other + second if opcode == "add" else other * second
