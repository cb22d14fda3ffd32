"""Products fused with their epilogues, as networks call them."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.compile import compile as compile_graph
from strategy.compile.lower import lower
from strategy.expr import Constant, Var
from strategy.op_strategy import evaluate as implementations_of
from strategy.ops.activation import gelu
from strategy.ops.batch_matmul import batch_matmul
from strategy.ops.bias_add import bias_add
from strategy.ops.conv2d import conv2d
from strategy.ops.dense import dense
from strategy.ops.elemwise import relu
from strategy.reference import evaluate
from strategy.workload_text import parse_workload
from tests.kernel.judge import judge
from workers.reference import random_inputs, reference

from .test_conv2d import TARGET


def test_what_models_call_becomes_one_function():
    rng = np.random.default_rng(0)

    def given(*shape):
        return rng.uniform(-1, 1, shape).astype("float32")

    x, image, keys, residual = (Var(n, t) for n, t in (
        ("x", "float32[9,20]"), ("image", "float32[1,16,9,9]"), ("keys", "float32[3,7,20]"),
        ("residual", "float32[1,5,9,9]"),
    ))
    weight = Constant(given(5, 16, 3, 3))
    convolution = bias_add(conv2d(image, weight, padding=1), Constant(given(5)))
    graphs = {
        "dense": gelu(bias_add(dense(x, Constant(given(33, 20))), Constant(given(33)))),
        "conv2d": relu(convolution + residual),
        "batch_matmul": gelu(batch_matmul(keys, keys) + Constant(given(7, 7))),
    }
    values = {"x": given(9, 20), "image": given(1, 16, 9, 9), "keys": given(3, 7, 20),
              "residual": given(1, 5, 9, 9)}
    for anchor, graph in graphs.items():
        function = compile_graph(graph, TARGET)
        (explained,) = function.explain()
        assert explained.calls[0] == anchor
        assert len(explained.calls) >= 3
        found = function(*(values[v.name] for v in function.variables))
        np.testing.assert_allclose(found, evaluate(graph, values), atol=3e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("instance_norm_row.cpu", "instance_norm(data=float32[4,6,40],gamma=float32[6],beta=float32[6])+relu(.)"),
        ("softmax_row.cpu", "softmax(data=float32[4,40])+multiply(.,o=float32[40])"),
        ("reduce_row.cpu", 'max(data=float32[5,40]){"axis":[1]}+add(o=float32[5],.)+relu(.)'),
        ("reduce_column.cpu", 'sum(data=float32[5,40]){"axis":[0]}+add(o=float32[40],.)+relu(.)'),
        (
            "broadcast.cpu",
            'add(lhs=int32[5,40],rhs=int32[5,40])+add(.,o=int32[40])+clip(.){"a_max":3,"a_min":-1}',
        ),
        (
            "injective.cpu",
            'strided_slice(data=float32[4,44]){"axes":[1],"begin":[4],"end":[44]}+relu(.)',
        ),
        (
            "broadcast.cpu",
            'quantize(data=float32[4,40],output_scale=float32[],output_zero_point=int32[]){"out_dtype":"uint8"}+relu(.)',
        ),
    ],
)
def test_what_a_user_writes_after_any_operator_runs(name: str, key: str) -> None:
    import tvm

    work = parse_workload(key).checked()
    kernel = lower(work, TARGET, name).compile(checks=False)
    inputs = random_inputs(work, 0)
    (right,) = reference(work, inputs)
    found = tvm.runtime.empty(right.shape, kernel.arguments[-1].tensor.dtype)
    kernel.main(*map(tvm.runtime.tensor, inputs.values()), found)
    np.testing.assert_allclose(found.numpy(), right, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", [
    "grouped_dense(data=bfloat16[19,30],weight=bfloat16[3,37,30],ends=int32[3])",
    "matmul_nbits(data=bfloat16[19,32],weight=uint8[37,1,16],scales=bfloat16[37,1])",
])
@pytest.mark.parametrize("step", ["silu(.)", "floor_mod(.,o=bfloat16[37])"])
def test_what_loops_write_is_read_before_it_is_rounded(head: str, step: str) -> None:
    work = parse_workload(f"{head}+{step}").checked()
    for _, implementation in implementations_of(work, TARGET):
        judge(lower(work, TARGET, implementation).compile(checks=False), work, random_inputs(work, 0))
