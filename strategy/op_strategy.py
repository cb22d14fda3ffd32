"""OpStrategy: the implementations of an operator, with the conditions under which they are valid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from strategy.condition import SpecializedCondition
from strategy.cpu.passes import PROCESSOR_VERSION
from strategy.generic_func import GenericFunc, GenericFuncError
from strategy.op import OpError
from strategy.schedule import ScheduleError
from strategy.space import Config, ConfigSpace
from strategy.suggestion import suggest
from strategy.target import BUILT, Target
from strategy.types import TensorType
from strategy.workload import Workload

# Of inputs, with attributes and output of the operator's own types.
SpaceFunction = Callable[[Any, Sequence[TensorType], Any, Target], ConfigSpace]
MAX_NAME = 200  # as in the entries of a job
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME)]


@dataclass(frozen=True)
class OpImplementation:
    """An implementation of an operator: a compute and a schedule, with a priority level.

    Args:
        compute: `(attrs, inputs, out_type[, config]) -> [te.Tensor]`, on TE tensors.
        schedule: `(attrs, outs, target[, config]) -> tvm.s_tir.Schedule`.
        name: in TVM's form: `dense_pack.cpu`.
        plevel: without measurements, the highest is selected.
        version: must be raised when a change of the code makes old records wrong; for CPUs the version of the
            common lowering is added.
        space: `(attrs, inputs, out_type, target) -> ConfigSpace`; None if untunable. With a space, compute,
            schedule and prepare also receive `config`.
        prepare: `(attrs, inputs, config) -> {input index: TE function}`: packs or transforms inputs, once
            if they are constant and inside the timed function otherwise.
        library: the vendor library that it calls, None for plevel's own code.
        symbolic: True if it can be lowered with symbolic dimensions.
        varying_plevel: the plevel where no input behind the first, the data, is constant, so that `prepare` runs at
            each call; None: `plevel`.
    """

    compute: Callable[..., Any]
    schedule: Callable[..., Any]
    name: str = "default"
    plevel: int = 10
    version: int = 1
    space: SpaceFunction | None = None
    prepare: Callable[..., Any] | None = None
    library: str | None = None
    symbolic: bool = True
    varying_plevel: int | None = None


@dataclass
class OpSpecialization:
    """The implementations with a common condition; None: always valid."""

    condition: SpecializedCondition | None
    implementations: list[OpImplementation] = field(default_factory=list)


class Candidate(msgspec.Struct, frozen=True, omit_defaults=True):
    """An implementation as data, for selection and tuning.

    `version` is the implementation's integer, raised by that of the lowering, and its space's digest
    (`2.1a2b3c4d`); records of another version are stale.
    """

    implementation: _Name
    version: _Name
    plevel: Annotated[int, msgspec.Meta(ge=-(2**31), lt=2**31)]
    condition: SpecializedCondition | None = None
    space: ConfigSpace | None = None
    library: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    symbolic: bool = True

    @property
    def tunable(self) -> bool:
        return self.space is not None

    @property
    def foreign(self) -> bool:
        """Return whether it is another tool's (`autotvm:…`), which cannot be built here."""
        return ":" in self.implementation

    @property
    def fallback(self) -> Config:
        """The configuration used without tuning; empty if untunable."""
        return Config() if self.space is None else self.space.fallback


class OpStrategy:
    """The result of a strategy function: specialisations with their implementations."""

    def __init__(self) -> None:
        self.specializations: list[OpSpecialization] = []
        self._added: list[tuple[SpecializedCondition | None, OpImplementation]] = []

    def add_implementation(
        self,
        compute: Callable[..., Any],
        schedule: Callable[..., Any],
        name: str = "default",
        plevel: int = 10,
        *,
        version: int = 1,
        space: SpaceFunction | None = None,
        prepare: Callable[..., Any] | None = None,
        library: str | None = None,
        symbolic: bool = True,
        varying_plevel: int | None = None,
    ) -> None:
        """Add an implementation under the current `SpecializedCondition` contexts.

        Raises:
            OpError: the name is taken in this strategy, empty, too long, or like those of other tools.
        """
        self._add(
            SpecializedCondition.current(),
            OpImplementation(
                compute, schedule, name, plevel, version, space, prepare, library, symbolic, varying_plevel
            ),
        )

    def _add(self, condition: SpecializedCondition | None, added: OpImplementation) -> None:
        if not 0 < len(added.name) <= MAX_NAME or ":" in added.name:
            raise OpError(
                f"implementation {added.name!r:.80}: a name has 1 to {MAX_NAME} characters and no ':', which other "
                "tools' have"
            )
        if any(i.name == added.name for _, i in self._added):
            raise OpError(f"implementation {added.name!r} is added twice to a strategy: rename one")
        self._added.append((condition, added))
        for specialization in self.specializations:
            if specialization.condition == condition:
                specialization.implementations.append(added)
                return
        self.specializations.append(OpSpecialization(condition, [added]))

    def changed(self, change: Callable[[OpImplementation], OpImplementation | None]) -> OpStrategy:
        """The implementations after a change of each, without those that it gives None for."""
        result = OpStrategy()
        for condition, implementation in self._added:
            found = change(implementation)
            if found is not None:
                result._add(condition, found)
        return result

    def extend(self, other: OpStrategy) -> None:
        """Add the implementations of another strategy, under their conditions there."""
        for condition, implementation in other:
            self._add(condition, implementation)

    def raised(self, by: int) -> OpStrategy:
        """The same implementations, with versions raised by a number."""
        return self.changed(lambda found: replace(found, version=found.version + by))

    def varying(self) -> OpStrategy:
        """The same implementations, with the plevels for inputs of which none is constant."""
        return self.changed(
            lambda found: found if found.varying_plevel is None else replace(found, plevel=found.varying_plevel)
        )

    def __iter__(self) -> Iterator[tuple[SpecializedCondition | None, OpImplementation]]:
        """Pairs of condition and implementation, in the order in which they were added."""
        return iter(self._added)


