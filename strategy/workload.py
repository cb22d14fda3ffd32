"""Workloads: an operator with its attributes and the types of its inputs."""
# Over 300 lines: the identity of a workload, its types, and what covers what, are one contract.

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec

from strategy.attrs import Attrs
from strategy.condition import Expr, SpecializedCondition
from strategy.op import Op, find_op, get_op
from strategy.suggestion import suggest
from strategy.types import Dim, TensorType, TupleType, Type, require_size

MAX_INPUTS = 64
MAX_NAME = 128
# Names are parts of keys and cannot have separators.
_NAME = re.compile(rf"[^\s()\[\]{{}},=+:\"]{{1,{MAX_NAME}}}")


class WorkloadError(ValueError):
    """A workload does not fit an operator; the message has the field and the remedy."""


class Input(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input: its name, its type as text (`float32[128,768]`), and whether it is constant.

    A constant input never changes between calls (weights), so that it may be prepared once, outside of the timed
    function.
    """

    name: str
    type: str
    constant: bool = False

    def __post_init__(self) -> None:
        _check_name("an input's name", self.name)
        kind = TensorType.parse(self.type)
        require_size(kind)
        normal = str(kind)
        if normal != self.type:  # normal form, for the key
            msgspec.structs.force_setattr(self, "type", normal)

    @property
    def tensor(self) -> TensorType:
        return TensorType.parse(self.type)

    def __str__(self) -> str:
        return f"{self.name}={self.type}{':const' if self.constant else ''}"


class EpilogueStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """A step of an epilogue: an elementwise or broadcast operator applied to the value so far.

    `operands` are the operator's inputs in order: None is the value so far, an `Input` a further parameter of the
    function (a bias, a residual).
    """

    op: str
    operands: tuple[Input | None, ...]
    attrs: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_name("an operator's name", self.op)
        if not 1 <= len(self.operands) <= MAX_INPUTS:
            raise WorkloadError(f"{self.op}: 1 to {MAX_INPUTS} operands, got {len(self.operands)}")


class Workload(msgspec.Struct, frozen=True, omit_defaults=True, dict=True):
    """An operator, its attributes, the types of its inputs, and its epilogue.

    `Workload.make` validates and normalises it for an installed operator; a decoded one of another operator is kept
    unchanged.
    """

    op: str
    inputs: tuple[Input, ...]
    attrs: dict[str, Any] = {}
    epilogue: tuple[EpilogueStep, ...] = ()

    def __post_init__(self) -> None:
        _check_name("an operator's name", self.op)
        if len(self.inputs) > MAX_INPUTS:
            raise WorkloadError(f"{self.op}: at most {MAX_INPUTS} inputs, got {len(self.inputs)}")
        names = [i.name for i in self.inputs]
        if len(set(names)) != len(names):
            raise WorkloadError(f"{self.op}: two inputs have the same name: {', '.join(names)}")
        known: dict[str, Input] = {}
        for given in self.all_inputs:
            if known.setdefault(given.name, given).type != given.type:
                raise WorkloadError(f"{self.op}: {known[given.name]} and {given} have the same name: rename one")

    @classmethod
    def make(
        cls,
        op: str,
        inputs: Sequence[Input] | Mapping[str, str | TensorType],
        attrs: Mapping[str, Any] | Attrs | None = None,
        constants: Sequence[str] = (),
        epilogue: Sequence[EpilogueStep] = (),
    ) -> Workload:
        """Make a validated workload in normal form, for an installed operator.

        Inputs are given by the names of the operator's arguments, in any order; the tensors of an argument of
        kind `Tuple` by its name and their index: `data.0`, `data.1`.

        Raises:
            OpError, AttrsError, TypeSyntaxError, TypeRelationError, WorkloadError: the message has the field
                at fault and its possible values.
        """
        known = get_op(op)
        if isinstance(inputs, Mapping):
            inputs = [Input(n, str(t), n in constants) for n, t in inputs.items()]
        given = {i.name: i for i in inputs}
        if len(given) != len(inputs):
            shown = ", ".join(i.name for i in inputs)
            raise WorkloadError(f"{op}: two inputs have the same name: {shown}")
        names = _input_names(known, given)
        for name in (*given, *constants):
            if name not in names:
                raise WorkloadError(
                    f"{op} has no input {name!r:.80}{suggest(name, names)}: expected {', '.join(names)}"
                )
        for name in names:
            if name not in given:
                raise WorkloadError(
                    f"{op}: input {name!r} is missing: give it as {name}=float32[…]"
                )
        node = attrs if isinstance(attrs, Attrs) else known.attrs_type.from_json(attrs or {})
        ordered = tuple(
            Input(n, str(given[n].tensor), given[n].constant or n in constants) for n in names
        )
        workload = cls(op, ordered, node.to_json())
        if workload.is_constant:  # else an attribute, such as the shape of a reshape, may stand for a symbolic size
            require_size(workload.out_type)
        steps = _checked_epilogue(workload.out_type, epilogue)
        return msgspec.structs.replace(workload, epilogue=steps) if steps else workload

    def checked(self) -> Workload:
        """This workload in normal form, validated against the installed operator."""
        return Workload.make(self.op, self.inputs, self.attrs, epilogue=self.epilogue)

    def unsigned(self) -> Workload:
        """This workload of an operator that is not installed, in normal form: its attributes lose the sign of zeros.

        PostgreSQL's JSON has none, and would give back another workload.
        """
        if "-0.0" not in self.key:
            return self
        steps = tuple(msgspec.structs.replace(s, attrs=_unsigned(s.attrs)) for s in self.epilogue)
        return msgspec.structs.replace(self, attrs=_unsigned(self.attrs), epilogue=steps)

    @cached_property
    def key(self) -> str:
        """The canonical text: `dense(data=float32[128,768],weight=float32[3072,768]:const)`."""
        text = f"{self.op}({','.join(map(str, self.inputs))})"
        if self.attrs:
            text += _compact(self.attrs)
        for step in self.epilogue:
            operands = ",".join("." if o is None else str(o) for o in step.operands)
            text += f"+{step.op}({operands}){_compact(step.attrs) if step.attrs else ''}"
        return text

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the key's SHA-256."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:16]

    @property
    def operator(self) -> Op:
        return get_op(self.op)

    @cached_property
    def attr_node(self) -> Attrs:
        return self.operator.attrs_type.from_json(self.attrs)

    @cached_property
    def input_types(self) -> tuple[TensorType, ...]:
        """The inputs' types, with constant dimensions named by position (`data.shape[0]`)."""
        return tuple(i.tensor.named(i.name) for i in self.inputs)

    @cached_property
    def out_type(self) -> Type:
        """The type of the anchor's output."""
        return self.operator.infer_type(self._argument_types, self.attr_node)

    @cached_property
    def assumptions(self) -> SpecializedCondition:
        """The condition on symbolic dimensions under which the types are right, and code for them may be called."""
        if self.is_constant or find_op(self.op) is None:
            return SpecializedCondition()
        so_far, assumed = self.operator.relate(self._argument_types, self.attr_node)
        claims = [*assumed]
        for step in self.epilogue:
            op = get_op(step.op)
            types = [so_far if o is None else o.tensor for o in step.operands]
            so_far, assumed = op.relate(types, op.attrs_type.from_json(step.attrs))
            claims += assumed
        places = {p: d if isinstance(d, Dim) else Dim(d) for p, d in self.dims.items()}
        return SpecializedCondition(*claims).substitute(places)

    @property
    def unified(self) -> Workload:
        """The same call with dimensions that are assumed to be equal under one name, or as one number."""
        found = self
        while True:
            for clause in found.assumptions.clauses:
                sides = clause.equation
                if sides and sides[0].op == "var" and sides[1].op in ("var", "const"):
                    a, b = sides
                    found = found.bind({str(a): b.args[0] if b.op == "const" else b})
                    break
            else:
                return found

    @property
    def _argument_types(self) -> list[Type]:
        """The inputs' types, with one tuple type for an argument of kind `Tuple`."""
        kinds: list[Type] = []
        remaining = list(zip(self.inputs, self.input_types, strict=True))
        for a in self.operator.arguments:
            if a.kind == "Tuple":
                fields = [t for i, t in remaining if i.name.startswith(a.name + ".")]
                kinds.append(TupleType(fields))
                remaining = remaining[len(fields) :]
            elif remaining:
                kinds.append(remaining.pop(0)[1])
        return [*kinds, *(t for _, t in remaining)]

    @property
    def operands(self) -> tuple[Input | None, ...]:
        """The inputs, then those of the epilogue with None for the value so far."""
        return (*self.inputs, *(o for s in self.epilogue for o in s.operands))

    @property
    def all_inputs(self) -> list[Input]:
        """The inputs, then those of the epilogue."""
        return [o for o in self.operands if o is not None]

    @cached_property
    def dims(self) -> dict[str, Any]:
        """The dimensions by position, for conditions.

        A symbolic dimension is itself.
        """
        return {
            f"{i.name}.shape[{axis}]": d.value if d.is_constant else d
            for i in self.all_inputs
            for axis, d in enumerate(i.tensor.shape)
        }

    @property
    def anchor(self) -> Workload:
        """The same call without an epilogue."""
        return self.shorter[-1] if self.epilogue else self

    @cached_property
    def shorter(self) -> tuple[Workload, ...]:
        """The same call with a shorter epilogue, the longest first and the call alone last."""
        lengths = reversed(range(len(self.epilogue)))
        return tuple(msgspec.structs.replace(self, epilogue=self.epilogue[:n]) for n in lengths)

    @property
    def symbols(self) -> frozenset[str]:
        """The names of the symbolic dimensions."""
        symbolic = [d for d in self.dims.values() if isinstance(d, Dim)]
        return frozenset().union(*(d.variables() for d in symbolic))

    @cached_property
    def is_constant(self) -> bool:
        """Return whether every dimension is known."""
        return all(i.tensor.is_constant for i in self.all_inputs)

    def bind(self, dims: Mapping[str, int | Expr]) -> Workload:
        """The workload with symbols replaced by sizes, or by other dimensions."""

        def bound(given: Input) -> Input:
            kind = given.tensor
            shape = [d.substitute(dims) for d in kind.shape]
            return msgspec.structs.replace(given, type=str(TensorType(shape, kind.dtype)))

        steps = tuple(
            msgspec.structs.replace(s, operands=tuple(o and bound(o) for o in s.operands))
            for s in self.epilogue
        )
        return msgspec.structs.replace(self, inputs=tuple(map(bound, self.inputs)), epilogue=steps)

    def match(self, concrete: Workload) -> dict[str, int] | None:
        """Return the values of this workload's symbols in `concrete`, None if that is no instance."""
        same = (
            self.op == concrete.op
            and self.attrs == concrete.attrs
            and [(s.op, s.attrs, len(s.operands)) for s in self.epilogue]
            == [(s.op, s.attrs, len(s.operands)) for s in concrete.epilogue]
            and len(self.inputs) == len(concrete.inputs)
        )
        if not same:
            return None
        binding: dict[str, int] = {}
        for own, other in zip(self.operands, concrete.operands, strict=True):
            if own is None or other is None:
                if own is not other:
                    return None
                continue
            mine, theirs = own.tensor, other.tensor
            if (own.name, own.constant, mine.dtype, mine.ndim) != (
                other.name, other.constant, theirs.dtype, theirs.ndim
            ):
                return None
            for a, b in zip(mine.shape, theirs.shape, strict=True):
                if not b.is_constant:
                    return None
                name = None if a.is_constant else str(a)
                wanted = a.value if name is None else binding.setdefault(name, b.value)
                if wanted != b.value:
                    return None
        return binding

    @cached_property
    def flops(self) -> int | None:
        """Floating-point operations of one call, None if the operator does not define them."""
        count = self.operator.get_attr("FFlops")
        return (
            None if count is None else int(count(self.attr_node, self.input_types, self.out_type))
        )

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.key


def _checked_epilogue(
    so_far: Type, steps: Sequence[EpilogueStep]
) -> tuple[EpilogueStep, ...]:
    """The steps with attributes in normal form, after checking their types."""
    found = []
    for step in steps:
        op = get_op(step.op)
        if None not in step.operands:
            raise WorkloadError(
                f"{step.op}: operands: an epilogue's step needs the value so far, written as null"
            )
        attrs = op.attrs_type.from_json(step.attrs)
        so_far = op.infer_type([so_far if o is None else o.tensor for o in step.operands], attrs)
        found.append(EpilogueStep(step.op, step.operands, attrs.to_json()))
    return tuple(found)


def _input_names(op: Op, given: Collection[str]) -> list[str]:
    names: list[str] = []
    for a in op.arguments:
        if a.kind == "Tuple":
            count = sum(n.startswith(a.name + ".") for n in given)
            names += [f"{a.name}.{i}" for i in range(max(count, 1))]
        else:
            names.append(a.name)
    return names


def _check_name(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise WorkloadError(
            f"{what} has 1 to {MAX_NAME} characters, no spaces and none of ()[]{{}},=+:, got {name!r:.40}"
        )


def _unsigned(value: Any) -> Any:
    """A value of JSON without the sign of zeros."""
    if isinstance(value, dict):
        return {name: _unsigned(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_unsigned(inner) for inner in value]
    return value + 0.0 if type(value) is float else value


def _compact(data: Mapping[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)
