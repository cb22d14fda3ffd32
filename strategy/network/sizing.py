"""The functions of a library for its symbolic sizes, in C: their range, the arena's places, and extents."""

from __future__ import annotations

from strategy.network.extent import Extent
from strategy.network.graph import NetworkError
from strategy.network.plan import Place, Plan
from strategy.network.size import Size

_EXACT = 3  # sizes of 31 bits whose product with a number of bytes is within 128 bits


def sizes_of(plan: Plan) -> tuple[Size, ...]:
    return plan.sizes.sizes if plan.sizes else ()


def write_sizes(plan: Plan, extents: list[Extent]) -> list[str]:
    """The functions of the symbolic sizes: their range, the arena's places, extents, and how to read them."""
    sizes = sizes_of(plan)

    def known(kind: str) -> list[str]:
        return [f"  const {kind} {s.name} = _sizes[{i}]; (void){s.name};" for i, s in enumerate(sizes)]

    within = [f"_sizes[{i}] >= {s.low} && _sizes[{i}] <= {s.high}" for i, s in enumerate(sizes)]
    within += [f"{e.c} >= {low} && {e.c} <= {high}" for e, low, high in (plan.sizes.bounds if plan.sizes else ())]
    within += [f"{extent.c} > 0 && {extent.c} <= INT64_MAX" for extent in extents]
    buffers = dict.fromkeys(b for place in plan.places for b in place.bytes if isinstance(b, Extent))
    exceeding = [f"{b.c} >= (double)TOO_MANY" for b in buffers if b.degree > _EXACT]
    return [
        "static int _plevel_fits(const int64_t *_sizes) {",
        "  (void)_sizes;",
        *known("__int128"),
        f"  return {' && '.join(within) or '1'};",
        "}",
        "static int _plevel_exceeds(const int64_t *_sizes) {",
        "  (void)_sizes;",
        *known("double"),
        f"  return {' || '.join(exceeding) or '0'};",
        "}",
        "static uint64_t _plevel_arrange(const int64_t *_sizes, uint64_t *_at) {",
        "  if (_plevel_exceeds(_sizes)) return TOO_MANY;",
        *known("__int128"),  # products of sizes are within it, or exceeded what there may be
        "  __int128 _end = 0, _most = 0, _bytes; (void)_sizes, (void)_at, (void)_bytes;",
        *(line for i, found in enumerate(plan.places) for line in _arranged(i, found)),
        "  return _most < (__int128)TOO_MANY ? (uint64_t)_most : TOO_MANY;",
        "}",
        "static void _plevel_measure(const int64_t *_sizes, int64_t *_extents) {",
        "  (void)_sizes, (void)_extents;",
        *known("__int128"),  # a product that is divided may be beyond what it leaves
        *(f"  _extents[{i}] = (int64_t)({extent.c});" for i, extent in enumerate(extents)),
        "}",
        "static void _plevel_read(const Tensor *const *_given, int64_t *_sizes) {",
        "  (void)_given, (void)_sizes;",
        *(f"  _sizes[{i}] = {_reading(plan, i)};" for i in range(len(sizes))),
        "}",
    ]


def _arranged(index: int, found: Place) -> list[str]:
    begin = "" if found.offset is None else f" _end = {found.offset};"
    first, *more = [f"(__int128)({b if isinstance(b, int) else b.c})" for b in found.bytes]
    return [
        f" {begin} _at[{index}] = (uint64_t)_end; _bytes = {first};",
        *(f"  _bytes = MAX(_bytes, {other});" for other in more),  # one by one: the macro has its operands twice
        "  _end += (_bytes + PLEVEL_ALIGNMENT - 1) & -(__int128)PLEVEL_ALIGNMENT;",
        "  _most = MAX(_most, _end);",
    ]


def _reading(plan: Plan, index: int) -> str:
    """The value of a size, in C, from an input with an axis of that size, or of a multiple and a summand."""
    assert plan.sizes is not None
    ((one, _),) = plan.sizes.symbols[index].terms
    for number, port in enumerate(plan.inputs):
        for axis, extent in enumerate(plan.encoded(port.type)):
            factors = dict(extent.terms) if isinstance(extent, Extent) else {}
            rest = factors.pop((), 0)
            if factors.keys() == {one}:
                return f"(int64_t)(((__int128)_given[{number}]->shape[{axis}] - ({rest})) / {factors[one]})"
    name = plan.sizes.names[index]
    raise NetworkError(f"no axis of an input is of the symbolic size {name}: compile it with a fixed one")