def evaluate(workload: Workload, target: Target) -> OpStrategy:
    """The strategy of the workload's operator for this workload and target.

    It is empty if the operator has no implementation for the target. Versions of implementations for processors,
    whatever the target's keys are, include that of the lowering that they share.

    Raises:
        OpError: the operator has no strategy, or its strategy returns something else.
    """
    op = workload.operator
    strategy = op.get_attr("FTVMStrategy")
    if strategy is None:
        raise OpError(f"operator {op.name} has no strategy: register one with register_strategy")
    if isinstance(strategy, GenericFunc):
        reached = find_body(strategy, target)
        if reached is None:
            return OpStrategy()
        _, strategy = reached
    found: OpStrategy = strategy(
        workload.attr_node, workload.input_types, workload.out_type, target
    )
    if not isinstance(found, OpStrategy):
        raise OpError(f"the strategy of {op.name} on {target} gives {type(found).__name__}: return its OpStrategy")
    if not any(given.constant for given in workload.inputs[1:]):  # the data are not prepared
        found = found.varying()
    return found.raised(PROCESSOR_VERSION) if target.is_cpu else found


def find_body(generic: GenericFunc, target: Target) -> tuple[str | None, Callable[..., Any]] | None:
    """As `GenericFunc.find`, among bodies whose implementations can be built for `target`, else None.

    Bodies of the keys in `BUILT` are for its kinds only; other keys, such as `mali`, are not checked.
    """
    built = BUILT.get(target.kind, ())
    skip = {key for keys in BUILT.values() for key in keys if key not in built}
    try:
        key, body = generic.find(target, skip)
    except GenericFuncError:
        return None
    is_meant = generic.chooses or (built and skip.isdisjoint(target.keys))
    return (key, body) if key is not None or is_meant else None


def built_kinds(workload: Workload) -> list[str]:
    """The kinds of targets for which the workload's operator has implementations."""
    return [kind for kind, keys in BUILT.items() if candidates(workload, Target(kind, keys))]


def candidates(
    workload: Workload, target: Target, *, libraries: bool = True
) -> list[Candidate]:
    """The implementations of a workload on a target, as data; those that call a library if `libraries`.

    Includes those whose condition does not hold, but not those that do not support the symbolic dimensions.

    Raises:
        OpError: as `evaluate`. ScheduleError: an implementation's space refuses constant shapes.
    """
    found = []
    for condition, implementation in evaluate(workload, target):
        if implementation.library is not None and not libraries:
            continue
        space = None
        # Spaces are only made under their implementation's condition, which they may rely on.
        if implementation.space is not None and (
            condition is None or condition.decide() is not False
        ):
            try:
                space = implementation.space(
                    workload.attr_node, workload.input_types, workload.out_type, target
                )
            except ScheduleError:
                if workload.is_constant:
                    raise
                continue  # it does not support these symbols
        digest = "0" if space is None else space.digest
        found.append(
            Candidate(
                implementation.name, f"{implementation.version}.{digest}", implementation.plevel,
                condition, space, implementation.library, implementation.symbolic,
            )
        )
    return found


def find_implementation(workload: Workload, target: Target, name: str) -> OpImplementation:
    """The implementation of a name; raise `OpError` with the existing names."""
    names = []
    for _, implementation in evaluate(workload, target):
        if implementation.name == name:
            return implementation
        names.append(implementation.name)
    raise OpError(
        f"{workload.op} has no implementation {name!r:.80} on {target}{suggest(name, names)}: "
        f"it has: {', '.join(names) or 'none'}"
    )
