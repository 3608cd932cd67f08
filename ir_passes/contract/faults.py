"""Faults of a contract, also of the packed tokens of a call."""

from ir_passes.contract.statements import StatedError, StatementId


class ContractFault(StatementId):
    """Faults of a contract: id and sentence."""

    ENTRY = "no-entry", "Something stands in the place of an entry that is none, or that cannot stand there."
    PREFIX = "no-prefix", "The entries are no pytree prefix of the arguments or results."
    ARGUMENTS = "arguments", "There is not one entry for each argument."
    AXIS = "axis", "An entry names an axis that its array does not have."
    ROLE = "role", "An entry has a role that does not exist, or that it cannot have there."
    ARRAY = "array", "An array has another dtype or shape than its entry needs."
    NO_LANES = "no-lanes", "No entry says how many lanes the step has."
    LANES = "lanes", "Lane axes have different lengths."
    PACKED = "packed", "Packed axes of a layout differ in length, or not one entry tells the lane of each token."
    INPUT = "input", "An output has an entry that only inputs have."
    SIZE = "size", "A slot map or a page table has no rows."
    GROUP = "group", "A slot map or page table names a group that no pool belongs to."
    MAPS = "maps", "The pools of a group have no one map that says which rows are written."
    DIMS = "dims", "A pool has another number of dimensions than names of dimensions."
    ROWS = "rows", "A pool without a slot map does not have one row per lane."
    SUCCESSOR = "successor", "An output pool has no input pool of the same shape, dtype and entry to succeed."
    OPAQUE = "opaque", "A declaration of an operation says something that no operation can do."
    OPAQUE_NAME = "opaque-name", "A declaration is for all operations of one primitive."
    TOKENS = "tokens", "A measurement names an array that has no tokens of lanes."
    ACCEPTED = "accepted", "A measurement needs one output that counts accepted tokens."
    NOT_MEASURED = "not-measured", "Dependence is not measured of packed page tables."
    SHAPE = "shape", "cu_seqlens or the segment ids have another shape than the step needs."
    BEGIN = "begin", "cu_seqlens does not begin with 0."
    FALLS = "falls", "cu_seqlens or a segment id falls."
    END = "end", "cu_seqlens goes past the last token."
    RANGE = "range", "A segment id is no lane."
    DISAGREE = "disagree", "The segment ids are not those of cu_seqlens."
    NO_TOKEN = "no-token", "A lane has no token where each must have one."
    NULL_ROW = "null-row", "A lane without tokens does not stand on the null row."

    def error(self, about: str, message: str) -> "ContractError":
        return ContractError(self.fault(about, message))


class ContractError(StatedError, ValueError):
    """A contract does not fit the function or the arguments; `ContractFault` lists the ids."""
