"""Strict reader of `config.json`; collects all faults."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Fields without effect on the computation: never reported as unknown.
_BOILERPLATE = frozenset(
    """architectures auto_map model_type _name_or_path transformers_version torch_dtype dtype use_cache bos_token_id
    eos_token_id pad_token_id initializer_range output_router_logits router_aux_loss_coef attention_dropout
    tie_word_embeddings return_dict output_hidden_states output_attentions chunk_size_feed_forward is_encoder_decoder
    id2label label2id problem_type vision_config image_token_id video_token_id vision_start_token_id
    vision_end_token_id language_model_only text_config quantization_config is_causal
    use_bidirectional_attention""".split()
)


class ConfigError(ValueError):
    """A `config.json` with unsupported or wrong fields."""

    def __init__(self, family: str, faults: Sequence[str]):
        self.faults = list(faults)
        self._family = family
        lines = "\n".join(f"  - {fault}" for fault in faults)
        super().__init__(f"config.json cannot be run as a {family} model ({len(self.faults)} fault(s)):\n{lines}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        # For pickling between processes: the message does not rebuild the error.
        return type(self), (self._family, self.faults)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class ConfigReader:
    """Reader of one JSON object that records read fields and faults.

    A wrong field yields its default or a harmless value, so that `close` reports all faults.
    """

    def __init__(self, family: str, fields: Mapping[str, Any], where: str = ""):
        self.family = family
        self._fields = fields
        self._where = where
        self._read: set[str] = set()
        self.faults: list[str] = []
        self._children: list[ConfigReader] = []

    def __contains__(self, name: str) -> bool:
        return self._fields.get(name) is not None

    def fault(self, name: str, expected: str) -> None:
        value = f"{self._fields[name]!r}" if name in self._fields else "no such field"
        self.faults.append(f"{self._where}{name}: expected {expected}, found {value}")

    def get(self, name: str) -> Any:
        self._read.add(name)
        return self._fields.get(name)

    def absent(self, name: str) -> bool:
        """True if the field is missing, not even null."""
        return name not in self._fields

    def integer(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """Read an integer of at least `minimum`; required without a default."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            self.fault(name, f"a whole number of at least {minimum}")
            return default if default is not None else max(minimum, 1)
        return value

    def number(self, name: str, default: float | None = None, minimum: float = 0.0) -> float:
        """Read a finite number greater than `minimum`; required without a default."""
        value = self.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not minimum < value <= sys.float_info.max:
            self.fault(name, f"a number greater than {minimum}")
            return default if default is not None else 1.0
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Read true or false; null is false in transformers."""
        value = self.get(name)
        if value is None and not (default and name in self._fields):
            return default
        if not isinstance(value, bool):
            self.fault(name, "true or false")
            return default
        return value

    def choice(self, name: str, supported: Sequence[Any], default: Any) -> Any:
        """Read an implemented value."""
        value = self.get(name)
        if value is None:
            return default
        if value not in supported:
            self.fault(name, "one of " + ", ".join(repr(option) for option in supported) + " (what is implemented)")
            return default
        return value

    def fixed(self, values: Mapping[str, Any]) -> None:
        """Read fields with one implemented value each, their default."""
        for name, value in values.items():
            self.choice(name, [value], value)

    def ignore(self, names: Iterable[str]) -> None:
        """Mark fields without effect on the computation as read."""
        self._read.update(names)

    def integers(self, name: str) -> tuple[int, ...]:
        """Read an integer or a list of them, as a tuple; () if absent."""
        value = self.get(name)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
            self.fault(name, "a whole number or a list of whole numbers, none negative")
            return ()
        return tuple(values)

    def numbers(self, name: str, default: Sequence[float]) -> tuple[float, ...]:
        """Read finite numbers, as many as in `default`."""
        value = self.get(name)
        if value is None:
            return tuple(default)
        numbers = [x for x in value if _is_number(x) and math.isfinite(x)] if isinstance(value, list) else []
        if len(numbers) != len(default) or len(value) != len(default):
            self.fault(name, f"a list of {len(default)} numbers")
            return tuple(default)
        return tuple(map(float, numbers))

    def limits(self, name: str, default: tuple[float, float]) -> tuple[float, float]:
        """Read a minimum, not negative, and a maximum, possibly infinite.

        transformers writes `{"__float__": "Infinity"}`, others a bare `Infinity`.
        """
        value = self.get(name)
        if value is None:
            return default
        pair = [math.inf if x == {"__float__": "Infinity"} else x for x in value] if isinstance(value, list) else []
        if len(pair) != 2 or not all(map(_is_number, pair)) or not 0.0 <= pair[0] < pair[1]:
            self.fault(name, "two numbers, the first not negative and less than the second")
            return default
        return float(pair[0]), float(pair[1])

    def child(self, name: str) -> "ConfigReader | None":
        """Return a reader of a nested object, or None; `close` covers it."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.fault(name, "an object")
            return None
        reader = ConfigReader(self.family, value, f"{self._where}{name}.")
        self._children.append(reader)
        return reader

    def _all_faults(self) -> list[str]:
        return (
            self.faults + self._other_attention() + [fault for child in self._children for fault in child._all_faults()]
        )

    def _other_attention(self) -> list[str]:
        """Return faults of bidirectional attention."""
        return [
            f"{self._where}{name}: expected {str(causal).lower()}, as only causal attention is implemented, found "
            f"{self._fields[name]!r}"
            for name, causal in (
                ("is_causal", True),
                ("use_bidirectional_attention", False),
                ("is_encoder_decoder", False),
            )
            if self._fields.get(name) not in (None, causal)
        ]

    def _all_unknown(self) -> list[str]:
        unknown = [self._where + name for name in self._fields if name not in self._read and name not in _BOILERPLATE]
        return unknown + [name for child in self._children for name in child._all_unknown()]

    @property
    def empty(self) -> bool:
        """True if the object has no fields."""
        return not self._fields

    def objects(self) -> list[str]:
        """Return the names of the fields that are objects."""
        return [name for name, value in self._fields.items() if isinstance(value, Mapping)]

    def close(self) -> tuple[str, ...]:
        """Raise `ConfigError` with all faults, or return the unread fields."""
        faults = self._all_faults()
        if faults:
            raise ConfigError(self.family, faults)
        return tuple(self._all_unknown())
