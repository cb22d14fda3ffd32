"""Reductions in Inductor's graph: which of them have kernels, and that these are measured ones."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from plevel.torch import explain, plan
from plevel.torch.backend import plevel
from plevel.torch.reduction import REDUCTIONS

pytestmark = pytest.mark.usefixtures("fresh")


class Reduced(torch.nn.Module):
    """Reductions of an input, of a product with its activation, of a norm's result, and of what Inductor computes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(48, 40), torch.nn.LayerNorm(40)

    def forward(self, x: Any) -> list[Any]:
        y = torch.relu(self.linear(x))
        normed = self.norm(y)
        return [
            x.amax(0), y.view(4, 6, 40).mean(1), y.argmax(-1), y.argmin(), normed.sum(), y.var(-1, correction=0),
            y.std(0), x.mean((0, 1), keepdim=True), torch.min(y),
            # With their neighbours:
            y.exp().sum(-1), y - y.mean(-1, keepdim=True), torch.softmax(y, -1), torch.sin(x).amax(1),
        ]


def compiled(model: torch.nn.Module, x: Any) -> Any:
    with torch.inference_mode():
        found, expected = torch.compile(model, backend=plevel, options={"confirm": False})(x), model(x)
    for one, right in zip(found, expected, strict=True):
        torch.testing.assert_close(one, right, atol=2e-5, rtol=2e-5)
    (report,) = explain(model)
    return report


def test_reductions_of_what_is_in_memory_have_kernels_where_these_are_measured(
    everywhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(24, 48)
    unmeasured = compiled(Reduced().eval(), x)
    rows = [row for row in unmeasured.rows if row.workload.op in REDUCTIONS]
    assert not any(row.implementation for row in rows)
    assert {row.reason for row in rows} == {"Inductor keeps a reduction whose kernel has not been measured"}
    torch._dynamo.reset()
    monkeypatch.setattr(plan, "measured_s", lambda chosen: 1e-6)
    report = compiled(Reduced().eval(), x)
    replaced = [row.workload for row in report.rows if row.implementation]
    found = sorted((w.op, w.inputs[0].type) for w in replaced if w.op in REDUCTIONS)
    assert found == [
        ("argmax", "float32[24,40]"), ("argmin", "float32[24,40]"), ("max", "float32[24,48]"),
        ("mean", "float32[24,48]"), ("mean", "float32[4,6,40]"), ("min", "float32[24,40]"), ("sum", "float32[24,40]"),
        ("variance", "float32[24,40]"), ("variance", "float32[24,40]"),
    ]
