"""The compiler without models: contracts, proofs, compilation and scratch plans of JAX functions.

    from hybridlm.compiler import Lane, LaneContract, Pool, isolated

Named modules have the rest: `host` (owners of rows), `sanitizer`, `rewrites`, `scratch`, `stages`, `xla_audit`,
`planned`, `exported`, `measure`, `collectives`, `contract`, `targets` (machines to compile for), `statements` (ids of
violations and of what certificates state). The implementation is the package `ir_passes`.
"""

from hybridlm.compiler import collectives as collectives
from hybridlm.compiler import contract as contract
from hybridlm.compiler import exported as exported
from hybridlm.compiler import host as host
from hybridlm.compiler import measure as measure
from hybridlm.compiler import planned as planned
from hybridlm.compiler import rewrites as rewrites
from hybridlm.compiler import sanitizer as sanitizer
from hybridlm.compiler import scratch as scratch
from hybridlm.compiler import stages as stages
from hybridlm.compiler import statements as statements
from hybridlm.compiler import targets as targets
from hybridlm.compiler import xla_audit as xla_audit
from ir_passes import (
    AuditError,
    Certificate,
    CertificationWarning,
    CompiledStep,
    ContractError,
    IsolationError,
    Lane,
    LaneContract,
    Opaque,
    Packed,
    PageTable,
    Pool,
    Proof,
    Shared,
    SlotMap,
    Unspecified,
    compile_step,
    declassify,
    isolated,
    name_dims,
    plan,
    prove,
    prove_isolation,
    rowwise,
)

__all__ = [
    "AuditError",
    "Certificate",
    "CertificationWarning",
    "CompiledStep",
    "ContractError",
    "IsolationError",
    "Lane",
    "LaneContract",
    "Opaque",
    "Packed",
    "PageTable",
    "Pool",
    "Proof",
    "Shared",
    "SlotMap",
    "Unspecified",
    "compile_step",
    "declassify",
    "isolated",
    "name_dims",
    "plan",
    "prove",
    "prove_isolation",
    "rowwise",
]
