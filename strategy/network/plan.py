"""The plan of a network: its kernels in order, and the place of each of their buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from strategy.compile.artefact import ALIGNMENT
from strategy.compile.c_text import dlpack_type
from strategy.compile.fusion import Group, Operand, resolve, tensor_type_of
from strategy.expr import Call, Constant, Expr, Var
from strategy.network.extent import Extent
from strategy.network.graph import Network
from strategy.network.group import describe
from strategy.network.memory import Life, place, share
from strategy.network.size import Encoded, Sizes
from strategy.signature import Role, Signature
from strategy.types import TensorType, TupleType
from strategy.workload import Workload

_SAMPLE = 63  # above the least size, where buffers are compared


class Area(IntEnum):
    """The memory that a buffer is in."""

    ARENA = 0
    WEIGHTS = 1
    PORT = 2  # an input or output of the network


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory: `at` is the index of its place in the arena, of an input or output, or an offset in bytes."""

    area: Area
    at: int
    type: TensorType


@dataclass(frozen=True)
class Step:
    """A kernel's call, or the copy of the first buffer to the second where there is no workload.

    Args:
        buffers: in the order of the kernel's arguments.
        outputs: how many of them, at the end, it writes.
        names: of the network's values that it gives, by output, where they have one.
    """

    workload: Workload | None
    buffers: tuple[Buffer, ...]
    outputs: int
    names: tuple[str | None, ...]


@dataclass(frozen=True)
class Weight:
    """A constant in memory: an array as it is, or as the kernel of a workload takes it."""

    node: Constant
    offset: int
    bytes: int
    packed_for: tuple[Workload, str] | None = None


@dataclass(frozen=True)
class Port:
    """An input or output of the network; `staged` is the place in the arena that an unaligned one is copied to."""

    name: str
    type: TensorType
    staged: int


@dataclass(frozen=True)
class Place:
    """Memory in the arena for buffers that are never alive at the same time: its end is behind the largest of `bytes`.

    It begins at `offset`; None is behind the place before it.
    """

    bytes: tuple[int | Extent, ...]
    offset: int | None = None


