"""Table of JAX's primitives and their classes for proof, sanitizer, liveness and rewrites.

A primitive is in one row, and the row names all its classes:

* elementwise: an element of a result depends only on the operands' elements at the same position.
* identity: each result is the operand at the same position.
* move: every result holds all elements of one operand, in another shape, order or dtype. Zeros stay zeros.
* part: a result holds some elements of one operand, in their order.
* view: if operand and result have equally many bytes, the result is the operand's bytes.
* keeps_rows: the proof's rule follows the rows of a pool. Every other primitive changes all rows.
* indexed: operands are indices, or indices and updates. Rows are rows of the first operand.
* write: the result is the first operand with updates at the indices.
* scatter: a write by an array of indices.
* combining: a scatter that combines old and new elements.
* reduction: the parameter `axes` names axes that the result lacks.
* cumulative: running results along the parameter `axis`.
* device_sum: a sum over the devices of mesh axes.
* body: programs inside it run on its operands.
* scalar_body: a program inside it combines two scalars, without scratch memory.
* opaque: its inside is another language.
* kernel: a Pallas kernel.

Other primitives have no class.
"""

CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "custom_vmap_call": "call",
    "eval_jaxpr": "call_jaxpr",
}
"""Calls that only name a computation -> parameter with the body."""

_ROWS = {
    "elementwise": """
        abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex
        conj cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac
        imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to max min mul mulhi ne neg nextafter
        not one_minus_square or philox2x32 philox4x32 polygamma polynomial population_count pow real rem round rsqrt
        shift_left shift_right_arithmetic shift_right_logical sign sin sinh sqrt square sub tan tanh threefry2x32
        threefry4x32 xor zeta
    """,
    "elementwise keeps_rows": "select_n",
    "elementwise move keeps_rows": "convert_element_type",
    "elementwise move": "reduce_precision",
    "identity move keeps_rows": "copy device_put layout_constraint optimization_barrier reshard",
    "identity move view keeps_rows": "name pvary sharding_constraint stop_gradient",
    "move view keeps_rows": "reshape squeeze broadcast_in_dim",
    "move view": "bitcast_convert_type",
    "move": "tile transpose rev",
    "part keeps_rows": "slice split unstack",
    "indexed keeps_rows": "gather dynamic_slice",
    "indexed write keeps_rows": "dynamic_update_slice",
    "indexed write scatter scalar_body keeps_rows": "scatter",
    "indexed write scatter combining scalar_body keeps_rows":
        "scatter-add scatter-mul scatter-min scatter-max scatter-sub",
    "reduction": "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor argmax argmin",
    "cumulative": "cumsum cumprod cummax cummin cumlogsumexp",
    "scalar_body": "reduce reduce_window select_and_scatter",
    "device_sum": "psum psum_invariant",
    "body keeps_rows": "cond scan shard_map while " + " ".join(CALLS),
    "body": "custom_linear_solve",
    "kernel opaque keeps_rows": "pallas_call mpmd_map",
    "opaque keeps_rows": "ffi_call pure_callback io_callback debug_callback debug_print",
}  # fmt: skip

PRIMITIVES = {name: frozenset(classes.split()) for classes, names in _ROWS.items() for name in names.split()}
"""Primitive -> classes, of jax 0.10 to 0.12."""


def _having(label: str) -> frozenset[str]:
    return frozenset(name for name, classes in PRIMITIVES.items() if label in classes)


ELEMENTWISE = _having("elementwise")
IDENTITIES = _having("identity")
MOVES = _having("move")
PARTS = _having("part")
VIEWS = _having("view")
KEEPS_ROWS = _having("keeps_rows")
INDEXED = _having("indexed")
WRITES = _having("write")
SCATTERS = _having("scatter")
COMBINING = _having("combining")
REDUCTIONS = _having("reduction")
CUMULATIVE = _having("cumulative")
DEVICE_SUMS = _having("device_sum")
WITH_BODIES = _having("body")
SCALAR_BODIES = _having("scalar_body")
OPAQUE = _having("opaque")
KERNELS = _having("kernel")
