"""Rules that find one operator in several: activations, softmax, and masks that attention does not need."""

from __future__ import annotations

import itertools
import math

import numpy as np

from strategy.cpu.widened import NARROW
from strategy.expr import Call, Constant, Expr
from strategy.network.rewriter import Rewriter, behind, extents, is_product

_OF_ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm")


def recognize_activation(rewriter: Rewriter, node: Call) -> Expr | None:
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
            return rewriter.make("silu", x)
        halves = [f for f in others if _is_number(f, 0.5)]
        sums = [f for f in others if _is_error_sum(f, x)]
        if len(others) == 2 and halves and sums and extents(x) == extents(node):
            return rewriter.make("gelu", x)
        if len(others) == 2 and halves and extents(x) == extents(node) and any(_is_tanh_sum(f, x) for f in others):
            return rewriter.make("gelu", x, approximate="tanh")
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


def recognize_softmax(rewriter: Rewriter, node: Call) -> Expr | None:
    """A softmax of scaled elements and with a bias, in place of what is before it but no epilogue of a product."""
    if node.op.name not in ("softmax", "log_softmax", "softmax_bias"):
        return None
    given = node.attrs.to_json()
    x, axis, scale = node.args[0], given.get("axis", -1), given.get("scale", 1.0)
    if not isinstance(x, Call) or not rewriter.is_only(x) or is_product(x):
        return None
    if x.op.name == "divide":
        data, by = x.args
        if isinstance(by, Constant) and by.value.size == 1 and by.value.item() and extents(data) == extents(x):
            return rewriter.make(node.op.name, data, *node.args[1:], axis=axis, scale=scale / by.value.item())
    if x.op.name == "multiply":
        for data, by in (x.args, x.args[::-1]):
            if isinstance(by, Constant) and by.value.size == 1 and extents(data) == extents(x):
                return rewriter.make(node.op.name, data, *node.args[1:], axis=axis, scale=scale * by.value.item())
    if node.op.name != "softmax" or scale != 1:
        return None
    if x.op.name == "add":
        for data, bias in (x.args, x.args[::-1]):
            if extents(data) == extents(x):
                return rewriter.make("softmax_bias", data, bias, axis=axis)
    if x.op.name == "where":
        seen, data, hidden = x.args
        if extents(data) == extents(x) and _is_number(hidden, -math.inf):
            return rewriter.make("softmax_bias", data, seen, axis=axis)
    return None


def recognize_rms_norm(rewriter: Rewriter, node: Call) -> Expr | None:
    """Use rms_norm for x / √(mean(x²) + ε) · γ along the last axis, with constants γ for its entries.

    The quotient of an x of 16 bits may be computed in float32, between two casts: PyTorch rounds it before its weight,
    and the result again, rms_norm the result alone.
    """
    if node.op.name != "multiply":
        return None
    for value, gamma in (node.args, node.args[::-1]):
        if not isinstance(gamma, Constant) or gamma.value.shape != extents(value)[-1:] or not rewriter.is_only(value):
            continue
        is_narrowed = isinstance(value, Call) and value.op.name == "cast"
        product = value.inputs[0] if is_narrowed else value
        if not isinstance(product, Call) or product.op.name != "multiply" or rewriter.uses[product] > is_narrowed:
            continue
        for x, root in (product.args, product.args[::-1]):
            epsilon, given = _epsilon(root, x), _before_cast(rewriter, x) if is_narrowed else x
            if epsilon is None or epsilon < 0 or extents(x) != extents(node):
                continue
            if given.tensor_type.dtype == node.tensor_type.dtype:
                return rewriter.make("rms_norm", given, gamma, axis=-1, epsilon=epsilon)
    return None


def narrow_rows(rewriter: Rewriter, node: Call) -> Expr | None:
    """A softmax or norm of 16 bits for one of float32 between two casts, as Gemma's, whose numbers are the same.

    Its vectors stay of float32 where the narrower dtype lacks a number of them.
    """
    if node.op.name != "cast" or node.tensor_type.dtype not in NARROW:
        return None
    found = node.inputs[0]
    if not isinstance(found, Call) or found.op.name not in _OF_ROWS or not rewriter.is_only(found):
        return None
    data, *vectors = _before_cast(rewriter, found.args[0]), *found.args[1:]
    if data.tensor_type.dtype != node.tensor_type.dtype:
        return None
    narrowed = (_narrowed(vector, node.tensor_type.dtype) for vector in vectors)
    return rewriter.make(found.op.name, data, *narrowed, **found.attrs.to_json())


def _narrowed(vector: Expr, dtype: str) -> Expr:
    """A constant in a narrower dtype that has all of its numbers; others as they are."""
    if not isinstance(vector, Constant):
        return vector
    with np.errstate(over="ignore"):
        made = vector.value.astype(dtype)
    return Constant(made) if (made.astype(vector.value.dtype) == vector.value).all() else vector


def _before_cast(rewriter: Rewriter, node: Expr) -> Expr:
    """The value that is cast to float32, in the node's shape; other nodes themselves."""
    source = _cast_source(node)
    return node if source is None else rewriter.reshaped(source, extents(node))


def _cast_source(node: Expr) -> Expr | None:
    """The operand of a cast to float32, which a reshape may show; None for other nodes."""
    made = behind(node) or node
    is_cast = isinstance(made, Call) and made.op.name == "cast" and made.tensor_type.dtype == "float32"
    return made.inputs[0] if is_cast else None


def _epsilon(node: Expr, x: Expr) -> float | None:
    """The number that 1 / √(mean(x²) + ε) of the last axis adds; None for other nodes."""
    if not isinstance(node, Call) or node.op.name != "rsqrt":
        return None
    total = node.args[0]
    if not isinstance(total, Call) or total.op.name != "add":
        return None
    for mean, number in (total.args, total.args[::-1]):
        if not isinstance(number, Constant) or number.value.size != 1 or not isinstance(mean, Call):
            continue
        if mean.op.name != "mean" or extents(mean) != (*extents(x)[:-1], 1):
            continue
        if mean.attrs.to_json().get("axis") in ([-1], [len(extents(x)) - 1]) and _is_square(mean.args[0], x):
            return float(str(number.value.reshape(())[()]))  # 1e-6, not the float32 next to it
    return None


def _is_square(node: Expr, x: Expr) -> bool:
    """Return whether the node is x², or that of another cast of what x is cast from, as T5's."""
    source, square = _cast_source(x), behind(node) or node
    twins = [i for i in square.inputs if source is not None and _cast_source(i) is source]
    return any(_polynomial(square, base) == {2: 1} for base in (x, *twins))


def drop_mask(rewriter: Rewriter, node: Call) -> Expr | None:
    """Attention without a mask that hides nothing, or with is_causal for one that hides what comes later."""
    if node.op.name != "attention_bias" or not isinstance(node.args[3], Constant):
        return None
    given, mask = node.attrs.to_json(), node.args[3].value
    if mask.dtype.kind not in "bf":
        return None
    seen = mask if mask.dtype == bool else mask == 0
    rows, columns = (node.attrs.order(extents(arg))[2] for arg in node.args[:2])
    if seen.all():
        return rewriter.make("attention", *node.args[:3], **given)
    if given.get("is_causal") or mask.shape[-2:] != (rows, columns) or (seen != np.tri(rows, columns)).any():
        return None
    # Each query sees a key, beside which the least number counts as much as -infinity.
    if mask.dtype != bool and not (mask[~seen] <= np.finfo(mask.dtype).min).all():
        return None
    return rewriter.make("attention", *node.args[:3], **given | {"is_causal": True})
