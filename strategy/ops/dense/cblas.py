"""`dense_cblas.cpu`: the vendor's CBLAS, with its threads set to the target's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from strategy.attrs import Attrs
from strategy.extern import ExternError, find_library
from strategy.schedule import Outs, join_epilogue, lanes_of, new_schedule, stage, vectorize
from strategy.target import Target
from strategy.types import TensorType

_ROW_MAJOR, _NO_TRANS, _TRANS = 101, 111, 112


def compute(attrs: Attrs, inputs: Sequence[Any], out_type: TensorType) -> list[Any]:
    """A call of sgemm, or of sgemv for one row, for which sgemm is several times slower."""
    import tvm
    from tvm import te, tirx

    library = find_library("cblas")
    if library is None:
        raise ExternError("the target's libs name cblas, but this host has none: install scipy-openblas32")
    threads = int(tvm.target.Target.current().attrs["num-cores"])
    data, weight = inputs
    m, k = data.shape
    n = weight.shape[0]

    def integer(value: Any) -> Any:
        return value.astype("int32") if hasattr(value, "astype") else tirx.const(value, "int32")

    def number(value: float) -> Any:
        return tirx.const(value, "float32")

    def call(name: str, *arguments: Any) -> Any:
        return tirx.Evaluate(tirx.call_extern("void", library.symbol(name), *arguments))

    def body(ins: Sequence[Any], outs: Sequence[Any]) -> Any:
        x, w, out = ins[0].access_ptr("r"), ins[1].access_ptr("r"), outs[0].access_ptr("w")
        rows, columns, depth = integer(m), integer(n), integer(k)
        if isinstance(m, tirx.IntImm) and int(m) == 1:
            product = call(
                "cblas_sgemv", integer(_ROW_MAJOR), integer(_NO_TRANS), columns, depth,
                number(1), w, depth, x, integer(1), number(0), out, integer(1),
            )
        else:
            product = call(
                "cblas_sgemm", integer(_ROW_MAJOR), integer(_NO_TRANS), integer(_TRANS),
                rows, columns, depth, number(1), x, depth, w, depth, number(0), out, columns,
            )
        # The library's threads belong to the process: another artefact may have set them.
        return tirx.SeqStmt([call("openblas_set_num_threads", integer(threads)), product])

    return [
        te.extern((m, n), [data, weight], body, name="dense", dtype="float32", attrs=stage("library"))
    ]


def schedule(attrs: Attrs, outs: Outs, target: Target) -> Any:
    """Schedule only the epilogue, over the library's output."""
    from tvm import te

    sch = new_schedule(outs)
    if not isinstance(outs.tensors[0].op, te.ExternOp):
        output = join_epilogue(sch)
        row, column = sch.get_loops(output)
        vectorize(sch, column, lanes_of(target, "float32"))
        sch.parallel(row)
    return sch
