"""Normal form of a network: equal calculations become equal workloads, however a model spells them.

Constants are computed; factors and summands of channels move into the weights and the bias before them (batch
norms); reshapes move behind elementwise operators, so that these are the epilogue of a product; transposes meet. A
product that is read in parts becomes one for each, and attention reads heads where the products before it wrote them.
"""
# Over 300 lines: the rules of one normal form.

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from strategy.attrs import Attrs
from strategy.expr import Call, Constant, Expr, Tuple, TupleGetItem, call, post_order
from strategy.network.graph import Network
from strategy.network.size import PROBED
from strategy.op import Op, TOpPattern

_RESHAPES = frozenset({"reshape", "squeeze", "expand_dims"})
_PRODUCTS = frozenset({"dense", "conv2d"})  # whose second input has the outputs' channels first
_FOLDED = 1 << 28  # elements of a constant that is computed beforehand


def normalize(network: Network) -> Network:
    """The same network in normal form."""
    for _ in range(2):  # what becomes one operator has one reader more than it will have
        made = _Normal(network)
        outputs = {name: made.of(node) for name, node in network.outputs.items()}
        network = replace(network, outputs=outputs, names=made.names)
    return network


def extents(node: Expr) -> tuple[int, ...]:
    return node.tensor_type.concrete_shape


class _Normal:
    """The normal forms of a network's nodes; `uses` counts the readers of each, `divided` are read in parts only."""

    def __init__(self, network: Network) -> None:
        self.names: dict[Expr, str] = {}
        self.uses: Counter[Expr] = Counter()
        nodes = post_order(network.root)
        self._readers = Counter(i for n in nodes for i in n.inputs)
        self._made: dict[Expr, Expr] = {}
        self.divided: set[Expr] = set()
        readers: defaultdict[Expr, list[Expr]] = defaultdict(list)
        for node in nodes:
            for i in node.inputs:
                readers[i].append(node)
        for node in nodes[:-1]:
            found = self._rebuilt(node)
            self._made[node] = found
            self.uses[found] += self._readers[node]
            if _is_divided(node, readers[node]):
                self.divided.add(found)
            if node in network.names:
                self._name(found, network.names[node])

    def of(self, node: Expr) -> Expr:
        return self._made[node]

    def _name(self, node: Expr, name: str) -> None:
        """Name a node, and what it only shows in another shape."""
        self.names.setdefault(node, name)
        if isinstance(node, Call) and node.op.name == "reshape":
            self._name(node.args[0], name)

    def _rebuilt(self, node: Expr) -> Expr:
        inputs = [self._made[i] for i in node.inputs]
        if isinstance(node, Call):
            for i in inputs:
                self.uses[i] -= 1  # of the node that is now rebuilt
            found = self.call(node.op, inputs, node.attrs)
            for i in inputs:
                self.uses[i] += 1
            return found
        if isinstance(node, TupleGetItem):
            return inputs[0].fields[node.index] if isinstance(inputs[0], Tuple) else TupleGetItem(inputs[0], node.index)
        return Tuple(inputs) if isinstance(node, Tuple) else node

    def call(self, op: Op, args: list[Expr], attrs: Attrs, without: Rule | None = None) -> Expr:
        """The normal form of a call whose arguments have theirs."""
        plain = Call(op, args, attrs)
        for rule in _RULES:
            found = None if rule is without else rule(self, plain)
            if found is not None:
                return found
        return plain

    def make(self, name: str, *args: Expr, **attrs: Any) -> Expr:
        made = call(name, *args, **attrs)
        return self.call(made.op, list(made.args), made.attrs)

    def reshaped(self, node: Expr, shape: tuple[int, ...]) -> Expr:
        while isinstance(node, Call) and node.op.name == "reshape":
            node = node.args[0]
        if extents(node) == shape:
            return node
        if isinstance(node, Constant):
            return Constant(node.value.reshape(shape))
        return call("reshape", node, newshape=shape)

    def is_only(self, node: Expr) -> bool:
        """Return whether nobody else reads the node."""
        return self.uses[node] <= 0


