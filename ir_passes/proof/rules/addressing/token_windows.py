"""Rules for neighbouring tokens: shifted arrays, associative scans, loops over tokens.

A shifted array, or the carry of a loop, may hold another lane's token. A select by a mask `WithinLane` takes an element
only if its token belongs to the same lane. Multiplying by the mask is not enough: zero times nan is nan.

`lax.associative_scan` takes every second token, combines neighbours and interleaves the results. A select by the flag
of the right part gives each element the lane of its last token, in reverse of its first token: the flag is false only
if no lane begins in between.

More than 300 lines: one rule for each operation on neighbouring tokens.
"""

from dataclasses import replace

from ir_passes.jaxpr.primitives import ELEMENTWISE, OPAQUE, WITH_BODIES
from ir_passes.proof.numbering import Number
from ir_passes.proof.owners import Common, LaneRows, Mixed, OneLane, Owner, Symbol, axis_of, moved
from ir_passes.proof.rules.addressing import token_layout
from ir_passes.proof.rules.addressing.access import Access, constant_of, of_gather
from ir_passes.proof.rules.addressing.index_sums import axes_of, entry_of, sum_of, total, with_axes
from ir_passes.proof.site import Site
from ir_passes.proof.values import (
    Fact,
    IndexSum,
    Iota,
    LaneOfToken,
    Mask,
    OffsetEntry,
    PlacedToken,
    PreviousLane,
    TokenAt,
    TokenSpan,
    Value,
    WithinLane,
)


def neighbour(site: Site, token: Symbol, reverse: bool) -> Symbol:
    """Return the previous token of a loop; `reverse`: the last token is first."""
    number: Number = site.prover.number(("previous iteration", reverse), token.number)
    return Symbol(number, token.size)


def carried(site: Site, value: Value, tokens: dict[OneLane, bool]) -> Value | None:
    """Return the next iteration's carry; `tokens`: token -> True in the opposite order."""
    owner, fact = value.owner, value.fact
    if isinstance(fact, LaneOfToken) and isinstance(owner, Common):
        in_order = tokens.get(OneLane(fact.token, packed=fact.layout)) is False
        return value.replace(fact=PreviousLane(fact.token, fact.layout, fact.padding)) if in_order else None
    if not isinstance(owner, OneLane) or not isinstance(owner.lane, Symbol) or owner not in tokens:
        return None
    return value.replace(owner=replace(owner, lane=neighbour(site, owner.lane, tokens[owner])), fact=None)


def selected(site: Site, operands: list[Value], result: Value) -> Value:
    mask, *cases = operands
    fact = mask.fact
    if len(cases) != 2 or not isinstance(result.owner, Mixed | LaneRows | OneLane):
        return result
    if isinstance(fact, Mask):
        return _by_padding(site, mask, cases, result)
    if not isinstance(fact, WithinLane) or (fact.axis is not None and site.shapes[0] != site.shape):
        return result
    if fact.axis is not None:
        return _within(site, fact, mask, cases, result)
    owners = [case.owner for case in cases]
    if not fact.token or owners[fact.when] != OneLane(neighbour(site, fact.token, fact.back < 0), packed=fact.layout):
        return result
    owners[fact.when] = OneLane(fact.token, packed=fact.layout)
    return _joined(site, mask, owners, result)


def _joined(site: Site, mask: Value, owners: list[Owner], result: Value) -> Value:
    owner = site.join(mask.owner, *owners)
    changed = not isinstance(owner, Mixed) and owner != result.owner
    return result.replace(owner=owner, fact=None) if changed else result


def _by_padding(site: Site, mask: Value, cases: list[Value], result: Value) -> Value:
    for when, case in enumerate(cases):
        owner = case.owner
        if not isinstance(owner, LaneRows | OneLane) or not owner.packed:
            continue
        index = token_layout.token_of_owner(owner)
        is_aligned = isinstance(owner, OneLane) or site.shapes[0] == site.shape
        real = is_aligned and index and token_layout.padding_of(site, mask.fact, bool(when), owner.packed, index)
        if not real:
            continue
        other = cases[not when].owner
        owners = [owner, owner if real == "exact" else other]
        return _joined(site, mask, owners, result)
    return result


def _within(site: Site, fact: WithinLane, mask: Value, cases: list[Value], result: Value) -> Value:
    """Select by a `WithinLane` mask: where it is `when`, tokens belong to the row's lane."""
    assert fact.axis is not None
    axis, length = fact.axis, site.shape[fact.axis]
    row_span = TokenSpan(fact.layout, axis, fact.shift, 1 if length == 1 else fact.stride)
    other_operands = [value for value in (mask, cases[not fact.when]) if not isinstance(value.owner, Common)]
    case = cases[fact.when]
    span = _span_of_places(site, case.fact, row_span) if _gathered_windows(case) else _span(site, case, axis, length)
    if span is None or any(_span(site, value, axis, length) != row_span for value in other_operands):
        return result
    low, high = span.start - fact.shift - span.back, span.start - fact.shift + span.ahead
    is_within = -fact.back <= low and high <= 0 if fact.back > 0 else 0 <= low and high <= -fact.back
    is_in_line = replace(span, start=row_span.start, back=0, ahead=0) == row_span
    return _with_span(site, result, row_span, length) if is_within and is_in_line else result


