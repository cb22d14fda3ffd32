"""Norms and softmax of 16 bits in all spellings of PyTorch and transformers: one kernel each, that rounds once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from plevel.torch import explain
from plevel.torch.backend import plevel
from plevel.torch.exported import import_program
from strategy.expr import Call, post_order
from strategy.network.normal import normalize

pytestmark = pytest.mark.usefixtures("fresh")

EPSILON = 1e-6
ROWS, ROW = 40, 96


def inverse_root(x: Any) -> Any:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON)


def of_t5(x: Any, weight: Any, shift: Any) -> Any:
    return weight * (x * inverse_root(x.to(torch.float32))).to(weight.dtype)


def of_llama(x: Any, weight: Any, shift: Any) -> Any:
    """Also of Qwen, Mistral, Phi-3 and Mamba."""
    wide = x.to(torch.float32)
    return weight * (wide * inverse_root(wide)).to(x.dtype)


def of_gemma(x: Any, weight: Any, shift: Any) -> Any:
    wide = x.float()
    return (wide * inverse_root(wide) * (1.0 + weight.float())).type_as(x)


def of_olmo(x: Any, weight: Any, shift: Any) -> Any:
    wide = x.to(torch.float32)
    return (weight * (wide * inverse_root(wide))).to(x.dtype)


def of_torch(x: Any, weight: Any, shift: Any) -> Any:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, EPSILON)


def layer(x: Any, weight: Any, shift: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, shift, EPSILON)


def softmax(x: Any, weight: Any, shift: Any) -> Any:
    return torch.softmax(x, -1)


def of_scores(x: Any, weight: Any, shift: Any) -> Any:
    """As transformers has it where attention is written out."""
    return torch.nn.functional.softmax(x, dim=-1, dtype=torch.float32).to(x.dtype)


def root(x: Any, weight: Any, shift: Any) -> Any:
    return x * inverse_root(x) * weight


# With the operator, its norm in float64, and whether PyTorch rounds the quotient, too.
Spelling = tuple[Callable[..., Any], str, Callable[..., Any], bool]
SPELLED: dict[str, Spelling] = {
    "T5": (of_t5, "rms_norm", root, True),
    "LLaMA": (of_llama, "rms_norm", root, True),
    "Gemma": (of_gemma, "rms_norm", lambda x, w, s: root(x, 1 + w, s), False),
    "OLMo": (of_olmo, "rms_norm", root, False),
    "torch.nn.RMSNorm": (of_torch, "rms_norm", root, False),
    "torch.nn.LayerNorm": (layer, "layer_norm", layer, False),
    "softmax": (softmax, "softmax", softmax, False),
    "scores": (of_scores, "softmax", softmax, False),
}


class Norms(torch.nn.Module):
    """All of them, each of its own input: what two share PyTorch computes once."""

    def __init__(self, dtype: Any) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(torch.rand(ROW, dtype=dtype) + 0.5 for _ in SPELLED)
        self.shifts = torch.nn.ParameterList(torch.rand(ROW, dtype=dtype) for _ in SPELLED)

    def forward(self, *xs: Any) -> list[Any]:
        spelled = zip(SPELLED.values(), xs, self.weights, self.shifts, strict=True)
        return [norm(x, weight, shift) for (norm, *_), x, weight, shift in spelled]


def norms(dtype: Any) -> tuple[Norms, tuple[Any, ...]]:
    torch.manual_seed(0)
    return Norms(dtype).eval(), tuple(torch.randn(ROWS, ROW).to(dtype) for _ in SPELLED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)])
def test_each_spelling_is_one_kernel_that_rounds_once(dtype: Any, everywhere: None) -> None:
    model, xs = norms(dtype)
    with torch.inference_mode():
        found = torch.compile(model, backend=plevel, options={"confirm": False})(*xs)
        eager = model(*xs)
    (report,) = explain(model)
    assert report.replaced == len(SPELLED), str(report)
    assert {row.workload.inputs[0].tensor.dtype for row in report.rows} == {str(dtype).removeprefix("torch.")}
    given = zip(SPELLED.items(), found, eager, xs, model.weights, model.shifts, strict=True)
    for (name, (_, _, norm, is_rounded_twice)), one, other, *inputs in given:
        right = norm(*(i.detach().double() for i in inputs))
        unit = torch.finfo(dtype).eps * torch.exp2(torch.floor(torch.log2(right.abs())))
        error, errors_of_eager = ((value.double() - right).abs() / unit for value in (one, other))
        assert error.max() < 0.51, name
        assert ((one.double() - other.double()).abs() <= 1.001 * unit).all(), name
        assert (errors_of_eager.max() > 0.6) == is_rounded_twice, name


@pytest.mark.filterwarnings("ignore:`isinstance")  # of PyTorch's own trees
def test_each_spelling_is_one_operator_of_a_library() -> None:
    model, xs = norms(torch.bfloat16)
    network, _ = import_program(torch.export.export(model, xs))
    calls = [n for n in post_order(normalize(network).root) if isinstance(n, Call)]
    assert [(n.op.name, n.tensor_type.dtype) for n in calls] == [(op, "bfloat16") for _, op, *_ in SPELLED.values()]
