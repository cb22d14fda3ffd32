"""Recurrent layers of ONNX, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from plevel.onnx.elementary import elu, softsign, thresholded_relu
from plevel.onnx.node import OPERATORS, Node
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.rewriter import extents
from strategy.network.size import PROBED

State = tuple[Expr, ...]
"""The hidden state [batch, hidden], and LSTM's cell state behind it."""
_MOST_STEPS = 1 << 14


def _affine(x: Expr, alpha: float, beta: float) -> Expr:
    return call("add", call("multiply", x, number(alpha, x)), number(beta, x))


class _Function(NamedTuple):
    """An activation, with the alpha and beta that it takes where a layer gives none; None where it has to."""

    make: Callable[..., Expr]
    numbers: Mapping[str, float | None] = {}


_FUNCTIONS = {
    "Sigmoid": _Function(lambda x: call("sigmoid", x)),
    "Tanh": _Function(lambda x: call("tanh", x)),
    "Relu": _Function(lambda x: call("relu", x)),
    "Softplus": _Function(lambda x: call("softplus", x)),
    "Softsign": _Function(softsign),
    "LeakyRelu": _Function(lambda x, alpha: call("leaky_relu", x, alpha=alpha), {"alpha": 0.01}),
    "ThresholdedRelu": _Function(thresholded_relu, {"alpha": None}),
    "Elu": _Function(elu, {"alpha": 1.0}),
    "HardSigmoid": _Function(
        lambda x, alpha, beta: call("hardsigmoid", x, alpha=alpha, beta=beta), {"alpha": 0.2, "beta": 0.5}
    ),
    "ScaledTanh": _Function(
        lambda x, alpha, beta: call("multiply", call("tanh", call("multiply", x, number(beta, x))), number(alpha, x)),
        {"alpha": None, "beta": None},
    ),
    "Affine": _Function(_affine, {"alpha": None, "beta": None}),
}


class _Direction(NamedTuple):
    """A direction of a layer.

    The function `product` gives the product of a tensor with the recurrent weights of the gates from the first number
    to the second; `functions` are the activations, and `peepholes` LSTM's weights [hidden] of the cell state.
    """

    node: Node
    product: Callable[[Expr, int, int], Expr]
    functions: Sequence[Callable[[Expr], Expr]]
    peepholes: Sequence[Expr | None]

    def activate(self, place: int, x: Expr) -> Expr:
        clip = self.node.get("clip")
        return self.functions[place](layer.clip(x, -clip, clip) if clip else x)

    def seen(self, place: int, x: Expr, cell: Expr) -> Expr:
        """A gate's sum with what it sees of the cell state."""
        weight = self.peepholes[place]
        return x if weight is None else call("add", x, call("multiply", weight, cell))


Cell = Callable[[_Direction, Expr, State], State]
"""A step's state from the products of its data, all gates side by side, and from the state before it."""


def _gate(products: Expr, place: int, count: int) -> Expr:
    """One of so many gates side by side."""
    size = extents(products)[1] // count
    return layer.take_slice(products, 1, place * size, (place + 1) * size)


def _lstm(own: _Direction, data: Expr, state: State) -> State:
    hidden, cell = state
    both = call("add", data, own.product(hidden, 0, 4))
    let_in = own.activate(0, own.seen(0, _gate(both, 0, 4), cell))
    if own.node.get("input_forget", 0):
        keep: Expr = call("subtract", number(1, let_in), let_in)
    else:
        keep = own.activate(0, own.seen(2, _gate(both, 2, 4), cell))
    new = call("multiply", let_in, own.activate(1, _gate(both, 3, 4)))
    cell = call("add", call("multiply", keep, cell), new)
    let_out = own.activate(0, own.seen(1, _gate(both, 1, 4), cell))
    return call("multiply", let_out, own.functions[2](cell)), cell


def _gru(own: _Direction, data: Expr, state: State) -> State:
    (hidden,) = state
    both = call("add", layer.take_slice(data, 1, 0, 2 * extents(hidden)[1]), own.product(hidden, 0, 2))
    update, reset = (own.activate(0, _gate(both, i, 2)) for i in range(2))
    if own.node.get("linear_before_reset", 0):
        before: Expr = call("multiply", reset, own.product(hidden, 2, 3))
    else:
        before = own.product(call("multiply", reset, hidden), 2, 3)
    new = own.activate(1, call("add", _gate(data, 2, 3), before))
    kept, left = call("multiply", update, hidden), call("subtract", number(1, update), update)
    return (call("add", call("multiply", left, new), kept),)


def _rnn(own: _Direction, data: Expr, state: State) -> State:
    return (own.activate(0, call("add", data, own.product(state[0], 0, 1))),)


