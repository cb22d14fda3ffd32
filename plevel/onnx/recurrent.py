"""Recurrent layers of ONNX, step by step."""

from __future__ import annotations

from collections.abc import Callable

from plevel.onnx.node import OPERATORS, Node
from strategy.expr import Expr, call
from strategy.network import layer
from strategy.network.graph import NetworkError
from strategy.network.layer import number
from strategy.network.normal import extents
from strategy.network.size import PROBED

State = tuple[Expr, ...]
"""The hidden state [batch, hidden], and LSTM's cell state behind it."""
_Product = Callable[[Expr, int, int], Expr]
Cell = Callable[[Node, Expr, _Product, State], State]
"""A step's state from the products of its data, all gates side by side, and from the state before it.

The function gives the product of a tensor with the recurrent weights of the gates from the first number to the second.
"""


def _gate(products: Expr, place: int, count: int) -> Expr:
    """One of so many gates side by side."""
    size = extents(products)[1] // count
    return layer.take_slice(products, 1, place * size, (place + 1) * size)


def _lstm(node: Node, data: Expr, product: _Product, state: State) -> State:
    hidden, cell = state
    both = call("add", data, product(hidden, 0, 4))
    let_in, let_out, keep = (call("sigmoid", _gate(both, i, 4)) for i in range(3))
    new = call("multiply", let_in, call("tanh", _gate(both, 3, 4)))
    cell = call("add", call("multiply", keep, cell), new)
    return call("multiply", let_out, call("tanh", cell)), cell


def _gru(node: Node, data: Expr, product: _Product, state: State) -> State:
    (hidden,) = state
    both = call("add", layer.take_slice(data, 1, 0, 2 * extents(hidden)[1]), product(hidden, 0, 2))
    update, reset = (call("sigmoid", _gate(both, i, 2)) for i in range(2))
    if node.get("linear_before_reset", 0):
        before: Expr = call("multiply", reset, product(hidden, 2, 3))
    else:
        before = product(call("multiply", reset, hidden), 2, 3)
    new = call("tanh", call("add", _gate(data, 2, 3), before))
    kept, left = call("multiply", update, hidden), call("subtract", number(1, update), update)
    return (call("add", call("multiply", left, new), kept),)


def _rnn(node: Node, data: Expr, product: _Product, state: State) -> State:
    return (call("tanh", call("add", data, product(state[0], 0, 1))),)


def _recurrent(gates: int, cell: Cell, activations: tuple[str, ...]) -> Callable[..., tuple[Expr, ...]]:
    def make(
        node: Node, x: Expr, weight: Expr, recurrent: Expr, bias: Expr | None = None, lengths: Expr | None = None,
        *initial: Expr | None,
    ) -> tuple[Expr, ...]:  # fmt: skip
        states = 1 + (cell is _lstm)
        direction = node.get("direction", "forward")
        directions, size = extents(weight)[0], extents(recurrent)[-1]
        given = tuple(a.decode() for a in node.get("activations", ()))
        if lengths is not None or any(v is not None for v in initial[states:]):
            raise NetworkError("it has sequence_lens or peepholes: plevel takes sequences of one length without them")
        if node.get("clip") or node.get("input_forget", 0) or node.get("layout", 0) or given not in (
            (), activations * directions
        ):  # fmt: skip
            raise NetworkError("its clip, input_forget, layout or activations: plevel has the default ones")
        steps, batch, _ = extents(x)
        if steps >= PROBED:
            raise NetworkError("the number of its steps is symbolic: give it with --dim")
        outputs, ends = [], []
        for d in range(directions):
            w, r = (layer.reshape(layer.take_slice(v, 0, d, d + 1), extents(v)[1:]) for v in (weight, recurrent))
            own = None if bias is None else layer.reshape(layer.take_slice(bias, 0, d, d + 1), (2 * gates * size,))
            data = layer.linear(x, w, own and layer.take_slice(own, 0, 0, gates * size))

            def product(h: Expr, first: int, end: int, r: Expr = r, own: Expr | None = own) -> Expr:
                whole = own and layer.take_slice(own, 0, (gates + first) * size, (gates + end) * size)
                return layer.linear(h, layer.take_slice(r, 0, first * size, end * size), whole)

            given_state = (*initial[:states], *(None for _ in range(states - len(initial))))
            state = tuple(
                layer.filled(0, (batch, size), x.tensor_type.dtype) if v is None
                else layer.reshape(layer.take_slice(v, 0, d, d + 1), (batch, size))
                for v in given_state
            )  # fmt: skip
            found = {}
            for t in reversed(range(steps)) if direction == "reverse" or d else range(steps):
                now = layer.reshape(layer.take_slice(data, 0, t, t + 1), (batch, gates * size))
                state = cell(node, now, product, state)
                found[t] = layer.reshape(state[0], (1, 1, batch, size))
            outputs.append(layer.concatenate([found[t] for t in range(steps)], 0))
            ends.append([layer.reshape(v, (1, batch, size)) for v in state])
        last = (layer.concatenate(list(each), 0) for each in zip(*ends, strict=True))
        return layer.concatenate(outputs, 1), *last

    return make


OPERATORS["LSTM"] = _recurrent(4, _lstm, ("Sigmoid", "Tanh", "Tanh"))
OPERATORS["GRU"] = _recurrent(3, _gru, ("Sigmoid", "Tanh"))
OPERATORS["RNN"] = _recurrent(1, _rnn, ("Tanh",))
