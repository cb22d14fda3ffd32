"""`conv2d_transpose_im2col.cpu` and `conv2d_transpose_spatial_pack.cpu`: those of conv2d, with phases as groups.

Every stride-th row and column of the result, a phase, is a convolution by a part of the window: nothing is multiplied
by the zeros between the data's elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from strategy.attrs import Attrs
from strategy.cpu import widened
from strategy.op_strategy import OpStrategy
from strategy.ops.conv2d import Conv2DAttrs, im2col, spatial_pack
from strategy.ops.conv2d_transpose.operator import Conv2DTransposeAttrs
from strategy.pattern import register_cpu_implementations
from strategy.schedule import Outs, compute_stage
from strategy.space import Config, ConfigSpace
from strategy.target import Target
from strategy.types import TensorType


@dataclass(frozen=True)
class _Phases:
    """A transposed convolution as one of the phases of its result: every step-th row and column.

    Each phase is a group of a convolution, by the rows and columns of the window that meet data in it. An axis whose
    phases differ in size, or whose window is dilated, is one phase of data with zeros in between.

    Attributes:
        attrs: those of the transposed convolution.
        data: its image's type.
        window: height and width of its weight.
        out: its result's type.
        steps: phases of rows, and of columns.
    """

    attrs: Conv2DTransposeAttrs
    data: TensorType
    window: tuple[int, ...]
    out: TensorType
    steps: tuple[int, int]

    @classmethod
    def of(cls, attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], out: TensorType) -> _Phases:
        down, across = (
            stride if dilation == 1 and int(extent) % stride == 0 else 1
            for stride, dilation, extent in zip(attrs.strides, attrs.dilation, out.shape[2:], strict=True)
        )
        return cls(attrs, inputs[0], inputs[1].concrete_shape[2:], out, (down, across))

    @property
    def groups(self) -> int:
        """Groups of the convolution."""
        return self.attrs.groups * self.steps[0] * self.steps[1]

    @property
    def taps(self) -> list[int]:
        """Rows and columns of the convolution's window."""
        return [-(-k // step) for k, step in zip(self.window, self.steps, strict=True)]

    @property
    def whole(self) -> Conv2DAttrs:
        """Attributes of the convolution."""
        return Conv2DAttrs(dilation=self.attrs.dilation, groups=self.groups)

    @property
    def types(self) -> list[TensorType]:
        """The types of the convolution's image, weight and result."""
        (n, c, *_), (_, o, *image) = self.data.concrete_shape, self.out.concrete_shape
        phases = self.steps[0] * self.steps[1]
        image = [extent // step for extent, step in zip(image, self.steps, strict=True)]
        padded = [i + (t - 1) * d for i, t, d in zip(image, self.taps, self.attrs.dilation, strict=True)]
        shapes = (n, c * phases, *padded), (o * phases, c // self.attrs.groups, *self.taps), (n, o * phases, *image)
        return [TensorType(shape, self.out.dtype) for shape in shapes]

    def phase(self, group: Any) -> tuple[Any, tuple[Any, Any]]:
        """The group of the transposed convolution, and the phase, of a group of the convolution."""
        down, across = self.steps
        return group // (down * across), (group // across % down, group % across)

    def weight(self, weight: Any) -> Any:
        """The convolution's weight: of each phase the rows and columns that meet data, turned by 180°."""
        from tvm import te, tirx

        shape = self.types[1].concrete_shape
        own, each = int(weight.shape[1]), shape[1]

        def element(o: Any, c: Any, *place: Any) -> Any:
            group, phase = self.phase(o // own)
            taps = [
                _divide(r, before, step)[1] + step * (count - 1 - i)
                for r, before, step, count, i in zip(
                    phase, self.attrs.padding[:2], self.steps, self.taps, place, strict=True
                )
            ]
            inside = tirx.all(*(tap < k for tap, k in zip(taps, self.window, strict=True)))
            return tirx.if_then_else(inside, weight[group * each + c, o % own, *taps], tirx.const(0, weight.dtype))

        return te.compute(shape, element, name="turned")

    def image(self, data: Any) -> Any:
        """The convolution's image: what each phase reads of the data with zeros around, and in between if it is alone.

        All phases read the same copy, each from another row and column on.
        """
        from tvm import te, tirx

        shape, (batch, channels, *extents) = self.types[0].concrete_shape, self.data.concrete_shape
        each = shape[1] // self.groups
        attrs = self.attrs
        axes = list(zip(attrs.strides, self.steps, attrs.padding[:2], self.taps, attrs.dilation, strict=True))

        def offset(axis: int, r: Any) -> Any:
            _, step, before, count, dilation = axes[axis]
            return _divide(r, before, step)[0] - (count - 1) * dilation

        first = [offset(axis, 0) for axis in range(2)]
        last = [offset(axis, step - 1) for axis, step in enumerate(self.steps)]
        gaps = [stride // step for stride, step in zip(attrs.strides, self.steps, strict=True)]
        ends = [extent + high for extent, high in zip(shape[2:], last, strict=True)]

        def number(n: Any, c: Any, *place: Any) -> Any:
            at = [i + low for i, low in zip(place, first, strict=True)]
            inside = [
                test for i, gap, extent in zip(at, gaps, extents, strict=True)
                for test in (i >= 0, i % gap == 0, i // gap < extent)
            ]
            value = data[n, c, *(i // gap for i, gap in zip(at, gaps, strict=True))]
            return tirx.if_then_else(tirx.all(*inside), value, tirx.const(0, data.dtype))

        zeros = max(gaps) > 1 or min(first) < 0 or any(end > extent for end, extent in zip(ends, extents, strict=True))
        whole = (end - low for end, low in zip(ends, first, strict=True))
        padded = compute_stage("padded", (batch, channels, *whole), number) if zeros else data

        def element(n: Any, c: Any, *place: Any) -> Any:
            group, phase = self.phase(c // each)
            begin = first if zeros else (0, 0)
            places = [place[axis] + offset(axis, phase[axis]) - begin[axis] for axis in range(2)]
            return padded[n, group * each + c % each, *places]

        return te.compute(shape, element, name="phases")

    def together(self, made: Any) -> Any:
        """The result of the convolution's."""
        from tvm import te

        own, (down, across) = int(self.out.shape[1]) // self.attrs.groups, self.steps

        def element(n: Any, o: Any, h: Any, w: Any) -> Any:
            group = (o // own * down + h % down) * across + w % across
            return made[n, group * own + o % own, h // down, w // across]

        return te.compute(self.out.concrete_shape, element, name="together")


def _divide(phase: Any, before: int, step: int) -> tuple[Any, Any]:
    """The quotient and the remainder of `phase` + `before` by `step`, for a phase below it.

    By comparing: where one loop has the phases of both axes, TVM takes the numbers that are added to quotients and
    remainders of its variable for one, the largest (`IterMapSimplify` in FlattenBuffer), and reads elsewhere.
    """
    from tvm import tirx

    whole, part = divmod(before, step)
    if isinstance(phase, int) or part == 0:
        return whole + (phase + part) // step, (phase + part) % step
    one = tirx.const(1, str(phase.ty.dtype))
    beyond = tirx.Select(phase >= step - part, one, 0 * one)
    return whole + beyond, phase + part - step * beyond


def _add(
    strategy: OpStrategy, attrs: Conv2DTransposeAttrs, inputs: Sequence[TensorType], out_type: TensorType,
    target: Target,
) -> None:
    """Add implementations of conv2d for the phases of the result."""
    known = all(d.is_constant and int(d) >= 1 for kind in inputs for d in kind.shape)
    if known and widened.serves(inputs, out_type):
        found, phases = OpStrategy(), _Phases.of(attrs, inputs, widened.wide_type(out_type))
        _, weight, made = phases.types
        unfolds = im2col.pays(weight, made, phases.groups, target)
        unfolds = unfolds or not spatial_pack.fills_tiles(made)
        _add_by_phases(found, im2col, phases, "conv2d_transpose_im2col.cpu", 12 if unfolds else 10, 6)
        _add_by_phases(found, spatial_pack, phases, "conv2d_transpose_spatial_pack.cpu", 11, 10)
        strategy.extend(widened.for_types(found, inputs))


def _add_by_phases(
    strategy: OpStrategy, module: ModuleType, phases: _Phases, name: str, plevel: int, version: int
) -> None:
    whole, (*types, made_type) = phases.whole, phases.types

    def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType, config: Config) -> list[Any]:
        data, weight = inputs
        (made,) = module.compute(whole, [phases.image(data), weight], made_type, config)
        return [phases.together(made)]

    def prepare(attrs: Attrs, inputs: Sequence[TensorType], config: Config) -> dict[int, Callable[[Any], Any]]:
        (pack,) = module.prepare(whole, types, config).values()
        return {1: lambda weight: pack(phases.weight(weight))}

    def schedule(attrs: Attrs, outs: Outs, target: Target, config: Config) -> Any:
        return module.schedule(whole, replace(outs, phases=phases.steps), target, config)

    def space(attrs: Attrs, inputs: Sequence[TensorType], out_type: TensorType, target: Target) -> ConfigSpace:
        found: ConfigSpace = module.space(whole, types, made_type, target)
        return found

    strategy.add_implementation(
        compute, schedule, name, plevel, version=version, space=space, prepare=prepare, symbolic=False
    )


register_cpu_implementations("conv2d_transpose", _add)
