"""`batch_matmul_cblas.cpu`: the vendor's CBLAS, one call for each entry of the batch.

Entries run in parallel with one thread of the library each; fewer entries than threads run one after
the other with all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.extern import ExternError, find_library
from strategy.ops.batch_matmul.operator import BatchMatmulAttrs
from strategy.pattern import schedule_plain_cpu
from strategy.schedule import Outs, new_schedule, stage
from strategy.target import Target
from strategy.types import TensorType

_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


def compute(attrs: BatchMatmulAttrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """Calls of sgemm, or of sgemv for matrices of one row."""
    import tvm
    from tvm import te, tirx

    library = find_library("cblas")
    if library is None:
        raise ExternError("the target's libs name cblas, but this host has none: install scipy-openblas32")
    threads = int(tvm.target.Target.current().attrs["num-cores"])
    x, y = inputs
    batch, m, n = out_type.concrete_shape
    depth = int(x.shape[1 if attrs.transpose_a else 2])
    parallel = batch >= threads

    def integer(value: int) -> Any:
        return tirx.const(value, "int32")

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    def call(name: str, *arguments: Any) -> Any:
        return tirx.Evaluate(tirx.call_extern("void", library.symbol(name), *arguments))

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        def entry(b: Any) -> Any:
            left, right = (
                buffer.access_ptr("r", offset=0 if int(buffer.shape[0]) == 1 else b * size)
                for buffer, size in zip(ins, (m * depth, n * depth), strict=True)
            )
            out = outs[0].access_ptr("w", offset=b * m * n)
            if m == 1:
                rows, columns = (n, depth) if attrs.transpose_b else (depth, n)
                return call(
                    "cblas_sgemv", integer(_ROW_MAJOR), integer(_NO_TRANS if attrs.transpose_b else _TRANS),
                    integer(rows), integer(columns), number(1), right, integer(columns), left,
                    integer(1), number(0), out, integer(1),
                )
            return call(
                "cblas_sgemm", integer(_ROW_MAJOR), integer(_TRANS if attrs.transpose_a else _NO_TRANS),
                integer(_TRANS if attrs.transpose_b else _NO_TRANS), integer(m), integer(n), integer(depth),
                number(1), left, integer(m if attrs.transpose_a else depth), right,
                integer(depth if attrs.transpose_b else n), number(0), out, integer(n),
            )

        b = tirx.Var("b", "int64")
        kind = tirx.ForKind.PARALLEL if parallel else tirx.ForKind.SERIAL
        loop = tirx.For(b, tirx.const(0, "int64"), tirx.const(batch, "int64"), kind, entry(b))
        # The library's threads belong to the process: another artefact may have set them.
        return tirx.SeqStmt([call("openblas_set_num_threads", integer(1 if parallel else threads)), loop])

    return [
        te.extern((batch, m, n), [x, y], body, name="batch_matmul", dtype="float32", attrs=stage("library"))
    ]


def schedule(attrs: BatchMatmulAttrs, outs: Outs, target: Target) -> Any:
    """Schedule only the epilogue, over the library's output."""
    from tvm import te

    if isinstance(outs.tensors[0].op, te.ExternOp):
        return new_schedule(outs)
    return schedule_plain_cpu(attrs, outs, target)
