"""Tensors of the `data.pkl` of a plain state dict of `torch.save`, without unpickling.

The standard library's disassembler reads the opcodes; only a state dict's are followed, without its objects: a class or
function is a name, compared with a list. Others are refused by name.
"""

import pickletools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

MAX_SIZE = 2**63
PROTOCOL = 2
"""Protocol of pickle that `torch.save` writes."""
STORAGES: Mapping[str, str] = MappingProxyType(
    {
        "torch DoubleStorage": "F64",
        "torch FloatStorage": "F32",
        "torch HalfStorage": "F16",
        "torch BFloat16Storage": "BF16",
        "torch LongStorage": "I64",
        "torch IntStorage": "I32",
        "torch ShortStorage": "I16",
        "torch CharStorage": "I8",
        "torch ByteStorage": "U8",
        "torch BoolStorage": "BOOL",
    }
)
"""Class of a storage -> dtype in the words of safetensors."""
DICT, TENSOR, PARAMETER = (
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
)
NAMES = frozenset({DICT, TENSOR, PARAMETER, *STORAGES})
"""Classes and functions of a state dict, as "module name"."""


class StateDictError(ValueError):
    """An opcode, name or value outside a plain state dict."""


@dataclass(frozen=True)
class Storage:
    """A run of numbers: the entry `data/{key}` of the archive."""

    key: str
    dtype: str
    count: int


@dataclass(frozen=True)
class StoredTensor:
    """A contiguous tensor in a storage, from number `offset`."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]


class _Name(str):
    """Name of a class or function."""


def read_state_dict(data: bytes) -> dict[str, StoredTensor]:
    """Return the tensors of a state dict by name.

    Raises:
        StateDictError: the first opcode, name or value outside a plain state dict, or a damaged file.
    """
    machine = _Machine()
    try:
        for opcode, argument, position in pickletools.genops(data):
            machine.step(opcode.name, argument)
            rest = len(data) - (position or 0) - 1
            if opcode.name == "STOP" and rest:
                raise StateDictError(f"{rest} bytes after its end")
        (result,) = machine.stack
    except StateDictError:
        raise
    except (ValueError, IndexError, KeyError) as error:
        raise StateDictError(f"damaged: {error!r:.200}") from error
    if not isinstance(result, dict):
        raise StateDictError(f"expected a state dict, found {_described(result)}")
    for name, tensor in result.items():
        if not isinstance(name, str) or not isinstance(tensor, StoredTensor):
            raise StateDictError(f"{name!r:.200}: expected a tensor, found {_described(tensor)}")
    return result


class _Machine:
    """The stack of a pickle, with symbols in place of objects."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, argument: Any) -> None:
        """Follow one opcode; raises StateDictError, IndexError or KeyError."""
        stack = self.stack
        match opcode:
            case "PROTO":
                if argument != PROTOCOL:
                    raise StateDictError(f"expected pickle protocol {PROTOCOL}, found {argument}")
            case "GLOBAL":
                if argument not in NAMES:
                    raise StateDictError(f"names {argument.replace(' ', '.')!r:.200}, which no plain state dict has")
                stack.append(_Name(argument))
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(argument)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_TUPLE":
                stack.append(())
            case "MARK":
                self._marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(self._marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                stack.append(tuple(self._last(int(opcode[-1]))))
            case "BINPUT" | "LONG_BINPUT":
                self._memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(self._memo[argument])
            case "BINPERSID":
                stack.append(_storage(stack.pop()))
            case "REDUCE":
                function, arguments = self._last(2)
                stack.append(_called(function, arguments))
            case "SETITEM":
                self._set(self._last(2))
            case "SETITEMS":
                self._set(self._marked())
            case "BUILD":
                state = stack.pop()
                if not isinstance(stack[-1], dict) or not isinstance(state, dict) or state.keys() != {"_metadata"}:
                    raise StateDictError(f"attributes of {_described(stack[-1])}: expected a state dict's _metadata")
            case "STOP":
                pass
            case _:
                raise StateDictError(f"opcode {opcode}, which no plain state dict has")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("too few values")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def _marked(self) -> list[Any]:
        start = self._marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _set(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise StateDictError(f"items of {_described(target)}: expected a dict")
        for name, value in zip(items[::2], items[1::2], strict=True):
            if type(name) is not str or name in target:
                raise StateDictError(f"key {name!r:.200}: expected texts, each once")
            target[name] = value


def _called(function: Any, arguments: Any) -> Any:
    if not isinstance(function, _Name) or not isinstance(arguments, tuple):
        raise StateDictError(f"a call of {_described(function)}")
    if function == DICT and arguments == ():
        return {}
    if function == TENSOR and len(arguments) in (6, 7):
        storage, offset, shape, strides, _, hooks, *rest = arguments
        sizes = _sizes(shape) and _sizes(strides) and len(shape) == len(strides)
        if isinstance(storage, Storage) and _sizes((offset,)) and sizes and hooks == {} and rest in ([], [{}]):
            return _tensor(storage, offset, shape, strides)
    if function == PARAMETER and len(arguments) == 3 and isinstance(arguments[0], StoredTensor):
        return arguments[0]
    raise StateDictError(f"a call of {function.replace(' ', '.')} with other arguments than a plain state dict has")


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> StoredTensor:
    count = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size > 1 and stride != count:
            raise StateDictError(f"a tensor {list(shape)} with strides {list(strides)}: expected a contiguous one")
        count *= size
    if offset + count > storage.count:
        raise StateDictError(f"a tensor {list(shape)} from {offset}, in a storage of {storage.count} numbers")
    return StoredTensor(storage, offset, shape)


def _storage(identity: Any) -> Storage:
    """Return the storage of a persistent id, `("storage", class, key, device, count)`."""
    if isinstance(identity, tuple) and len(identity) == 5:
        kind, name, key, device, count = identity
        dtype = STORAGES.get(name) if isinstance(name, _Name) else None
        if kind == "storage" and dtype and type(key) is str and type(device) is str and _sizes((count,)):
            return Storage(key, dtype, count)
    raise StateDictError(f"a persistent id {_described(identity)}: expected a storage")


def _sizes(values: Any) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < MAX_SIZE for value in values)


def _described(value: Any) -> str:
    return value.replace(" ", ".") if isinstance(value, _Name) else f"a {type(value).__name__}"