Rule = Callable[[_Normal, Call], Expr | None]


def _compute(normal: _Normal, node: Call) -> Expr | None:
    """A constant in place of a call of constants."""
    from strategy.types import TensorType

    kind, reference = node.checked_type, node.op.get_attr("FReference")
    arrays: list[Any] = []
    for arg in node.args:
        fields = arg.fields if isinstance(arg, Tuple) else [arg]
        if not all(isinstance(f, Constant) for f in fields):
            return None
        arrays += [f.value for f in fields if isinstance(f, Constant)]
    if reference is None or not isinstance(kind, TensorType) or kind.size > _FOLDED:
        return None
    with np.errstate(invalid="ignore"):  # as of an infinity that is cast to integers, and not chosen then
        found = np.asarray(reference(node.attrs, arrays), kind.dtype, order="C")
    return Constant(found.reshape(kind.concrete_shape))


def _reshape(normal: _Normal, node: Call) -> Expr | None:
    return normal.reshaped(node.args[0], extents(node)) if node.op.name in _RESHAPES else None


def _behind(node: Expr) -> Expr | None:
    """The node that a reshape shows in another shape."""
    return node.args[0] if isinstance(node, Call) and node.op.name == "reshape" else None


def _sink_unary(normal: _Normal, node: Call) -> Expr | None:
    """The operator before the reshape."""
    if node.op.get_attr("TOpPattern") != TOpPattern.kElemWise or len(node.args) != 1:
        return None
    source = _behind(node.args[0])
    if source is None or not normal.is_only(node.args[0]):
        return None
    return normal.reshaped(normal.call(node.op, [source], node.attrs), extents(node))


def _sink_binary(normal: _Normal, node: Call) -> Expr | None:
    """The operator before the reshape of one operand, where the other can be broadcast or reshaped to it."""
    if node.op.get_attr("TOpPattern") != TOpPattern.kBroadcast or len(node.args) != 2:
        return None
    if node.attrs.fields():
        return None  # an axis, which is another one before the reshape
    # Of two reshapes that of a product, whose epilogue the operator can be.
    for place in sorted((0, 1), key=lambda i: not _is_product(_behind(node.args[i]))):
        arg, other = node.args[place], node.args[1 - place]
        source = _behind(arg)
        if source is None or not normal.is_only(arg) or extents(arg) != extents(node):
            continue
        fitting = _fit(normal, other, extents(node), extents(source))
        moves = fitting is not None and _behind(fitting) is not None and _behind(other) is None
        if fitting is None or (moves and (_is_product(other) or not _is_product(source))):
            continue  # a reshape would only change sides
        operands = [source, fitting] if place == 0 else [fitting, source]
        # A reshape of the other operand now would be sunk the other way, and so on.
        stays = _behind(fitting) is not None
        made = normal.call(node.op, operands, node.attrs, without=_sink_binary if stays else None)
        return normal.reshaped(made, extents(node))
    return None


def _is_product(node: Expr | None) -> bool:
    """Return whether the node is a product with what may be its epilogue."""
    patterns = (TOpPattern.kElemWise, TOpPattern.kBroadcast)
    while isinstance(node, Call) and node.op.get_attr("TOpPattern") in patterns:
        node = node.args[0]
    return isinstance(node, Call) and node.op.name in (*_PRODUCTS, "batch_matmul")


def _fit(
    normal: _Normal, other: Expr, shape: tuple[int, ...], wanted: tuple[int, ...]
) -> Expr | None:
    """An operand that broadcasts to `wanted` as it now does to `shape`."""
    given = extents(other)
    if given == shape:
        return normal.reshaped(other, wanted)
    significant = given[next((i for i, n in enumerate(given) if n != 1), len(given)) :]
    if not significant:
        return normal.reshaped(other, ())
    if len(significant) == 1 and significant[0] == shape[-1] == wanted[-1]:
        return normal.reshaped(other, significant)
    if [n for n in shape if n != 1] != [n for n in wanted if n != 1]:
        return None
    # Only axes of extent 1 come or go, as around a convolution of one dimension.
    whole = (1,) * (len(shape) - len(given)) + given
    kept = iter([own for own, n in zip(whole, shape, strict=True) if n != 1])
    return normal.reshaped(other, tuple(1 if n == 1 else next(kept) for n in wanted))


