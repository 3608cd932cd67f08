"""Contractions, convolutions and decompositions."""

from ir_passes.contract.statements import Assumption
from ir_passes.proof import refusals
from ir_passes.proof.assumed import assume_at
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, axis_of, moved
from ir_passes.proof.registry import rule
from ir_passes.proof.site import Site
from ir_passes.proof.uniformity import disordered, reveals_places
from ir_passes.proof.values import Counts, Value

_ROUNDING = "out_sharding precision preferred_element_type"


@rule("dot_general", reads="dimension_numbers", ignores=_ROUNDING)
def dot_general(site: Site, x: Value, y: Value) -> list[Value]:
    """Multiply; lanes are a batch dimension or one operand's free dimension."""
    contract, batch = site.params["dimension_numbers"]
    owners, free_before = [], len(batch[0])
    for value, shape, summed, paired in zip((x, y), site.shapes, contract, batch, strict=True):
        free = [d for d in range(len(shape)) if d not in summed and d not in paired]
        axis = axis_of(value.owner)
        if axis is None:
            owners.append(value.owner)
        elif axis in paired:
            owners.append(moved(value.owner, tuple(paired).index(axis)))
        elif axis in free:
            owners.append(moved(value.owner, free_before + free.index(axis)))
        else:
            owners.append(site.mixed(*refusals.SUMMED_LANES(axis=axis)))
        free_before += len(free)
    owner = site.join(*owners)
    if isinstance(owner, LaneRows) and owner.order is not None and owner.axis < len(batch[0]):
        sides = zip((x, y), site.shapes, batch, strict=True)
        if any(reveals_places(value, shape, paired[owner.axis]) for value, shape, paired in sides):
            owner = site.mixed(*refusals.MATRIX_OF_EACH_PLACE)
    return [Value(owner)]


@rule("ragged_dot_general", reads="ragged_dot_dimension_numbers", ignores=_ROUNDING, accepts={"group_offset": (None,)})
def ragged_dot(site: Site, x: Value, groups: Value, sizes: Value, *rest: Value) -> list[Value]:
    """Multiply rows by the matrix of their group.

    Rows must be sorted by the keys that the sizes count.
    """
    numbers = site.params["ragged_dot_dimension_numbers"]
    contract, batch = numbers.dot_dimension_numbers
    ragged = tuple(numbers.lhs_ragged_dimensions)
    axis = axis_of(x.owner)
    if rest or batch[0] or ragged != (0,) or not isinstance(groups.owner, Common | OneLane) or axis not in (None, 0):
        return [Value(site.mixed(*refusals.RAGGED_FORM))]
    if axis == 0 and contract[0] and 0 in contract[0]:
        return [Value(site.mixed(*refusals.SUMMED_LANES(axis=0)))]
    if isinstance(x.owner, Mixed):
        return [Value(x.owner)]
    if isinstance(sizes.owner, Common | OneLane) and not disordered(x.owner):
        if not isinstance(x.owner, Common):
            assume_at(site, Assumption.UNGROUPED_ROWS)
        return [Value(site.join(x.owner, groups.owner, sizes.owner))]
    owner = x.owner
    sorted_by = site.prover.sort_keys.get(owner.order) if isinstance(owner, LaneRows) and owner.order else None
    if isinstance(sizes.fact, Counts) and sorted_by is not None and sizes.fact.key == sorted_by:
        if not sizes.fact.every:
            assume_at(site, Assumption.UNGROUPED_ROWS)
        return [Value(site.join(owner, groups.owner))]
    return [Value(site.mixed(*refusals.OTHER_SORT_KEYS))]


@rule(
    "conv_general_dilated",
    reads="dimension_numbers batch_group_count",
    ignores=f"{_ROUNDING} feature_group_count lhs_dilation padding rhs_dilation window_strides",
)
def convolution(site: Site, x: Value, kernel: Value) -> list[Value]:
    """Convolve: lanes are the batch dimension of the input."""
    numbers = site.params["dimension_numbers"]
    axis, owner = axis_of(x.owner), x.owner
    if axis is not None:
        if axis == numbers.lhs_spec[0] and site.params["batch_group_count"] == 1:
            owner = moved(owner, numbers.out_spec[0])
        else:
            owner = site.mixed(*refusals.CONVOLVED_LANES)
    return [Value(site.join(owner, site.apart(kernel.owner, range(len(site.shapes[1])), refusals.KERNEL_OF_LANES)))]


_OF_ONE_MATRIX = """
algorithm compute_left_eigenvectors compute_right_eigenvectors compute_schur_vectors compute_uv conjugate_a
enable_eigvec_derivs fft_type full_matrices implementation left_side lower permutation_size perturb_singular pivoting
sort_eig_vals sort_eigenvalues subset_by_index symmetrize_input transpose_a unit_diagonal use_magma
"""
"""Parameters of the operation on each matrix of a batch."""


@rule(
    "cholesky", "eig", "eigh", "fft", "householder_product", "lu", "lu_pivots_to_permutation", "qr", "schur", "svd",
    "triangular_solve", "tridiagonal", "tridiagonal_solve", reads="fft_lengths", ignores=_OF_ONE_MATRIX,
    accepts={"select_callable": (None,)},
)  # fmt: skip
def batched_matrices(site: Site, *operands: Value) -> list[Value]:
    matrix_dims = {"fft": len(site.params.get("fft_lengths", ())), "lu_pivots_to_permutation": 1}.get(site.name, 2)
    owners = []
    for k, (value, shape) in enumerate(zip(operands, site.shapes, strict=True)):
        diagonal = site.name == "tridiagonal_solve" and k < 3  # the last operand has right-hand sides as columns
        axes = range(len(shape) - (1 if diagonal else matrix_dims), len(shape))
        owners.append(site.apart(value.owner, axes, refusals.LANES_IN_A_MATRIX))
    owner = site.join(*owners)
    return [Value(owner) for _ in site.eqn.outvars]