def _gathered_windows(value: Value) -> bool:
    return isinstance(value.owner, Mixed) and isinstance(value.fact, TokenAt)


def _span(site: Site, value: Value, axis: int | None, length: int) -> TokenSpan | None:
    fact, owner = value.fact, value.owner
    if isinstance(owner, LaneRows) and owner.packed:
        is_plain = owner == LaneRows(owner.axis, start=owner.start, packed=owner.packed)
        fact = TokenSpan(owner.packed, owner.axis, owner.start) if is_plain else None
    elif isinstance(owner, OneLane) and owner.packed and isinstance(owner.lane, int):
        fact = TokenSpan(owner.packed, None, owner.lane) if owner == OneLane(owner.lane, packed=owner.packed) else None
    elif not isinstance(owner, Mixed):
        return None
    if not isinstance(fact, TokenSpan):
        return None
    if fact.axis is None and axis is not None and length == 1:
        fact = replace(fact, axis=axis)
    return fact if axis is None or fact.axis == axis else None


def _span_of_places(site: Site, fact: Fact | None, row_span: TokenSpan) -> TokenSpan | None:
    """Return the tokens for all indices of the other axes."""
    assert isinstance(fact, TokenAt) and row_span.axis is not None
    rest = total([*fact.place.terms, (Iota(row_span.axis), -row_span.stride)], fact.place.by)
    if row_span.axis in axes_of(rest) or not all(isinstance(term, Iota) for term, _ in rest.terms):
        return None
    ends = [factor * (site.shape[term.axis] - 1) for term, factor in rest.terms if isinstance(term, Iota)]
    first, last = rest.by + sum(min(end, 0) for end in ends), rest.by + sum(max(end, 0) for end in ends)
    return replace(
        row_span,
        layout=fact.layout,
        back=row_span.start - first + fact.back,
        ahead=last - row_span.start + fact.ahead,
    )


def _with_span(site: Site, result: Value, span: TokenSpan | None, length: int) -> Value:
    if span is None:
        return result
    span = replace(span, stride=1) if length == 1 else span
    ends = span.start, span.start + span.stride * (length - 1)
    token_count = site.prover.bound.layouts[span.layout]
    if (span.back, span.ahead) == (0, 0) and token_count is not None and 0 <= min(ends) and max(ends) < token_count:
        if length == 1:
            return result.replace(owner=OneLane(span.start, packed=span.layout), fact=None)
        if span.stride == 1 and span.axis is not None:
            return result.replace(owner=LaneRows(span.axis, start=span.start, packed=span.layout), fact=None)
    return result.replace(fact=span) if isinstance(result.owner, Mixed) else result


def _hull(spans: list[TokenSpan]) -> TokenSpan | None:
    first = spans[0]
    if any(replace(span, start=first.start, back=first.back, ahead=first.ahead) != first for span in spans):
        return None
    start = max(span.start for span in spans)
    most_back = max(start - span.start + span.back for span in spans)
    most_ahead = max(span.start + span.ahead - start for span in spans)
    return replace(first, start=start, back=most_back, ahead=max(most_ahead, 0))


def gathered(site: Site, operands: list[Value], result: Value) -> Value:
    """Return tokens at a distance or at places in lanes, selected by an index.

    Examples: `x[maximum(arange(tokens) - 1, 0)]`, `x[t[:, None] - arange(width)]`.
    """
    span, access = _span(site, operands[0], None, 0), of_gather(site, operands[1])
    if not isinstance(result.owner, Mixed) or span is None or access.paired or span.axis not in access.columns:
        return result
    if any(constant_of(value) is None for dim, value in access.columns.items() if dim != span.axis):
        return result
    tokens = site.prover.bound.layouts[span.layout]
    if tokens is None or span.start > 0 or (span.stride, span.back, span.ahead) != (1, 0, 0):
        return result
    row = _gathered_row(access.columns[span.axis], access, span.axis, tokens - span.start)
    if row is None or (span.start and access.sizes[span.axis] != 1):
        return result
    ((term, factor),) = row.terms if len(row.terms) == 1 else ((None, 0),)
    if isinstance(term, Iota) and factor == 1:
        return result.replace(fact=replace(span, axis=term.axis, start=span.start + row.by))
    return result.replace(fact=TokenAt(span.layout, replace(row, by=span.start + row.by)))


