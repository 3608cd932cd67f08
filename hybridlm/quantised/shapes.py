"""Scheme and shape of a quantised weight, from the dtypes and shapes of its tensors."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hybridlm.quantised.schemes import QuantisedTensor, Read

FLOATS = frozenset({"BF16", "F16", "F32"})
POWERS = frozenset({"U8", "F8_E8M0"})
MAX_ENTRIES = 2**40
ADVICE = "load the original release; `hybridlm quantise` makes smaller copies of it"
"""Advice for an unimplemented layout."""


class TensorInfo(NamedTuple):
    """Header entry of one tensor.

    Attributes:
        dtype: of elements ("BF16", "F8_E4M3", ...) or blocks ("Q4_K").
        shape: as stored, perhaps of packed codes.
        begin, end: from the start of all data; in GGUF of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Hints:
    """Facts of the configuration that tensors do not show.

    Attributes:
        block_is_said: the configuration has the block size; otherwise the usual size is assumed.
        bits: of packed integers; empty for any.
        zero_plus_one: zero points are stored less one (first GPTQ version).
        fp4_experts: codes of bytes with inverse scales are pairs of 4-bit floats.
        groups: columns of a scale of integers.
        ordered, zeros: integers have an order of columns, or zero points.
    """

    block: tuple[int, int] = (128, 128)
    block_is_said: bool = False
    bits: frozenset[int] = frozenset()
    zero_plus_one: bool = True
    fp4_experts: bool = False
    groups: frozenset[int] = frozenset()
    ordered: bool = False
    zeros: bool = False


class Mismatch(ValueError):
    """Tensors that make no weight."""