def _by_number(normal: _Normal, node: Call) -> Expr | None:
    """A sum or product with a number for a difference or quotient, where the result is rounded as before."""
    if node.op.name not in ("subtract", "divide"):
        return None
    value, by = node.args
    if not isinstance(by, Constant) or by.value.size != 1 or by.value.dtype.kind != "f":
        return None
    if node.op.name == "subtract":
        return normal.make("add", value, Constant(-by.value))
    if abs(math.frexp(by.value.item())[0]) != 0.5:  # no power of two: 41 · (1 / 41) is less than 1
        return None
    with np.errstate(over="ignore"):
        factor = np.asarray(1 / by.value, by.value.dtype)
    return normal.make("multiply", value, Constant(factor)) if np.isfinite(factor) else None


def _activation(normal: _Normal, node: Call) -> Expr | None:
    """Use gelu for x · ½ · (1 + erf(x/√2)) and its form by tanh, and silu for x · sigmoid(x)."""
    if node.op.name != "multiply":
        return None
    factors: list[Expr] = []
    waiting = [node]
    while waiting:
        found = waiting.pop()
        for arg in found.args:
            if isinstance(arg, Call) and arg.op.name == "multiply" and len(factors) < 3:
                waiting.append(arg)
            else:
                factors.append(arg)
    for place, x in enumerate(factors):
        others = factors[:place] + factors[place + 1 :]  # x may be a factor twice
        if len(others) == 1 and _is_of(others[0], "sigmoid", x):
            return normal.make("silu", x)
        halves = [f for f in others if _is_number(f, 0.5)]
        sums = [f for f in others if _is_error_sum(f, x)]
        if len(others) == 2 and halves and sums and extents(x) == extents(node):
            return normal.make("gelu", x)
        if len(others) == 2 and halves and extents(x) == extents(node) and any(_is_tanh_sum(f, x) for f in others):
            return normal.make("gelu", x, approximate="tanh")
    return None


def _is_of(node: Expr, name: str, x: Expr) -> bool:
    return isinstance(node, Call) and node.op.name == name and node.args[0] is x


def _is_number(node: Expr, value: float) -> bool:
    if not isinstance(node, Constant) or node.value.size != 1:
        return False
    return math.isclose(node.value.item(), value, rel_tol=1e-6)


def _is_error_sum(node: Expr, x: Expr) -> bool:
    """Return whether the node is 1 + erf(x/√2)."""
    if not isinstance(node, Call) or node.op.name != "add":
        return False
    erf = next((a for a in node.args if isinstance(a, Call) and a.op.name == "erf"), None)
    if erf is None or not any(_is_number(a, 1) for a in node.args):
        return False
    root = erf.args[0]
    if not isinstance(root, Call):
        return False
    if root.op.name == "divide":
        return root.args[0] is x and _is_number(root.args[1], math.sqrt(2))
    factors = root.args if root.op.name == "multiply" else ()
    return any(a is x for a in factors) and any(_is_number(a, math.sqrt(0.5)) for a in factors)


def _is_tanh_sum(node: Expr, x: Expr) -> bool:
    """Return whether the node is 1 + tanh(√(2/π) (x + 0.044715 x³)), however the polynomial is written."""
    if not isinstance(node, Call) or node.op.name != "add":
        return False
    tanh = next((a for a in node.args if isinstance(a, Call) and a.op.name == "tanh"), None)
    if tanh is None or not any(_is_number(a, 1) for a in node.args):
        return False
    found, root = _polynomial(tanh.args[0], x), math.sqrt(2 / math.pi)
    return (
        found is not None
        and found.keys() == {1, 3}
        and math.isclose(found[1], root, rel_tol=1e-5)
        and math.isclose(found[3], root * 0.044715, rel_tol=1e-5)
    )


