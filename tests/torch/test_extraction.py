"""Workloads of PyTorch models: what is found, how often, what is left over, and the model file."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from plevel.cli.model_file import read_model
from plevel.torch.extraction import ExtractError, extract, load_model
from tests.torch import models


def keys(found: object) -> dict[str, int]:
    return {w.workload.key: w.occurrences for w in found.workloads}


def test_a_transformer_is_products_with_their_epilogues():
    found = extract(*models.transformer())
    assert keys(found) == {
        "dense(data=float32[48,64],weight=float32[128,64]:const)"
        "+bias_add(.,bias_add0.bias=float32[128]:const)+gelu(.)": 2,
        "dense(data=float32[48,128],weight=float32[64,128]:const)"
        "+bias_add(.,bias_add0.bias=float32[64]:const)+add(.,add1.rhs=float32[48,64])": 2,
        "batch_matmul(x=float32[2,24,64],y=float32[2,24,64])": 1,
        'batch_matmul(x=float32[2,24,24],y=float32[2,24,64]){"transpose_b":false}': 1,
        "softmax(data=float32[2,24,24])": 1,
        # Of a library, where one sum comes after a reshape.
        "dense(data=float32[48,128],weight=float32[64,128]:const)+bias_add(.,bias_add0.bias=float32[64]:const)": 1,
        "add(lhs=float32[2,24,64],rhs=float32[2,24,64])": 1,
    }
    assert found.covered == 1
    assert sum(found.share(w) for w in found.workloads) == pytest.approx(1)
    assert found.flops == 4 * (2 * 48 * 64 * 128) + 2 * (2 * 2 * 24 * 24 * 64)


def test_convolutions_take_batch_norms_and_activations():
    found = extract(*models.convolutions())
    assert keys(found) == {
        'conv2d(data=float32[1,3,20,20],weight=float32[16,3,3,3]:const){"padding":[1,1,1,1]}'
        '+bias_add(.,bias_add0.bias=float32[16]:const)+clip(.){"a_max":6.0,"a_min":0.0}': 1,
        'conv2d(data=float32[1,16,20,20],weight=float32[16,1,3,3]:const)'
        '{"groups":16,"padding":[1,1,1,1]}'
        '+bias_add(.,bias_add0.bias=float32[16]:const)+relu(.)': 1,
        "conv2d(data=float32[1,16,20,20],weight=float32[32,16,1,1]:const)"
        "+bias_add(.,bias_add0.bias=float32[32]:const)+hardswish(.)": 1,
        'conv2d(data=float32[1,32,20,20],weight=float32[32,8,3,3]:const){"groups":4}'
        "+bias_add(.,bias_add0.bias=float32[32]:const)": 1,
    }
    assert found.covered == 1


@pytest.mark.full
def test_convolutions_of_groups_and_of_lines_are_images_of_groups():
    found = extract(*models.grouped())
    assert found.covered == 1
    bias = "+bias_add(.,bias_add0.bias=float32[{}]:const)".format
    assert {w.workload.key for w in found.workloads if w.flops} == {
        'conv2d(data=float32[2,16,15,13],weight=float32[32,4,3,3]:const){"groups":4,"padding":[1,1,1,1]}'
        + bias(32) + "+relu(.)",
        'conv2d(data=float32[2,32,15,13],weight=float32[64,1,3,3]:const){"groups":32,"strides":[2,2]}'
        + bias(64) + "+silu(.)",
        'conv2d(data=float32[2,64,7,6],weight=float32[48,8,1,1]:const){"groups":8}' + bias(48),
        'conv2d(data=float32[2,48,1,42],weight=float32[16,48,1,5]:const){"padding":[0,2,0,2],"strides":[1,2]}'
        + bias(16) + "+gelu(.)",
        'conv2d(data=float32[2,16,1,21],weight=float32[16,16,1,3]:const){"dilation":[1,2],"padding":[0,2,0,2]}'
        + bias(16) + "+add(.,add1.rhs=float32[2,16,1,21])",
        'conv2d(data=float32[2,16,1,21],weight=float32[8,4,1,3]:const){"groups":4}',
    }


def test_what_is_not_covered_is_named():
    upsampled = [torch.nn.Conv2d(3, 8, 3), torch.nn.ConvTranspose2d(8, 4, 2, 2)]
    # A graph with an operator that plevel lacks is no library.
    layers = torch.nn.Sequential(*upsampled, torch.nn.FractionalMaxPool2d(2, output_size=4)).eval()
    found = extract(layers, (torch.randn(1, 3, 10, 10),))
    assert [w.workload.op for w in found.workloads] == ["conv2d"]
    (missed,) = found.missed
    assert (missed.name, missed.occurrences) == ("aten.convolution.default", 1)
    assert 0 < missed.flops < found.flops
    assert found.covered == 1 - missed.flops / found.flops


def test_a_product_is_named_of_whose_values_the_first_is_not_used():
    weight = torch.randn(4, 3, 3, 3)

    def step(x):
        slope = torch.func.grad(lambda w: torch.nn.functional.conv2d(x, w).square().sum())
        return weight - 0.1 * slope(weight)

    found = extract(step, (torch.randn(2, 3, 8, 8),))
    assert "aten.convolution_backward.default" in {missed.name for missed in found.missed}


class Upsampled(torch.nn.Module):
    """Transposed convolutions with constant weights, of equal and of other strides, and one of given weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv1d(4, 16, 3, padding=1, groups=2)
        self.second = torch.nn.ConvTranspose2d(16, 8, 2, 2)
        self.third = torch.nn.ConvTranspose2d(8, 4, 3, (2, 1), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.third(self.second(self.first(x).relu()[:, :, None, :]).relu())


@pytest.mark.full
def test_products_that_a_library_alone_computes_are_tuned_and_named_as_those_of_onnx(tmp_path: Path):
    onnx = pytest.importorskip("onnx", reason="the onnx extra is not installed")
    from onnx import helper

    from plevel.onnx.extraction import extract as extract_onnx

    model = Upsampled().eval()
    found = extract(model, (torch.randn(1, 4, 12),))
    assert found.covered == 1
    assert not found.missed
    shares = [found.share(w) for w in found.workloads]
    assert sum(shares) == pytest.approx(1)
    products = {w.workload.key: w.occurrences for w in found.workloads if w.flops}
    assert products == {
        'conv2d(data=float32[1,4,1,12],weight=float32[16,2,1,3]:const){"groups":2,"padding":[0,1,0,1]}'
        "+bias_add(.,bias_add0.bias=float32[16]:const)+relu(.)": 1,
        "conv2d(data=float32[1,16,1,12],weight=float32[32,16,1,1]:const)"
        "+bias_add(.,bias_add0.bias=float32[32]:const)": 1,
        'conv2d_transpose(data=float32[1,8,2,24],weight=float32[8,4,3,3]:const){"padding":[1,1,1,1],"strides":[2,1]}'
        "+bias_add(.,bias_add0.bias=float32[4]:const)": 1,
    }
    node, weights = helper.make_node, {n: p.detach().numpy() for n, p in model.named_parameters()}
    nodes = [
        node("Conv", ["x", "first.weight", "first.bias"], ["a"], pads=[1, 1], group=2), node("Relu", ["a"], ["b"]),
        node("Unsqueeze", ["b", "axes"], ["c"]),
        node("ConvTranspose", ["c", "second.weight", "second.bias"], ["d"], strides=[2, 2]), node("Relu", ["d"], ["e"]),
        node("ConvTranspose", ["e", "third.weight", "third.bias"], ["y"], strides=[2, 1], pads=[1, 1, 1, 1]),
    ]
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "upsampled", [helper.make_tensor_value_info("x", kind, [1, 4, 12])],
        [helper.make_tensor_value_info("y", kind, [1, 4, 3, 24])],
        [onnx.numpy_helper.from_array(w, n) for n, w in (weights | {"axes": np.array([2])}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "m.onnx")
    assert keys(extract_onnx(tmp_path / "m.onnx", {})) == keys(found)


@pytest.mark.full
def test_what_else_a_library_of_the_graph_runs_is_tuned_where_there_is_a_choice():
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.MaxPool2d(2), torch.nn.Upsample(scale_factor=2), torch.nn.Softmax(-1)
    )
    inputs = (torch.randn(1, 3, 18, 18),)
    conv = (
        "conv2d(data=float32[1,3,18,18],weight=float32[16,3,3,3]:const)+bias_add(.,bias_add0.bias=float32[16]:const)"
    )
    softmax = "softmax(data=float32[1,16,16,16])"
    found = extract(layers.eval(), inputs)
    pool = 'max_pool2d(data=float32[1,16,16,16]){"pool_size":[2,2],"strides":[2,2]}'
    assert keys(found) == {conv: 1, softmax: 1, pool: 1}
    assert {w.workload.op: found.share(w) for w in found.workloads} == {"conv2d": 1, "softmax": 0, "max_pool2d": 0}
    # A graph with an operator that plevel lacks is no library.
    layers.append(torch.nn.FractionalMaxPool2d(2, output_size=4))
    assert keys(extract(layers.eval(), inputs)) == {conv: 1, softmax: 1}


@pytest.mark.full
def test_convolutions_of_a_library_are_tuned_in_blocked_layouts_too():
    layers = [torch.nn.Conv2d(16, 128, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(128, 16, 3, padding=1)]
    found = extract(torch.nn.Sequential(*layers).eval(), (torch.randn(1, 16, 28, 28),))
    blocked = [w for w in found.workloads if '_layout":"NCHW' in w.workload.key]
    assert sorted(w.workload.op for w in blocked) == ["conv2d", "conv2d", "layout_transform", "layout_transform"]
    assert [w.occurrences for w in blocked] == [1] * 4
    assert found.flops == sum(w.flops for w in found.workloads if w not in blocked)


class Residuals(torch.nn.Module):
    """Sums with either order of arguments, and a sum of two products."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 32, bias=False), torch.nn.Linear(32, 32, bias=False)

    def forward(self, x):
        left = x + self.a(x)
        right = self.a(left) + left
        return self.a(right) + self.b(right)


@pytest.mark.full
def test_equal_calculations_are_one_workload_whatever_their_place_and_order():
    found = keys(extract(Residuals().eval(), (torch.randn(32, 32),)))
    product = "dense(data=float32[32,32],weight=float32[32,32]:const)"
    merged = "dense(data=float32[32,32],weight=float32[64,32]:const)"
    assert found == {f"{product}+add(.,add0.rhs=float32[32,32])": 3, product: 1, merged: 1}


@pytest.mark.full
def test_a_model_with_several_graphs_is_read_whole():
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(32, 32, bias=False)

        def forward(self, x):
            y = self.a(x)
            torch._dynamo.graph_break()
            return self.a(y)

    found = keys(extract(Broken().eval(), (torch.randn(40, 32),)))
    assert found == {"dense(data=float32[40,32],weight=float32[32,32]:const)": 2}


def test_an_exported_program_has_the_same_workloads(tmp_path: Path):
    model, inputs = models.transformer()
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, inputs), path)
    assert keys(extract(*load_model(str(path)))) == keys(extract(model, inputs))


def test_a_function_may_give_the_module_of_an_exported_program(monkeypatch: pytest.MonkeyPatch):
    model, inputs = models.Block().eval(), (torch.randn(8, 64),)
    program = torch.export.export(model, inputs)
    monkeypatch.setitem(sys.modules, "quantised", SimpleNamespace(model=lambda: (program.module(), inputs)))
    assert keys(extract(*load_model("quantised:model"))) == keys(extract(model, inputs))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("tests.torch.models", "name package.module:function, a file.pt2 of torch.export.save, or a file.onnx"),
        ("tests.torch.models:nothing", "no attribute 'nothing'"),
        ("tests.torch.nowhere:f", "No module named"),
        ("nothing.pt2", "nothing.pt2: cannot be read: No such file or directory"),
        ("tests.torch.models:Attention", "should return the model and a tuple of inputs"),
        ("tests.torch.models:named", r"named\(\) gives inputs by name: give a tuple of them"),
    ],
)
def test_what_is_no_model_is_refused_by_name(where: str, said: str):
    with pytest.raises(ExtractError, match=said):
        load_model(where)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import sys; sys.exit(0)", r"left:f: its import ended with sys\.exit\(0\): keep the script's own work behind"),
        ("import sys\ndef f(): sys.exit(0)", r"left:f\(\) raised SystemExit: 0"),
    ],
)
def test_a_script_that_ends_the_process_is_an_error(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "left.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "left", raising=False)
    with pytest.raises(ExtractError, match=said):
        load_model("left:f")


@pytest.mark.parametrize("kept", [0, 300])
def test_a_program_that_is_cut_short_is_said_to_be_in_one_line(
    kept: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    model, inputs = models.transformer()
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, inputs), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ExtractError, match="not an exported program, or cut short: write one with torch.export.save"):
        load_model(str(path))
    assert not capfd.readouterr().err  # PyTorch logs a traceback of what it cannot read


def test_the_command_writes_what_tune_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from plevel.cli.main import main

    out = tmp_path / "model.toml"
    with pytest.raises(SystemExit) as done:
        main(["extract", "tests.torch.models:convolutions", "-o", str(out), "--json"])
    assert done.value.code == 0
    said = json.loads(capsys.readouterr().out)
    read = read_model(out).workloads
    assert {w.workload.key: w.weight for w in read} == {
        w["workload"]: w["occurrences"] for w in said["workloads"]
    }
    assert len(read) == 4
    assert 'target = "cpu -thread-pool=openmp -constants=cold"' in out.read_text().replace("'", '"')
    assert said["covered"] == 1


def test_what_a_model_s_code_prints_is_no_part_of_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from plevel.cli.main import main

    (tmp_path / "loud.py").write_text(
        "from tests.torch import models\n\ndef f():\n    print('loading')\n    return models.convolutions()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for option in (["--json"], []):
        with pytest.raises(SystemExit):
            main(["extract", "loud:f", "-o", str(tmp_path / "model.toml"), *option])
        captured = capsys.readouterr()
        assert ("loading" in captured.err, "loading" in captured.out) == (bool(option), not option)
        if option:
            json.loads(captured.out)


def test_the_command_refuses_what_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from plevel.cli.main import main

    with pytest.raises(SystemExit) as done:
        main(["extract", "tests.torch.models", "-o", str(tmp_path / "model.toml")])
    assert done.value.code == 2
    assert "name package.module:function" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_activations_are_read_whatever_the_way_they_are_written():
    (model, (x,)) = models.activations()
    product = "dense(data=float32[20,32],weight=float32[48,32]:const)"
    scale, shift = (f"{name}{{}}.rhs=float32[1]:const".format for name in ("multiply", "add"))
    found = extract(model, (x,))
    assert {w.workload.key: w.occurrences for w in found.workloads if w.flops} == {
        f"{product}+silu(.)": 2,
        f"{product}+hardswish(.)": 1,
        f'{product}+hardsigmoid(.){{"alpha":0.16666666666666666}}': 1,
        f"{product}+mish(.)": 1,
        f"{product}+leaky_relu(.)": 1,
        product + '+gelu(.){"approximate":"tanh"}': 2,
        f"{product}+gelu(.)": 1,
        product + '+clip(.){"a_max":0.7,"a_min":-0.125}': 1,
        product + '+clip(.){"a_max":1.0,"a_min":1.0}': 1,
        f"{product}+multiply(.,{scale(0)})+add(.,{shift(1)})+relu(.)+multiply(.,{scale(3)})": 1,
        product: 1,  # its value is used twice, in no activation that there is
    }


@pytest.mark.full
def test_products_of_one_operand_are_also_offered_as_one():
    found = extract(*models.decoder())
    dense = "dense(data=float32[24,32],weight=float32[{},32]:const)".format
    bias = "+bias_add(.,bias_add0.bias=float32[{}]:const)".format
    merged = {w.workload.key: {p.key: n for p, n in w.parts.items()} for w in found.workloads if w.parts}
    gated = dense(48) + "+silu(.)+multiply(.,multiply1.rhs=float32[24,48])"
    assert merged == {
        dense(64) + bias(64): {dense(32) + bias(32): 1, dense(16) + bias(16): 2},
        dense(96): {gated: 1, dense(48): 1},
    }
    alone = [w for w in found.workloads if not w.parts]
    assert sum(found.share(w) for w in alone) == pytest.approx(found.covered)
    heads = ",".join(f"{name}=float32[2,2,12,16]" for name in ("query", "key", "value"))
    assert [key for key in keys(found) if key.startswith("attention")] == [f"attention({heads})"]  # of a library, too
    assert found.covered == 1
    decoder, (x,) = models.decoder()
    causal = keys(extract(functools.partial(decoder, is_causal=True), (x,)))
    assert f'attention({heads}){{"is_causal":true}}' in causal
    masked = keys(extract(decoder, (x, torch.zeros(2, 1, 1, 12))))
    assert f"attention_bias({heads},bias=float32[2,1,1,12])" in masked


def test_a_model_in_training_keeps_its_statistics():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    assert extract(model, torch.ones(2, 8)).workloads  # a tensor is the one input
    assert model[0].num_batches_tracked == 0
    assert not model[0].running_mean.any()


def test_buffers_that_a_model_assigns_or_that_are_sparse_stay():
    class Counting(torch.nn.Linear):
        def forward(self, x):
            self.count = self.count + 1
            return super().forward(x) * self.count

    model = Counting(8, 4)
    model.register_buffer("count", torch.zeros(()))
    model.register_buffer("edges", torch.eye(8).to_sparse())
    count = model.count
    assert extract(model, torch.ones(2, 8)).workloads
    assert model.count is count


def test_inputs_that_a_model_writes_stay():
    layer, cache = torch.nn.Linear(8, 4), torch.zeros(2, 3, 4)

    def forward(x, caches):
        caches[1].add_(layer(x))
        return layer(x) * caches[1]

    assert extract(forward, (torch.ones(3, 8), list(cache))).workloads
    assert not cache.any()


def test_inputs_of_a_wrong_shape_are_one_error_without_a_log(caplog: pytest.LogCaptureFixture):
    import logging

    logging.getLogger("torch").addHandler(caplog.handler)  # its records do not propagate
    try:
        with pytest.raises(ExtractError, match=r"cannot be traced: .*\[3, 5\] X \[4, 4\]"):
            extract(torch.nn.Linear(4, 4), (torch.randn(3, 5),))
        with pytest.raises(ExtractError, match="inputs by name: give a tuple"):
            extract(torch.nn.Linear(4, 4), {"input": torch.randn(3, 4)})
        with pytest.raises(ExtractError, match=r"leaves its function uncompiled.*allow_rnn = True"):
            extract(torch.nn.GRU(4, 4), (torch.randn(2, 3, 4),))
    finally:
        logging.getLogger("torch").removeHandler(caplog.handler)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR] == []


@pytest.mark.full
def test_extracting_many_times_leaves_dynamo_able_to_compile():
    model = torch.nn.Linear(8, 8).eval()
    for batch in range(2, 12):
        assert len(extract(model, (torch.zeros(batch, 8),)).workloads) == 1
    reached = []

    def backend(module, inputs):
        reached.append(module)
        return module.forward

    with torch.inference_mode():
        torch.compile(model, backend=backend)(torch.zeros(3, 8))
    assert reached
