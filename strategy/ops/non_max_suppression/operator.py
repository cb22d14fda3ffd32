"""all_class_non_max_suppression: for each image and class the best boxes that do not overlap much.

As Relay's vision.all_class_non_max_suppression in its format "onnx", with ONNX's choice of corners or centres: the
number of results depends on data, so they come padded to the most there can be, with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategy.attrs import Attrs, field
from strategy.expr import Expr, TupleGetItem, call
from strategy.generic_func import override_native_generic_func
from strategy.gradient import register_gradient
from strategy.op import TOpPattern, TypeReporter, register_op, register_reference, register_strategy
from strategy.op_strategy import OpStrategy
from strategy.schedule import accumulator
from strategy.shape_func import register_shape_func
from strategy.target import Target
from strategy.type_relation import (
    require_dtype_of,
    require_float,
    require_nonempty,
    require_rank,
    require_shape,
)
from strategy.types import Dim, TensorType, TupleType, Type

Select = Callable[[Any, Any, Any], Any]
Box = tuple[list[Any], list[Any]]


class AllClassNonMaxSuppressionAttrs(Attrs):
    """Attributes of all_class_non_max_suppression."""

    max_output_boxes_per_class: int = field(description="The most boxes chosen of a class in an image", lower=1)
    iou_threshold: float = field(
        0.0, "Boxes whose intersection with a chosen one is more of their union are not chosen", lower=0, upper=1
    )
    score_threshold: float | None = field(None, "Only boxes of higher scores are chosen; default: all")
    center_point_box: bool = field(
        False, "Boxes are centre x, centre y, width, height; otherwise y, x of two opposite corners"
    )

    def most(self, boxes: int) -> int:
        """The most boxes that are chosen of a class in an image that has so many."""
        return min(self.max_output_boxes_per_class, boxes)


def all_class_non_max_suppression_rel(
    types: Sequence[Type], attrs: AllClassNonMaxSuppressionAttrs, reporter: TypeReporter
) -> bool:
    """[n, boxes, 4] and [n, classes, boxes] give as many rows as can be chosen, and the number of those that are."""
    boxes, scores = reporter.known(0), reporter.known(1)
    require_rank(reporter, 0, boxes, 3, "[batch, boxes, 4]")
    require_rank(reporter, 1, scores, 3, "[batch, classes, boxes]")
    require_float(reporter, 0, boxes)
    require_dtype_of(reporter, 1, 0)
    require_nonempty(reporter, 0, boxes)
    require_nonempty(reporter, 1, scores)
    reporter.check(boxes.shape[2] == 4, 0, "expected 4 numbers a box")
    reporter.check(boxes.shape[1].is_constant, 0, "the number of boxes must be constant")
    expected = (boxes.shape[0], scores.shape[1], boxes.shape[1])
    require_shape(reporter, 1, scores.shape, expected, f"its batch or boxes differ from those of boxes, {boxes}")
    rows = boxes.shape[0] * scores.shape[1] * attrs.most(int(boxes.shape[1]))
    reporter.assign(2, TupleType([TensorType([rows, Dim(3)], "int64"), TensorType([Dim(1)], "int64")]))
    return True


(
    register_op("all_class_non_max_suppression")
    .describe(
        "For each image and class the boxes of the highest scores, without those that overlap one chosen before: "
        "[image, class, box], by image, class and falling score, padded with -1, and their number. As Relay's "
        "vision.all_class_non_max_suppression and ONNX's NonMaxSuppression; a NaN is no score."
    )
    .add_argument("boxes", "Tensor", "[batch, boxes, 4]")
    .add_argument("scores", "Tensor", "[batch, classes, boxes]")
    .set_attrs_type(AllClassNonMaxSuppressionAttrs)
    .set_support_level(5)
    .add_type_rel("AllClassNonMaxSuppression", all_class_non_max_suppression_rel)
    .set_attr("TOpPattern", TOpPattern.kOpaque)
    .example(
        {"boxes": "float32[2,37,4]", "scores": "float32[2,3,37]"},
        {"max_output_boxes_per_class": 9, "iou_threshold": 0.3, "score_threshold": 0.1},
    )
    .example(
        {"boxes": "float32[1,19,4]", "scores": "float32[1,2,19]"},
        {"max_output_boxes_per_class": 100, "center_point_box": True},
    )
)


@register_reference("all_class_non_max_suppression")
def reference_all_class_non_max_suppression(attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[Any]) -> Any:
    """In the dtype in which kernels compute: whether a box is chosen depends on the last bit."""
    import numpy as np

    boxes, scores = (np.asarray(t, accumulator(str(t.dtype))) for t in inputs)
    zero, most, chosen = boxes.dtype.type(0), attrs.most(boxes.shape[1]), []
    with np.errstate(all="ignore"):
        for image, kind in np.ndindex(scores.shape[:2]):
            own = scores[image, kind]
            order = np.argsort(-own, kind="stable")
            left = order[is_candidate(attrs, own[order], -np.inf)]
            for _ in range(most):
                if not len(left):
                    break
                first, left = left[0], left[1:]
                chosen.append([image, kind, first])
                one, others = (corners(attrs, boxes[image, at].T, np.where) for at in (first, left))
                left = left[~overlap(attrs, one, others, np.where, zero)]
    rows = np.full((scores.shape[0] * scores.shape[1] * most, 3), -1, np.int64)
    rows[: len(chosen)] = np.reshape(np.asarray(chosen, np.int64), (-1, 3))
    return rows, np.asarray([len(chosen)], np.int64)


def is_candidate(attrs: AllClassNonMaxSuppressionAttrs, score: Any, lowest: Any) -> Any:
    """Return whether boxes of a score, an expression or an array, may be chosen; NaN may not."""
    return score >= lowest if attrs.score_threshold is None else score > attrs.score_threshold


def corners(attrs: AllClassNonMaxSuppressionAttrs, box: Sequence[Any], select: Select) -> Box:
    """The lower and the upper coordinates along both axes of boxes, expressions or arrays."""
    if attrs.center_point_box:
        return [box[i] - box[2 + i] * 0.5 for i in range(2)], [box[i] + box[2 + i] * 0.5 for i in range(2)]
    low = [select(box[i] < box[2 + i], box[i], box[2 + i]) for i in range(2)]
    return low, [select(box[i] < box[2 + i], box[2 + i], box[i]) for i in range(2)]


def overlap(attrs: AllClassNonMaxSuppressionAttrs, one: Box, other: Box, select: Select, zero: Any) -> Any:
    """Return whether the intersection of boxes is more of their union than may be."""
    (low, high), (other_low, other_high) = one, other
    shared = 1.0
    for i in range(2):
        end = select(high[i] < other_high[i], high[i], other_high[i])
        length = end - select(low[i] > other_low[i], low[i], other_low[i])
        shared = shared * select(length > zero, length, zero)
    area, other_area = ((h[0] - l[0]) * (h[1] - l[1]) for l, h in (one, other))
    return shared / (area + other_area - shared) > attrs.iou_threshold


@override_native_generic_func("all_class_non_max_suppression_strategy")
def all_class_non_max_suppression_strategy(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[TensorType], out_type: Type, target: Target
) -> OpStrategy:
    """No implementation is for all targets: boxes are chosen one after the other."""
    return OpStrategy()


register_strategy("all_class_non_max_suppression", all_class_non_max_suppression_strategy)
register_gradient("all_class_non_max_suppression", lambda orig, grad: [None, None])


@register_shape_func("all_class_non_max_suppression", False)
def all_class_non_max_suppression_shape_func(
    attrs: AllClassNonMaxSuppressionAttrs, inputs: Sequence[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    batch, classes, boxes = inputs[1]
    return [(batch * classes * attrs.most(boxes), 3), (1,)]


def all_class_non_max_suppression(
    boxes: Expr,
    scores: Expr,
    max_output_boxes_per_class: int,
    iou_threshold: float = 0.0,
    score_threshold: float | None = None,
    center_point_box: bool = False,
) -> tuple[Expr, Expr]:
    """The boxes of the highest scores of each image and class, without those that overlap one chosen before.

    Args:
        boxes: [batch, boxes, 4], the y and x of two opposite corners.
        scores: [batch, classes, boxes], of the dtype of boxes; NaN is no score.
        max_output_boxes_per_class: the most boxes that are chosen of a class in an image.
        iou_threshold: boxes whose intersection with a chosen one is more of their union are not chosen.
        score_threshold: only boxes of higher scores are chosen; default: all.
        center_point_box: boxes are centre x, centre y, width and height instead.

    Returns:
        Rows of image, class and box, by image, class and falling score, the lower box first among equals, padded with
        -1; and their number.
    """
    found = call(
        "all_class_non_max_suppression", boxes, scores, max_output_boxes_per_class=max_output_boxes_per_class,
        iou_threshold=iou_threshold, score_threshold=score_threshold, center_point_box=center_point_box,
    )
    return TupleGetItem(found, 0), TupleGetItem(found, 1)