def _polynomial(node: Expr, x: Expr, depth: int = 8) -> dict[int, float] | None:
    """The coefficients by powers of x, of up to the third; None for other nodes."""
    if node is x:
        return {1: 1.0}
    if isinstance(node, Constant):
        return {0: node.value.item()} if node.value.size == 1 and node.value.dtype.kind == "f" else None
    if not depth or not isinstance(node, Call) or node.op.name not in ("add", "multiply", "power"):
        return None
    terms = [_polynomial(arg, x, depth - 1) for arg in node.args]
    left, right = terms
    if left is None or right is None:
        return None
    if node.op.name == "power":
        if right not in ({0: 2.0}, {0: 3.0}):
            return None
        factors = [left] * int(right[0])
    else:
        factors = [left, right]
    if node.op.name == "add":
        return {n: left.get(n, 0.0) + right.get(n, 0.0) for n in left.keys() | right.keys()}
    found = {0: 1.0}
    for factor in factors:
        product: dict[int, float] = {}
        for (n, a), (m, b) in itertools.product(found.items(), factor.items()):
            product[n + m] = product.get(n + m, 0.0) + a * b
        found = product
    return found if max(found) <= 3 else None


def _softmax(normal: _Normal, node: Call) -> Expr | None:
    """A softmax of scaled elements and with a bias, in place of what is before it but no epilogue of a product."""
    if node.op.name not in ("softmax", "log_softmax", "softmax_bias"):
        return None
    given = node.attrs.to_json()
    x, axis, scale = node.args[0], given.get("axis", -1), given.get("scale", 1.0)
    if not isinstance(x, Call) or not normal.is_only(x) or _is_product(x):
        return None
    if x.op.name == "divide":
        data, by = x.args
        if isinstance(by, Constant) and by.value.size == 1 and by.value.item() and extents(data) == extents(x):
            return normal.make(node.op.name, data, *node.args[1:], axis=axis, scale=scale / by.value.item())
    if x.op.name == "multiply":
        for data, by in (x.args, x.args[::-1]):
            if isinstance(by, Constant) and by.value.size == 1 and extents(data) == extents(x):
                return normal.make(node.op.name, data, *node.args[1:], axis=axis, scale=scale * by.value.item())
    if node.op.name != "softmax" or scale != 1:
        return None
    if x.op.name == "add":
        for data, bias in (x.args, x.args[::-1]):
            if extents(data) == extents(x):
                return normal.make("softmax_bias", data, bias, axis=axis)
    if x.op.name == "where":
        seen, data, hidden = x.args
        if extents(data) == extents(x) and _is_number(hidden, -math.inf):
            return normal.make("softmax_bias", data, seen, axis=axis)
    return None


def _unmasked(normal: _Normal, node: Call) -> Expr | None:
    """Attention without a mask that hides nothing, or with is_causal for one that hides what comes later."""
    if node.op.name != "attention_bias" or not isinstance(node.args[3], Constant):
        return None
    given, mask = node.attrs.to_json(), node.args[3].value
    if mask.dtype.kind not in "bf":
        return None
    seen = mask if mask.dtype == bool else mask == 0
    rows, columns = (node.attrs.order(extents(arg))[2] for arg in node.args[:2])
    if seen.all():
        return normal.make("attention", *node.args[:3], **given)
    if given.get("is_causal") or mask.shape[-2:] != (rows, columns) or (seen != np.tri(rows, columns)).any():
        return None
    # Each query sees a key, beside which the least number counts as much as -infinity.
    if mask.dtype != bool and not (mask[~seen] <= np.finfo(mask.dtype).min).all():
        return None
    return normal.make("attention", *node.args[:3], **given | {"is_causal": True})