@dataclass
class Tensors:
    """The tensors of one weight, by role.

    Roles are "codes", "scale", "inverse", "global", "zero", "order" and "shape".
    """

    members: dict[str, str]
    tensors: Mapping[str, TensorInfo]
    read: Read
    hints: Hints

    def weight(self) -> QuantisedTensor:
        """Return the weight of these tensors; raises Mismatch if they make none."""
        if self.members["codes"].endswith(".qweight"):
            return self.integers_by_input()
        if "inverse" in self.members:
            if "scale" in self.members or "global" in self.members:
                raise Mismatch(f"found both {self.members['inverse']} and {self.members.get('scale', 'another scale')}")
            self.members["scale"] = self.members.pop("inverse")
            if self.of("codes").dtype in ("I8", "U8") and self.hints.fp4_experts:
                self.expect("scale", FLOATS | POWERS)
                return self.by_columns("mxfp4", 32, pairs=True)
            self.expect("codes", {"F8_E4M3"})
            self.expect("scale", FLOATS | POWERS)
            is_scalar = math.prod(self.of("scale").shape) == 1 and not self.hints.block_is_said
            return self.made("fp8-tensor", self.matrix()) if is_scalar else self.block()
        if "scale" not in self.members:
            raise Mismatch(f"{self.members['codes']}: expected a scale beside it, found none")
        codes = self.of("codes").dtype
        if codes in ("U8", "F8_E4M3") and "zero" in self.members and self.read(self.members["zero"]).any():
            raise Mismatch(f"{self.members['zero']}: expected zeros, floats have no other zero points")
        if codes == "U8":
            if "global" in self.members:
                self.expect("scale", {"F8_E4M3"})
                self.expect("global", {"F32", "BF16", "F16"})
                return self.by_columns("nvfp4", 16, pairs=True)
            self.expect("scale", POWERS)
            return self.by_columns("mxfp4", 32, pairs=True)
        if "global" in self.members:
            raise Mismatch(f"{self.members['global']}: a second scale, which {codes} codes do not have")
        if codes == "I32":
            return self.integers_in_words()
        if codes == "I8":
            self.expect("scale", FLOATS)
            return self.integers("int8", self.matrix(), 8)
        self.expect("scale", FLOATS | POWERS)
        return self.float8()

    def of(self, role: str) -> TensorInfo:
        return self.tensors[self.members[role]]

    def expect(self, role: str, allowed: Iterable[str]) -> None:
        if self.of(role).dtype not in allowed:
            raise Mismatch(
                f"{self.members[role]}: expected {' or '.join(sorted(allowed))}, found {self.of(role).dtype}"
            )

    def matrix(self) -> tuple[int, ...]:
        shape = self.of("codes").shape
        if len(shape) not in (2, 3) or not all(shape):
            raise Mismatch(f"{self.members['codes']}: expected a matrix or one for each expert, found {list(shape)}")
        return shape

    def expect_shape(self, role: str, *allowed: Iterable[int]) -> None:
        shapes = [list(shape) for shape in allowed]
        if list(self.of(role).shape) not in shapes:
            raise Mismatch(
                f"{self.members[role]}: expected shape {' or '.join(map(str, shapes))}, found "
                f"{list(self.of(role).shape)} beside {list(self.of('codes').shape)} of {self.members['codes']}"
            )

    def made(
        self,
        scheme: str,
        shape: tuple[int, ...],
        bits: int = 8,
        groups: int | None = None,
        block: tuple[int, int] | None = None,
        nested: tuple[int, float] | None = None,
    ) -> QuantisedTensor:
        return QuantisedTensor(
            scheme,
            tuple(shape),
            self.members,
            self.hints.block if block is None else block,
            bits,
            divided=self.members["codes"].endswith("_packed"),
            zero_plus_one=self.hints.zero_plus_one,
            groups=groups,
            nested=nested,
            bytes=sum(self.tensors[name].end - self.tensors[name].begin for name in self.members.values()),
        )

    def float8(self) -> QuantisedTensor:
        """Return a weight of E4M3 codes; the scale's shape tells the groups."""
        *lead, rows, _ = shape = self.matrix()
        scale = self.of("scale")
        if scale.dtype in POWERS:
            return self.by_columns("mxfp8", 32)
        scale_shape = list(scale.shape)
        # One block has the formula of one scale; the configuration names the scheme.
        if scale_shape in self.grids() and (self.hints.block_is_said or len(scale_shape) == len(shape) + 2):
            return self.made("fp8-block", shape)
        if math.prod(scale_shape) == 1 or (
            lead and [size for size in scale_shape if size != 1] == [size for size in lead if size != 1]
        ):
            return self.made("fp8-tensor", shape)
        if scale_shape in ([*lead, rows], [*lead, rows, 1]):
            return self.made("fp8-channel", shape)
        return self.block()

    def grids(self) -> list[list[int]]:
        *lead, rows, columns = self.matrix()
        down, across = -(-rows // self.hints.block[0]), -(-columns // self.hints.block[1])
        return [[*lead, down, across], [*lead, down, 1, across, 1]]

    def block(self) -> QuantisedTensor:
        self.expect_shape("scale", *self.grids())
        return self.made("fp8-block", self.matrix())

    def by_columns(self, scheme: str, group: int, pairs: bool = False) -> QuantisedTensor:
        """Return a weight with a scale per `group` columns; `pairs`: two columns per byte."""
        *lead, rows, stored = self.matrix()
        columns = stored * (2 if pairs else 1)
        if columns % group:
            raise Mismatch(f"{self.members['codes']}: expected a multiple of {group} columns, found {columns}")
        self.expect_shape("scale", [*lead, rows, columns // group])
        if "global" in self.members and math.prod(self.of("global").shape) != 1:
            self.expect_shape("global", lead, [*lead, 1, 1])
        return self.made(scheme, (*lead, rows, columns))

    def integers_in_words(self) -> QuantisedTensor:
        """Return a weight of integers in a bit stream; a further tensor has its shape."""
        *lead, rows, words = self.matrix()
        if "shape" not in self.members:
            raise Mismatch(f"{self.members['codes']}: expected its shape in a tensor beside it, found none")
        self.expect("shape", {"I64", "I32"})
        self.expect("scale", FLOATS)
        if math.prod(self.of("shape").shape) != len(lead) + 2:
            raise Mismatch(f"{self.members['shape']}: expected {len(lead) + 2} sizes, found {self.of('shape').shape}")
        true_shape = [int(size) for size in self.read(self.members["shape"]).reshape(-1)]
        if true_shape[:-1] != [*lead, rows] or not 0 < true_shape[-1] <= MAX_ENTRIES:
            raise Mismatch(
                f"{self.members['shape']} says {true_shape}, the words of {rows} rows are {[*lead, rows, words]}"
            )
        fitting = [bits for bits in range(1, 9) if -(-true_shape[-1] * bits // 32) == words]
        if self.hints.bits and len(fitting) != 1:
            fitting = [bits for bits in fitting if bits in self.hints.bits]
        if len(fitting) != 1:
            raise Mismatch(
                f"{self.members['codes']}: {words} words for {true_shape[-1]} columns, which "
                + ("fits no width of integers" if not fitting else f"may be {' or '.join(map(str, fitting))} bits each")
            )
        return self.integers("int-packed", tuple(true_shape), fitting[0])

    def integers(self, scheme: str, shape: tuple[int, ...], bits: int) -> QuantisedTensor:
        *lead, rows, columns = shape
        scale_shape = list(self.of("scale").shape)
        groups = scale_shape[-1] if len(scale_shape) == len(shape) else 1
        self.expect_shape(
            "scale", *([[*lead, rows, groups], [*lead, rows]] if math.prod(scale_shape) != 1 else [scale_shape])
        )
        self.expect_groups(columns, groups)
        if self.hints.zeros and "zero" not in self.members:
            raise Mismatch(f"{self.members['codes']}: the configuration says zero points, found none")
        if "zero" in self.members and scheme == "int8":
            self.expect("zero", {"I8"})
            self.expect_shape("zero", scale_shape)
        elif "zero" in self.members:
            self.expect("zero", {"I32"})
            self.expect_shape("zero", [*lead, -(-rows * bits // 32), groups])
        return self.made(scheme, shape, bits, groups)

    def expect_groups(self, columns: int, groups: int) -> None:
        """Check the stored order of columns; without one, groups divide the columns."""
        if "order" in self.members:
            self.expect("order", {"I32", "I64"})
            self.expect_shape("order", [columns])
            return
        if columns % groups:
            raise Mismatch(f"{self.members['scale']}: {groups} groups do not divide {columns} columns")
        if self.hints.ordered and groups > 1:
            raise Mismatch(f"{self.members['codes']}: the configuration says an order of columns, expected g_idx")
        cut = next((size for size in self.hints.groups if -(-columns // size) == groups), columns // groups)
        if columns % cut and columns // groups not in self.hints.groups:
            raise Mismatch(f"{self.members['scale']}: {groups} groups of {cut} columns do not divide {columns} columns")

    def integers_by_input(self) -> QuantisedTensor:
        """Return a weight in the transposed layout of GPTQ or AWQ, by its packing direction."""
        for role in ("scale", "zero"):
            if role not in self.members:
                name = self.members["codes"].removesuffix("qweight") + {"scale": "scales", "zero": "qzeros"}[role]
                raise Mismatch(f"{self.members['codes']}: expected {name} beside it, found none")
        self.expect("codes", {"I32"})
        self.expect("zero", {"I32"})
        self.expect("scale", FLOATS)
        codes, scale = self.of("codes").shape, self.of("scale").shape
        if len(codes) != 2 or len(scale) != 2 or not all(codes) or not all(scale):
            raise Mismatch(f"{self.members['codes']}: expected matrices, found {list(codes)} and {list(scale)}")
        groups, rows = scale
        if codes[1] * 8 == rows:
            scheme, columns, bits = "awq", codes[0], 4
            self.expect_shape("zero", [groups, codes[1]])
        elif codes[1] == rows:
            zeros = self.of("zero").shape
            fitting = [bits for bits in (2, 4, 8) if list(zeros) == [groups, rows * bits // 32]]
            if rows % 16 or len(fitting) != 1:
                raise Mismatch(
                    f"{self.members['zero']}: expected integers of 2, 4 or 8 bits for {[groups, rows]}, found "
                    f"{list(zeros)}"
                )
            scheme, bits = "gptq", fitting[0]
            columns = codes[0] * 32 // bits
        else:
            raise Mismatch(
                f"{self.members['scale']}: {list(scale)} fits neither GPTQ's nor AWQ's layout of {list(codes)} of "
                f"{self.members['codes']}"
            )
        self.expect_groups(columns, groups)
        return self.made(scheme, (rows, columns), bits, groups)
