"""Rules of real numbers that do not hold of NaN, infinities and zeros, which TVM applies to floating-point numbers."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.compile.lower import lower
from strategy.op_strategy import evaluate
from strategy.target import Target
from strategy.workload_text import parse_workload
from workers.reference import compare, epsilon, random_inputs, reference, tolerances

TARGET = Target.parse("cpu").with_threads(1)
NUMBERS = [np.nan, np.inf, -np.inf, -0.0, 0.0, 1, -1, 3, 0.5, -2]
TWICE = "relu(data={0}[3,40])"
NONE = 'trilu(data={0}[3,40]){{"k":200}}'  # all 0
# Chains of a dtype, in which `.` is the value so far.
CHAINS = [
    *(
        f"{head}+{op}(.,.)"
        for head in (TWICE, f"{TWICE}+tanh(.)")  # which is repeated, or bound to a name
        for op in ("subtract", "equal", "not_equal", "divide", "floor_divide", "less_equal")
    ),
    *(f"{op}(lhs={{0}}[3,40],rhs={{0}}[40])+logical_not(.)" for op in ("less", "less_equal", "greater", "equal")),
    "less(lhs={0}[3,40],rhs={0}[40])+logical_xor(.,.)+logical_not(.)",
    *(f"{NONE}+{op}(e0={{0}}[40],.)" for op in ("multiply", "divide", "floor_divide", "floor_mod")),
    *(f"{NONE}+{op}(.,e0={{0}}[40])" for op in ("multiply", "divide", "floor_divide", "floor_mod", "swiglu")),
    *(f"{NONE}+{op}(.)+divide(e0={{0}}[40],.)" for op in ("relu", "tanh", "silu", "gelu")),
    "relu(data={0}[3,40])+isnan(.)", "add(lhs={0}[3,40],rhs={0}[40])+isinf(.)",
    "add(lhs={0}[3,40],rhs={0}[40])+tanh(.)+isnan(.)",
    f"{NONE}+ceil(.)+multiply(e0={{0}}[40],.)",
    f'{NONE}+prelu(.,e0={{0}}[40]){{{{"axis":1}}}}',
]
HEADS = [
    'pad(data=float32[0,40]){"pad_width":[[1,2],[0,0]]}', "zeros_like(data=float32[3,40])",
    'one_hot(indices=int32[3]){"depth":40,"on_value":0}', "ones_like(data=float32[3,40])+subtract(.,.)",
    'zeros_like(data=int32[3,40])+cast(.){"dtype":"float32"}',
    'strided_slice_backward(grad=float32[0,40],data=float32[3,40]){"begin":[3],"end":[3]}',
]


def check(text: str) -> None:
    import tvm

    workload = parse_workload(text).checked()
    rng, inputs = np.random.default_rng(1), random_inputs(workload, 3)
    for name, array in inputs.items():
        if epsilon(str(array.dtype)):
            inputs[name] = rng.choice(NUMBERS, array.shape).astype(array.dtype)
    with np.errstate(all="ignore"):
        right = np.asarray(reference(workload, inputs)[0])
        (tolerance,) = tolerances(workload, inputs, [right])
    for condition, implementation in evaluate(workload, TARGET):
        if condition is None or condition.decide():
            artefact = lower(workload, TARGET, implementation).compile(checks=False)
            found = tvm.runtime.empty(right.shape, artefact.arguments[-1].type.partition("[")[0])
            artefact.main(*map(tvm.runtime.tensor, inputs.values()), found)
            compare(found.numpy(), right, tolerance)


@pytest.mark.sample(20)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("chain", CHAINS)
def test_what_holds_of_real_numbers_only_is_not_assumed(chain: str, dtype: str) -> None:
    check(chain.format(dtype))


@pytest.mark.parametrize("step", ["divide(e0=float32[40],.)", "multiply(e0=float32[40],.)"])
@pytest.mark.parametrize("head", HEADS)
def test_zeros_that_are_known_are_factors_and_divisors(head: str, step: str) -> None:
    check(f"{head}+{step}")


@pytest.mark.parametrize("op", ["tanh", "erf", "atan"])
def test_no_bits_of_subnormal_numbers_are_lost(op: str) -> None:
    import tvm

    least = np.finfo("float32").smallest_subnormal
    data = np.arange(-40, 40, dtype="float32") * least
    data[:8] *= np.float32(2**18)
    workload = parse_workload(f"{op}(data=float32[80])").checked()
    found = tvm.runtime.empty((80,), "float32")
    lower(workload, TARGET, "broadcast.cpu").compile(checks=False).main(tvm.runtime.tensor(data), found)
    (right,) = reference(workload, {"data": data})
    np.testing.assert_allclose(found.numpy(), right, rtol=2**-22, atol=least)