def _channels(node: Call) -> tuple[Call, Expr] | None:
    """A value with channels on axis 1, and a constant's entry for each of them, that a binary operator joins."""
    for value, other in (node.args, node.args[::-1]) if len(node.args) == 2 else ():
        if not isinstance(other, Constant) or not isinstance(value, Call):
            continue
        if value.op.name not in (*_PRODUCTS, "bias_add"):
            continue
        product, shape = value.args[0] if value.op.name == "bias_add" else value, extents(value)
        if isinstance(product, Call) and {"data_layout", "kernel_layout"} & product.attrs.to_json().keys():
            continue  # its channels are elsewhere
        if product is not value and value.attrs.to_json().get("axis", 1) % len(shape) != 1:
            continue
        flat = (1,) * (len(shape) - other.value.ndim) + other.value.shape
        if extents(node) == shape and flat == (1, shape[1], *(1,) * (len(shape) - 2)):
            return value, Constant(np.ascontiguousarray(other.value.reshape(-1)))
    return None


def _add_bias(normal: _Normal, node: Call) -> Expr | None:
    """bias_add after a product for a sum with a constant of each channel, joined with a bias before it."""
    if node.op.name == "bias_add":
        value, bias = node.args
        if not (isinstance(value, Call) and value.op.name == "bias_add" and isinstance(bias, Constant)):
            return None
        pair: tuple[Call, Expr] | None = (value, bias) if node.attrs == value.attrs else None
    else:
        pair = _channels(node) if node.op.name in ("add", "subtract") else None
    if pair is None:
        return None
    value, summand = pair
    assert isinstance(summand, Constant)
    if node.op.name == "subtract":
        if node.args[0] is not value:
            return None
        summand = Constant(-summand.value)
    if value.op.name != "bias_add":
        return normal.make("bias_add", value, summand, axis=1)
    before = value.args[1]
    if not isinstance(before, Constant) or not normal.is_only(value):
        return None
    axis = value.attrs.to_json().get("axis", 1)
    with np.errstate(over="ignore"):
        bias = before.value + summand.value
    return normal.make("bias_add", value.args[0], Constant(bias), axis=axis) if np.isfinite(bias).all() else None


def _scale_weight(normal: _Normal, node: Call) -> Expr | None:
    """A product with scaled weights for a factor of each channel after it."""
    pair = _channels(node) if node.op.name in ("multiply", "divide") else None
    if pair is None or not normal.is_only(pair[0]):
        return None
    value, constant = pair
    assert isinstance(constant, Constant)
    if node.op.name == "divide":
        if node.args[0] is not value:
            return None
        with np.errstate(divide="ignore", over="ignore"):
            constant = Constant(1 / constant.value)
        if not (np.isfinite(constant.value) & (np.abs(constant.value) >= _least_normal(constant))).all():
            return None
    product = value.args[0] if value.op.name == "bias_add" else value
    if not isinstance(product, Call) or product.op.name not in _PRODUCTS:
        return None
    data, weight = product.args
    if not isinstance(weight, Constant) or (product is not value and normal.uses[product] > 1):
        return None
    if weight.value.dtype != constant.value.dtype:  # of sums that are wider than the weight
        return None
    with np.errstate(over="ignore"):
        changed = weight.value * constant.value.reshape(-1, *(1,) * (weight.value.ndim - 1))
    if not np.isfinite(changed).all():
        return None
    # Less than the least normal number all weights of a channel would lose digits; smaller ones of it may.
    largest, before = (np.abs(w).reshape(len(w), -1).max(axis=1, initial=0) for w in (changed, weight.value))
    if ((largest < _least_normal(weight)) & (before > 0) & (constant.value != 0)).any():
        return None
    scaled: Expr = Call(product.op, [data, Constant(changed)], product.attrs)
    if product is value:
        return scaled
    bias = value.args[1]
    if not isinstance(bias, Constant):
        return None
    with np.errstate(over="ignore"):
        moved = bias.value * constant.value
    return Call(value.op, [scaled, Constant(moved)], value.attrs) if np.isfinite(moved).all() else None