def _gathered_row(index: Value, access: Access, axis: int, rows: int) -> IndexSum | None:
    """Return the row of a gather for each element; rows not below `rows` are unspecified."""
    row, size = sum_of(index), access.sizes[axis]
    if row is None or not row.terms or not isinstance(index.owner, Common):
        return None
    is_plain = all(
        isinstance(term, Iota) or (isinstance(term, OffsetEntry) and not term.of_token) for term, _ in row.terms
    )
    is_start = entry_of(row) is not None and not row.by and axis in access.window
    # An index past the last row is no token; a clamped window moves.
    last = access.full[axis] - size + (size == 1)
    if not is_plain or (size != 1 and not is_start) or min(last, last if row.below is None else row.below) < rows:
        return None
    if max(axes_of(row), default=0) >= len(access.index_axes):
        return None
    place = with_axes(lambda old: access.index_axes[old])(replace(row, below=None))
    return place if size == 1 or place is None else total([*place.terms, (Iota(access.window[axis]), 1)])


def joined(site: Site, operands: list[Value], result: Value) -> Value:
    """Return the tokens of a concatenation.

    They are in line in every part, or in the longest, as for `jnp.roll`.
    """
    axis = site.params["dimension"]
    lengths = [shape[axis] for shape in site.shapes]
    spans = [_span(site, value, axis, length) for value, length in zip(operands, lengths, strict=True)]
    places = [sum(lengths[:k]) for k in range(len(lengths))]
    if not isinstance(result.owner, Mixed):
        return result
    in_line = _span_in_line(spans, lengths, places)
    if in_line is not None:
        return _with_span(site, result, in_line, site.shape[axis])
    single_tokens = [_span(site, value, None, 0) for value in operands] if set(lengths) == {1} else []
    windows = _at_distances(single_tokens, axis)
    if windows is not None:
        return result.replace(fact=windows)
    longest = lengths.index(max(lengths))
    span, place = spans[longest], places[longest]
    token_count = None if span is None else site.prover.bound.layouts[span.layout]
    if span is None or token_count is None or (span.stride, span.back, span.ahead) != (1, 0, 0):
        return result
    start = span.start - place
    reaches_first, reaches_last = start + place <= 0, start + place + lengths[longest] >= token_count
    if (place and not reaches_first) or (place + lengths[longest] < site.shape[axis] and not reaches_last):
        return result
    return result.replace(fact=replace(span, start=start))


def stacked(site: Site, operands: list[Value], result: Value) -> Value:
    new_axis, spans = int(site.params["axis"]), [_span(site, value, None, 0) for value in operands]
    moved_spans = [
        replace(span, axis=span.axis + (span.axis >= new_axis)) for span in spans if span and span.axis is not None
    ]
    is_stacked = isinstance(result.owner, Mixed) and len(moved_spans) == len(spans)
    windows = _at_distances([*moved_spans], new_axis) if is_stacked else None
    return result if windows is None else result.replace(fact=windows)


def _at_distances(spans: list[TokenSpan | None], axis: int) -> TokenAt | None:
    """Return the tokens of parts, one for each index of `axis`, at equal distances."""
    first, second = (*spans, None, None)[:2]
    if first is None or second is None or first.axis in (None, axis):
        return None
    distance = second.start - first.start
    is_in_line = all(span == replace(first, start=first.start + distance * k) for k, span in enumerate(spans))
    if not is_in_line:
        return None
    place = total([(Iota(first.axis), first.stride), (Iota(axis), distance)], first.start)
    return TokenAt(first.layout, place, first.back, first.ahead)


def _span_in_line(spans: list[TokenSpan | None], lengths: list[int], places: list[int]) -> TokenSpan | None:
    known_spans = [span for span in spans if span is not None]
    if len(known_spans) < len(spans) or len(known_spans) < 2:
        return None
    strides = {span.stride for span, length in zip(known_spans, lengths, strict=True) if length > 1}
    stride = strides.pop() if strides else known_spans[1].start - known_spans[0].start
    if strides:
        return None
    starts = [span.start - stride * place for span, place in zip(known_spans, places, strict=True)]
    pairs = zip(known_spans, starts, strict=True)
    return _hull([replace(span, start=s, stride=stride) for span, s in pairs]) if len({*starts}) == 1 else None


