"""Workloads as text: what is printed is read back, and what cannot be read says how to write it."""

from __future__ import annotations

import pytest
from hypothesis import given

from strategy.attrs import AttrsError
from strategy.op import all_ops
from strategy.types import TensorType, TypeSyntaxError
from strategy.workload import EpilogueStep, Input, Workload, WorkloadError
from strategy.workload_text import parse_workload
from tests.kernel.sweep import accepted
from tests.unit.test_workload import workloads


@given(workloads)
def test_any_workload_is_read_as_it_is_printed(workload: Workload) -> None:
    again = parse_workload(workload.key)
    assert again == workload
    assert again.key == workload.key


def _epilogued(workload: Workload) -> Workload | None:
    """With a residual added and a leaky ReLU, where the output is one tensor of numbers."""
    out = workload.out_type
    if not isinstance(out, TensorType) or not out.dtype.startswith("float"):
        return None
    steps = [
        EpilogueStep("add", (None, Input("residual", str(out)))),
        EpilogueStep("clip", (None,), {"a_min": 0.1, "a_max": 6.0}),
    ]
    return Workload.make(workload.op, workload.inputs, workload.attrs, epilogue=steps)


@pytest.mark.sample(33)
@pytest.mark.parametrize("name", sorted(all_ops()))
def test_examples_of_every_operator(name: str) -> None:
    examples = accepted(name)
    assert examples
    for example in examples:
        epilogued = _epilogued(example)
        for workload in (example, epilogued):
            if workload is not None:
                again = parse_workload(str(workload))
                assert again == workload
                assert again.checked() == workload


def test_symbolic_dimensions() -> None:
    workload = Workload.make("dense", {"data": "float32[m,768]", "weight": "float32[3072,768]"})
    assert parse_workload(str(workload)) == workload
    assert parse_workload(str(workload)).symbols == {"m"}


def test_spaces_do_not_matter() -> None:
    text = ' dense ( data = float32[128, 768] , weight=float32[3072,768] :const ) {"a": [1, 2]} + relu( . ) '
    assert parse_workload(text) == Workload(
        "dense",
        (Input("data", "float32[128,768]"), Input("weight", "float32[3072,768]", constant=True)),
        {"a": [1, 2]},
        (EpilogueStep("relu", (None,)),),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"cannot be read: write dense\(data="),
        ("softmax", r"'softmax' cannot be read: write softmax\(data=float32\[…\]\)"),
        ("sofmax", "did you mean softmax"),
        ("dense(", "cannot be read"),
        ("dense)(", "cannot be read"),
        ("(a=float32[1])", "an operator's name"),
        ("dense(data)", "input 'data' has no type"),
        ("dense(a=float32[1],)", "input '' has no type"),
        ("dense(.)", "'.' is the value so far"),
        ("dense(a=float32[1]){", "are no JSON object"),
        ('dense(a=float32[1]){"a":NaN}', "are no JSON object"),
        ('dense(a=float32[1]){"a":"\\ud800"}', "are no JSON object"),
        ('dense(a=float32[1]){"a":' + "[" * 100_000, "are no JSON object"),
        ("dense(a=float32[1])[1]", "after the inputs: write attributes as a JSON object"),
        ("dense(a=float32[1])+", "as \\+relu"),
        ("dense(a=float32[1])+relu", "cannot be read"),
        ("dense(a=float32[1])+relu()", "1 to 64 operands"),
        ("conv2d(data=float32[1,3,8,8],padding=same)",
         r'conv2d.padding: an attribute, no input: write attributes behind the inputs, as conv2d\(…\)\{"padding":…\}'),
    ],
)
def test_what_cannot_be_read_says_how_to_write_it(text: str, said: str) -> None:
    with pytest.raises(WorkloadError, match=said):
        parse_workload(text)


def test_an_attribute_of_another_type_is_told_an_example() -> None:
    workload = 'conv2d(data=float32[1,3,8,8],weight=float32[4,3,3,3]){"padding":"same"}'
    with pytest.raises(AttrsError, match=r"padding = 'same': expected tuple\[.*\], such as \[0, 0, 0, 0\]"):
        parse_workload(workload).checked()


def test_a_type_that_cannot_be_read_is_named() -> None:
    with pytest.raises(TypeSyntaxError, match=r"did you mean float32\?"):
        parse_workload("dense(data=flot32[1])")