def _least_normal(constant: Constant) -> float:
    """The least positive number of a constant's dtype that has all digits."""
    return {"float16": 2.0**-14, "float64": 2.0**-1022}.get(str(constant.value.dtype), 2.0**-126)


def _axes(node: Expr) -> tuple[int, ...] | None:
    """The order of axes of a transpose, None for other nodes."""
    if not (isinstance(node, Call) and node.op.name == "transpose"):
        return None
    rank, axes = len(extents(node)), node.attrs.to_json().get("axes")
    return tuple(range(rank))[::-1] if axes is None else tuple(a % rank for a in axes)


def _transpose(normal: _Normal, node: Call) -> Expr | None:
    """One transpose of two, and none that keeps the order."""
    axes = _axes(node)
    if axes is None:
        return None
    inner, source = _axes(node.args[0]), node.args[0]
    if inner is not None and isinstance(source, Call):
        return normal.make("transpose", source.args[0], axes=tuple(inner[a] for a in axes))
    moved = [a for a in axes if extents(source)[a] != 1]
    if moved == sorted(moved):  # the elements stay in their order
        return normal.reshaped(source, extents(node))
    return None


def _part(node: Expr) -> tuple[int, int, int] | None:
    """Axis, begin and end of a slice without gaps along one axis of known extent."""
    if not (isinstance(node, Call) and node.op.name == "strided_slice"):
        return None
    shape = extents(node.args[0])
    parts = node.attrs.parts(shape)
    if len(parts) != 1:
        return None
    ((axis, (start, step, count)),) = parts.items()
    return (axis, start, start + count) if step == 1 and count and shape[axis] < PROBED else None


def _take(normal: _Normal, node: Expr, axis: int, begin: int, end: int) -> Expr:
    return normal.make("strided_slice", node, begin=(begin,), end=(end,), strides=(1,), axes=(axis,))


def _slice_turned(normal: _Normal, node: Call) -> Expr | None:
    """The part of what a transpose reads, where its own elements lie in the wanted order."""
    found, axes = _part(node), _axes(node.args[0]) if node.args else None
    if found is None or axes is None:
        return None
    axis, begin, end = found
    moved = [a for a, extent in zip(axes, extents(node), strict=True) if extent != 1]
    if moved != sorted(moved):
        return None
    part = _take(normal, node.args[0].inputs[0], axes[axis], begin, end)
    return normal.make("transpose", part, axes=axes)


def _slice_reshaped(normal: _Normal, node: Call) -> Expr | None:
    """The part of a product or a transpose before its reshape, where it is one there, too."""
    found, source = _part(node), _behind(node.args[0]) if node.args else None
    if found is None or source is None or (_dense(source) is None and _axes(source) is None):
        return None
    axis, begin, end = found
    shown, own = extents(node.args[0]), extents(source)
    before = math.prod(shown[:axis])
    place = next((i for i, n in enumerate(own) if math.prod(own[:i]) == before and n % shown[axis] == 0), None)
    if place is None or not shown[axis] <= own[place] < PROBED:
        return None
    inner = own[place] // shown[axis]
    if inner not in (math.prod(shown[axis + 1 : i]) for i in range(axis + 1, len(shown) + 1)):
        return None
    return normal.reshaped(_take(normal, source, place, begin * inner, end * inner), extents(node))


def _dense(node: Expr) -> tuple[Call, Constant | None] | None:
    """A product with constant weights, and the constant bias after it."""
    bias = None
    if isinstance(node, Call) and node.op.name == "bias_add" and isinstance(node.args[1], Constant):
        if node.attrs.to_json().get("axis", 1) % len(extents(node)) != len(extents(node)) - 1:
            return None
        bias = node.args[1]
        node = node.args[0]
    if isinstance(node, Call) and node.op.name == "dense" and isinstance(node.args[1], Constant):
        return node, bias
    return None