def computed(site: Site, operands: list[Value], result: Value) -> Value:
    pairs = zip(operands, site.shapes, strict=True)
    values = [(value, shape) for value, shape in pairs if not isinstance(value.owner, Common)]
    if site.name not in ELEMENTWISE or not isinstance(result.owner, Mixed) or not values:
        return result
    if all(_gathered_windows(value) and value.fact == values[0][0].fact for value, _ in values):
        return result.replace(fact=values[0][0].fact) if all(shape == site.shape for _, shape in values) else result
    placed_facts = [value.fact for value, _ in values if isinstance(value.fact, PlacedToken)]
    if placed_facts and all(shape == site.shape for _, shape in values):
        other_values = [value for value, _ in values if value.fact not in placed_facts]
        return _interleaved(site, placed_facts, other_values, result)
    axes = {span.axis for value, _ in values if (span := _span(site, value, None, 0)) is not None} - {None}
    axis = axes.pop() if len(axes) == 1 else None
    length = 1 if axis is None else site.shape[axis]
    spans = [_span(site, value, axis, length) for value, _ in values]
    known_spans = [span for span in spans if span is not None]
    full_length = axis is None or all(len(shape) == len(site.shape) and shape[axis] == length for _, shape in values)
    if axes or len(known_spans) < len(spans) or not full_length:
        return result
    return _with_span(site, result, _hull(known_spans), length)


def row_by_row(site: Site, operands: list[Value], results: list[Value]) -> list[Value]:
    """Return the tokens of rows that an operation keeps apart.

    Its rule shows it for rows of another layout: then row r of a result depends on rows r of the operands alone.
    """
    values = [value for value in operands if not isinstance(value.owner, Common)]
    spans = [span for value in values if (span := _span(site, value, None, 0)) is not None and span.axis is not None]
    is_known = any(value.fact or not isinstance(value.owner, Mixed) for value in results)
    if is_known or not spans or len(spans) < len(values) or site.name in WITH_BODIES | OPAQUE:
        return results
    hull, axes = _hull([replace(span, axis=0) for span in spans]), (span.axis or 0 for span in spans)
    layout = "".join(site.prover.bound.layouts) + "rows"  # of no array
    rows = [
        value if isinstance(value.owner, Common) else Value(LaneRows(next(axes), packed=layout), range=value.range)
        for value in operands
    ]
    with site.prover.trial():
        owners = [value.owner for value in site.by_rule(rows)]
    return [
        value.replace(fact=replace(hull, axis=axis_of(owner)))
        if hull and moved(owner, 0) == LaneRows(0, packed=layout) and isinstance(value.owner, Mixed)
        else value
        for value, owner in zip(results, owners, strict=True)
    ]


def _interleaved(site: Site, placed_facts: list[PlacedToken], other_operands: list[Value], result: Value) -> Value:
    first = placed_facts[0]
    length = site.shape[first.axis]
    spans = [_span(site, value, first.axis, length) for value in other_operands]
    if len(placed_facts) == 2 and not spans and placed_facts[0].place != placed_facts[1].place:
        stride, rest = divmod(placed_facts[1].token - first.token, placed_facts[1].place - first.place)
        spans = [TokenSpan(first.layout, first.axis, first.token - stride * first.place, stride)]
        if rest or length != 2:
            return result
    axes = {(fact.layout, fact.axis) for fact in placed_facts}
    if len(spans) != 1 or spans[0] is None or axes != {(spans[0].layout, first.axis)}:
        return result
    span = spans[0]
    is_in_line = all(span.start + span.stride * fact.place == fact.token for fact in placed_facts)
    return _with_span(site, result, span, length) if is_in_line else result


def in_line(site: Site, operands: list[Value], result: Value) -> Value:
    """Return the tokens of a slice, or in the opposite order."""
    span = _span(site, operands[0], None, 0)
    if not isinstance(result.owner, Mixed) or span is None or span.axis is None:
        return result
    first, step = token_layout.places_of(site, span.axis)
    span = replace(span, start=span.start + span.stride * first, stride=span.stride * step)
    return _with_span(site, result, span, site.shape[span.axis or 0])


def padded(site: Site, operands: list[Value], result: Value) -> Value:
    x, filler = operands
    config = [tuple(map(int, amounts)) for amounts in site.params["padding_config"]]
    changed = [axis for axis, amounts in enumerate(config) if any(amounts)]
    if not isinstance(filler.owner, Common) or len(changed) != 1:
        return result
    (axis,) = changed
    low, high, gap = config[axis]
    length = site.shapes[0][axis]
    span = _span(site, x, axis, length)
    if span is None or min(low, high) < 0 or site.shape[axis] == 1:
        return result
    if length == 1:
        is_one_lane = isinstance(x.owner, OneLane) and result.owner == x.owner
        return result.replace(fact=PlacedToken(span.layout, axis, low, span.start)) if is_one_lane else result
    if span.stride % (gap + 1) or not isinstance(result.owner, Mixed | OneLane):
        return result
    stride = span.stride // (gap + 1)
    return _with_span(site, result, replace(span, start=span.start - stride * low, stride=stride), site.shape[axis])