def _activations(node: Node, usual: Sequence[str], directions: int) -> list[Callable[[Expr], Expr]]:
    """A layer's activations, of which each that takes an alpha or a beta has the next one that is given."""
    names = [a.decode() for a in node.get("activations", ())] or [*usual] * directions
    if {*names} - _FUNCTIONS.keys() or len(names) != len(usual) * directions:
        raise NetworkError(
            f"its activations {', '.join(names)}: plevel has {', '.join(_FUNCTIONS)}, {len(usual)} for each direction"
        )
    given = {name: iter(node.get(f"activation_{name}", ())) for name in ("alpha", "beta")}
    found: list[Callable[[Expr], Expr]] = []
    for name in names:
        make, usual_numbers = _FUNCTIONS[name]
        numbers = {n: next(given[n], default) for n, default in usual_numbers.items()}
        if None in numbers.values():
            raise NetworkError(
                f"{name} without {' and '.join(numbers)}, for which ONNX Runtime has other numbers than ONNX says: "
                "export it with them"
            )
        found.append(partial(make, **numbers))
    return found


def _recurrent(gates: int, cell: Cell, activations: tuple[str, ...]) -> Callable[..., tuple[Expr, ...]]:
    def make(
        node: Node, x: Expr, weight: Expr, recurrent: Expr, bias: Expr | None = None, lengths: Expr | None = None,
        *more: Expr | None,
    ) -> tuple[Expr, ...]:
        states, rows = 1 + (cell is _lstm), node.get("layout", 0)  # rows: the batch comes first
        initial = (*more[:states], *(None for _ in range(states - len(more))))
        direction = node.get("direction", "forward")
        directions, size = extents(weight)[0], extents(recurrent)[-1]
        functions = _activations(node, activations, directions)
        if rows:
            x = layer.transpose(x, (1, 0, 2))
            initial = tuple(v if v is None else layer.transpose(v, (1, 0, 2)) for v in initial)
        steps, batch, _ = extents(x)
        if steps >= PROBED:
            raise NetworkError("the number of its steps is symbolic: give it with --dim")
        if steps > _MOST_STEPS:
            raise NetworkError(f"{steps} steps: plevel unrolls at most {_MOST_STEPS}")
        outputs, ends = [], []
        for d in range(directions):
            w, r = (_part(v, d, extents(v)[1:]) for v in (weight, recurrent))
            own = None if bias is None else _part(bias, d, (2 * gates * size,))
            data = layer.linear(x, w, own and layer.take_slice(own, 0, 0, gates * size))

            def product(h: Expr, first: int, end: int, r: Expr = r, own: Expr | None = own) -> Expr:
                whole = own and layer.take_slice(own, 0, (gates + first) * size, (gates + end) * size)
                return layer.linear(h, layer.take_slice(r, 0, first * size, end * size), whole)

            sees = _part(more[states], d, (3 * size,)) if more[states:] and more[states] is not None else None
            peepholes = [sees and layer.take_slice(sees, 0, i * size, (i + 1) * size) for i in range(3)]
            count = len(activations)
            about = _Direction(node, product, functions[d * count : (d + 1) * count], peepholes)
            zeros = layer.filled(0, (batch, size), x.tensor_type.dtype)
            state = tuple(zeros if v is None else _part(v, d, (batch, size)) for v in initial)
            found = {}
            for t in reversed(range(steps)) if direction == "reverse" or d else range(steps):
                after = cell(about, layer.reshape(layer.take_slice(data, 0, t, t + 1), (batch, gates * size)), state)
                output = after[0]
                if lengths is not None:  # beyond its end a sequence keeps its state, and gives zeros
                    goes = call("less", number(t, lengths), layer.reshape(lengths, (batch, 1)))
                    after = tuple(call("where", goes, a, b) for a, b in zip(after, state, strict=True))
                    output = call("where", goes, output, zeros)
                state = after
                found[t] = layer.reshape(output, (1, 1, batch, size))
            outputs.append(layer.concatenate([found[t] for t in range(steps)], 0))
            ends.append([layer.reshape(v, (1, batch, size)) for v in state])
        every = layer.concatenate(outputs, 1)
        last = [layer.concatenate(list(each), 0) for each in zip(*ends, strict=True)]
        if not rows:
            return every, *last
        return layer.transpose(every, (2, 0, 1, 3)), *(layer.transpose(v, (1, 0, 2)) for v in last)

    return make


def _part(x: Expr | None, place: int, shape: Sequence[int]) -> Expr:
    """A direction's part of a tensor whose first axis is that of directions."""
    assert x is not None
    return layer.reshape(layer.take_slice(x, 0, place, place + 1), shape)


OPERATORS["LSTM"] = _recurrent(4, _lstm, ("Sigmoid", "Tanh", "Tanh"))
OPERATORS["GRU"] = _recurrent(3, _gru, ("Sigmoid", "Tanh"))
OPERATORS["RNN"] = _recurrent(1, _rnn, ("Tanh",))