@dataclass(frozen=True)
class Plan:
    """Steps in order, with their memory."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    steps: tuple[Step, ...]
    weights: tuple[Weight, ...]
    places: tuple[Place, ...]
    sizes: Sizes | None

    def encoded(self, kind: TensorType) -> Encoded:
        """A shape, as it depends on the sizes."""
        return kind.concrete_shape if self.sizes is None else self.sizes.encoded(kind)

    @property
    def arena_bytes(self) -> int:
        """The bytes of the arena, at the least sizes if they are symbolic."""
        values, end, most = self.sizes.least if self.sizes else (), 0, 0
        for found in self.places:
            begin = end if found.offset is None else found.offset
            end = begin + align(max(b if isinstance(b, int) else b.at(values) for b in found.bytes))
            most = max(most, end)
        return most

    @property
    def weight_bytes(self) -> int:
        return max((w.offset + w.bytes for w in self.weights if w.bytes), default=0)  # an empty one is in no file


def bytes_of(kind: TensorType) -> int:
    return kind.size * dlpack_type(kind.dtype)[1] // 8


def align(bytes: int) -> int:
    return -(-bytes // ALIGNMENT) * ALIGNMENT


def make_plan(
    network: Network, groups: Sequence[Group], signatures: Mapping[Workload, Signature]
) -> Plan:
    """The plan of a normal network with these kernels."""
    return _Planner(network, groups, signatures).plan()


@dataclass
class _Value:
    """A tensor that a step or the caller writes: its type, its port if it is one, and its life."""

    type: TensorType
    port: int | None = None
    first: int = -1
    last: int = -1


_Operand = tuple[_Value | Weight, TensorType]


@dataclass
class _Planner:
    network: Network
    groups: Sequence[Group]
    signatures: Mapping[Workload, Signature]
    values: dict[Operand, _Value] = field(default_factory=dict)
    weights: dict[tuple[object, ...], Weight] = field(default_factory=dict)
    weight_end: int = 0

    def plan(self) -> Plan:
        network = self.network
        count = len(network.inputs)
        for i, v in enumerate(network.inputs):
            self.values[v, None] = _Value(v.tensor_type, i)
        copies = self._claim_ports(count)
        drafts = [d for n, g in enumerate(self.groups) if (d := self._draft(n, g))]
        last = len(self.groups)
        outputs = []
        for i, (name, node) in enumerate(network.outputs.items()):
            kind = node.tensor_type
            if i in copies:
                made = _Value(kind, count + i, last, last)
                drafts.append((None, [(self._read(_base(node), last), kind), (made, kind)], 1, (name,)))
            else:
                made = self.values[_base(node)]
                made.last = last
            outputs.append(made)
        staged = [self.values[v, None] for v in network.inputs] + outputs
        known = {id(v): v for v in (*self.values.values(), *outputs)}
        sizes = network.sizes and network.sizes.within(v.type for v in known.values())
        index, places = _place(list(known.values()), sizes)
        offset = dict(zip(known, index, strict=True))

        def buffer(found: _Operand) -> Buffer:
            value, kind = found
            if isinstance(value, Weight):
                return Buffer(Area.WEIGHTS, value.offset, kind)
            if value.port is not None:
                return Buffer(Area.PORT, value.port, kind)
            return Buffer(Area.ARENA, offset[id(value)], kind)

        nodes = [*((v.name, v) for v in network.inputs), *network.outputs.items()]  # names may be the same
        ports = [
            Port(name, node.tensor_type, offset[id(v)])
            for (name, node), v in zip(nodes, staged, strict=True)
        ]
        steps = tuple(Step(w, tuple(map(buffer, found)), n, named) for w, found, n, named in drafts)
        return Plan(
            tuple(ports[:count]), tuple(ports[count:]), steps, tuple(self.weights.values()), places, sizes
        )

    def _claim_ports(self, count: int) -> set[int]:
        """Have kernels write into outputs; the outputs that are copied to, as they are the values of others."""
        copies = set()
        for i, node in enumerate(self.network.outputs.values()):
            base = _base(node)
            if isinstance(base[0], Call) and base not in self.values:
                self.values[base] = _Value(tensor_type_of(base), count + i)
            else:
                copies.add(i)
        return copies

    def _draft(
        self, number: int, group: Group
    ) -> tuple[Workload | None, list[_Operand], int, tuple[str | None, ...]] | None:
        if is_view(group):
            return None
        workload, sources = describe(group, self.network.sizes)
        found: list[_Operand] = []
        made = group.output.checked_type
        fields = len(made.fields) if isinstance(made, TupleType) else None
        results = [(group.output, i) for i in range(fields)] if fields else [(group.output, None)]
        for argument in self.signatures[workload].arguments:
            if argument.role is Role.OUTPUT:
                continue
            node, index = _base(sources[argument.name])
            if isinstance(node, Var) and (node, None) not in self.values:  # a shape: any memory
                found.append((Weight(Constant(np.zeros(())), 0, 0), node.tensor_type))
            elif isinstance(node, Constant):
                packed = (workload, argument.name) if argument.role is Role.PREPARED else None
                kind = argument.tensor if packed else node.type
                found.append((self._weight(node, kind, packed), kind))
            else:
                # In the shape that this step reads it in.
                found.append((self._read((node, index), number), tensor_type_of(sources[argument.name])))
        for result in results:
            value = self.values.setdefault(result, _Value(tensor_type_of(result)))
            value.first, value.last = number, max(number, value.last)
            found.append((value, value.type))
        named = tuple(self.network.names.get(node) if index is None else None for node, index in results)
        return workload, found, len(results), named

    def _read(self, operand: Operand, step: int) -> _Value | Weight:
        if isinstance(operand[0], Constant):
            return self._weight(operand[0], operand[0].type, None)
        value = self.values[operand]
        value.last = max(value.last, step)
        return value

    def _weight(
        self, node: Constant, kind: TensorType, packed: tuple[Workload, str] | None
    ) -> Weight:
        key = (id(node.value), packed) if packed else (id(node.value),)
        if key not in self.weights:
            self.weights[key] = Weight(node, self.weight_end, bytes_of(kind), packed)
            self.weight_end = align(self.weight_end + bytes_of(kind))
        return self.weights[key]


def _place(values: Sequence[_Value], sizes: Sizes | None) -> tuple[list[int], tuple[Place, ...]]:
    """The place of each value, and the places: with symbolic sizes those of equal buffers at small sizes."""
    if sizes is None:
        fixed = [Life(bytes_of(v.type), v.first, v.last) for v in values]
        offsets, _ = place(fixed, ALIGNMENT)
        found = [Place((life.bytes,), offset) for life, offset in zip(fixed, offsets, strict=True)]
        return list(range(len(values))), tuple(found)
    each = [sizes.bytes(v.type, bytes_of(TensorType((), v.type.dtype))) for v in values]
    sample = tuple(min(size.high, size.low + _SAMPLE) for size in sizes.sizes)
    lives = [
        Life(b if isinstance(b, int) else b.at(sample), v.first, v.last) for b, v in zip(each, values, strict=True)
    ]
    index = share(lives)
    members: list[dict[int | Extent, None]] = [{} for _ in range(max(index, default=-1) + 1)]
    for at, b in zip(index, each, strict=True):
        members[at][b] = None
    return index, tuple(Place(tuple(m)) for m in members)


def is_view(group: Group) -> bool:
    """Return whether the group only shows a value in another shape."""
    return group.anchor.op.name == "reshape" and len(group.calls) == 1


def _base(found: Operand | Expr) -> Operand:
    """The value that is in memory, behind reshapes and tuples' entries."""
    node, index = resolve(found) if isinstance(found, Expr) else found
    while isinstance(node, Call) and node.op.name == "reshape":
        node, index = resolve(node.args[0])
    return node, index