def _is_divided(node: Expr, readers: Sequence[Expr]) -> bool:
    """Return whether a product is read by slices of its columns alone, each column at most once."""
    if _dense(node) is None or not readers:
        return False
    parts = [_part(reader) for reader in readers]
    columns = sorted((p[1], p[2]) for p in parts if p is not None and p[0] == len(extents(node)) - 1)
    return len(columns) == len(readers) and all(a[1] <= b[0] for a, b in itertools.pairwise(columns))


def _divide(normal: _Normal, node: Call) -> Expr | None:
    """A product of its own for some columns of one that is read in such parts only, which are then not copied."""
    found = _part(node)
    if found is None or node.args[0] not in normal.divided:
        return None
    pair = _dense(node.args[0])
    if pair is None:
        return None
    (product, bias), (_, begin, end) = pair, found
    made = normal.call(product.op, [product.args[0], _rows(product.args[1], begin, end)], product.attrs)
    return made if bias is None else normal.make("bias_add", made, _rows(bias, begin, end), axis=1)


def _rows(constant: Expr, begin: int, end: int) -> Constant:
    assert isinstance(constant, Constant)
    return Constant(np.ascontiguousarray(constant.value[begin:end]))


def _attend_by_tokens(normal: _Normal, node: Call) -> Expr | None:
    """Attention in the layout of the products before it, for one of transposed queries, keys and values."""
    if node.op.name not in ("attention", "attention_bias") or "layout" in node.attrs.to_json():
        return None
    turned = [_by_tokens(normal, arg) for arg in node.args[:3]]
    if any(t is None for t in turned):
        return None
    operands = [t for t in turned if t is not None]
    made = normal.make(node.op.name, *operands, *node.args[3:], **node.attrs.to_json(), layout="BSHD")
    return normal.make("transpose", made, axes=(0, 2, 1, 3))


def _by_tokens(normal: _Normal, node: Expr) -> Expr | None:
    """[batch, sequence, heads, depth] of what a transpose gives as [batch, heads, sequence, depth]."""
    if _axes(node) is not None:
        found = normal.make("transpose", node, axes=(0, 2, 1, 3))
        return found if _axes(found) is None else None
    source = _behind(node)
    if source is None or _axes(source) != (1, 0, 2) or extents(node) != (1, *extents(source)):
        return None
    _, heads, sequence, depth = extents(node)
    return normal.reshaped(source.inputs[0], (1, sequence, heads, depth))


def _turn_operand(normal: _Normal, node: Call) -> Expr | None:
    """The attribute of batch_matmul for a transpose of an operand's matrices."""
    if node.op.name != "batch_matmul":
        return None
    args = list(node.args)
    given = node.attrs.to_json()
    turned = [given.get("transpose_a", False), given.get("transpose_b", True)]
    for place, arg in enumerate(args):
        inner = _swapped(normal, arg)
        if inner is not None:
            args[place], turned[place] = inner, not turned[place]
    if args == list(node.args):
        return None
    return normal.make("batch_matmul", *args, transpose_a=turned[0], transpose_b=turned[1])


def _swapped(normal: _Normal, node: Expr) -> Expr | None:
    """The same matrices not transposed, where the node transposes them last; its batch may be reshaped."""
    source = _behind(node) or node
    axes = _axes(source)
    if axes is None or not isinstance(source, Call) or extents(source)[-2:] != extents(node)[-2:]:
        return None
    if axes[-2] < axes[-1]:
        return None
    back = (*axes[:-2], axes[-1], axes[-2])
    made = normal.make("transpose", source.args[0], axes=back)
    return normal.reshaped(made, (extents(node)[0], extents(node)[2], extents(node)[1]))


_RULES: tuple[Rule, ...] = (
    _compute, _reshape, _by_number, _activation, _softmax, _unmasked, _sink_unary, _sink_binary, _add_bias,
    _scale_weight, _transpose, _turn_operand, _slice_turned, _slice_reshaped, _divide, _attend_by_tokens,
)
