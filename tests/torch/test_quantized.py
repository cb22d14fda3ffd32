"""Programs that PyTorch has quantised (PT2E): products of integers in their networks, with PyTorch's values."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch import nn

from plevel.torch.exported import import_program
from strategy.expr import Call, Tuple, post_order
from strategy.network.graph import Network
from strategy.network.group import groups
from strategy.network.integer import multiply_integers
from strategy.network.normal import normalize
from strategy.reference import evaluate
from strategy.target import Target
from tests.torch import models

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself
VNNI, AVX2 = Target.parse("llvm -mcpu=znver4"), Target.parse("llvm -mcpu=haswell")


def linear() -> tuple[nn.Module, ...]:
    return nn.Linear(32, 24), nn.Linear(24, 8)


def images() -> tuple[nn.Module, ...]:
    return nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 16, 3, stride=2, bias=False), nn.Conv2d(16, 8, 1)


def read(model: nn.Module, x: torch.Tensor) -> Network:
    network, _ = import_program(torch.export.export(model.eval(), (x,)))
    return network


def check(
    network: Network, target: Target, model: nn.Module, x: torch.Tensor, atol: float = 1e-5
) -> list[tuple[str, ...]]:
    """The operators of each kernel of a network's products, whose values are PyTorch's."""
    made = normalize(multiply_integers(network, target))
    (found,) = evaluate(Tuple(list(made.outputs.values())), {network.inputs[0].name: x.numpy()})
    np.testing.assert_allclose(found, model(x).detach(), atol=atol)
    return [g.names for g in groups(made) if g.anchor.op.name.removeprefix("q") in ("dense", "conv2d", "matmul_nbits")]


@pytest.mark.parametrize("kind", ["static", "dynamic", "weight"])
@pytest.mark.parametrize(("layers", "shape"), [(linear, (2, 3, 32)), (images, (1, 8, 9, 9))])
def test_layers_are_products_of_integers_where_their_data_are_bytes(kind, layers, shape):
    torch.manual_seed(0)
    model, x = models.Quantised(*layers(), kind=kind), torch.rand(shape)
    network = read(model, x)
    product = "dense" if layers is linear else "conv2d"
    by_integers, by_floats = (check(network, target, model, x) for target in (VNNI, AVX2))
    of_weight = "matmul_nbits" if layers is linear else product
    wanted = of_weight if kind == "weight" else f"q{product}"
    assert [names[0] for names in by_integers] == [wanted] * len(model.layers)
    assert [names[0] for names in by_floats] == [of_weight] * len(model.layers)
    if kind == "static":  # one kernel from bytes to bytes
        assert by_integers[0] == (
            wanted, "dequantize", "bias_add", "relu", "multiply", "round", "add", "clip", "cast"
        )


class Given(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("weight", torch.randint(-128, 128, (8, 32), dtype=torch.int8))
        self.register_buffer("scales", torch.linspace(0.01, 0.02, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(torch.ops.quantized_decomposed, self.weight, self.scales, x)


DATA = (0.04, 9, -128, 127, torch.int8)
WEIGHT = (0.02, 0, -127, 127, torch.int8)


def data(of, x):
    return of.dequantize_per_tensor(of.quantize_per_tensor(x, *DATA), *DATA)


OTHERS = {
    "one scale of a weight": (
        lambda of, w, s, x: nn.functional.linear(data(of, x), of.dequantize_per_tensor(w, *WEIGHT)), "qdense"
    ),
    "scales that are tensors": (
        lambda of, w, s, x: nn.functional.linear(
            data(of, x), of.dequantize_per_tensor(w, torch.tensor(0.02), torch.tensor(0), -127, 127, torch.int8)
        ), "qdense",
    ),
    "a weight without zero points": (
        lambda of, w, s, x: nn.functional.linear(
            data(of, x), of.dequantize_per_channel(w, s, None, 0, -127, 127, torch.int8)
        ), "qdense",
    ),
    "scales of float64": (
        lambda of, w, s, x: nn.functional.linear(
            data(of, x), of.dequantize_per_channel(w, s.double(), None, 0, -127, 127, torch.int8)
        ), "dense",
    ),
    "zero points between integers": (
        lambda of, w, s, x: nn.functional.linear(
            data(of, x), of.dequantize_per_channel(w, s, s * 70, 0, -128, 127, torch.int8)
        ), "dense",
    ),
    "numbers of bfloat16": (
        lambda of, w, s, x: nn.functional.linear(
            of.dequantize_per_tensor(of.quantize_per_tensor(x, *DATA), *DATA, out_dtype=torch.bfloat16),
            of.dequantize_per_tensor(w, *WEIGHT, out_dtype=torch.bfloat16),
        ).float(), "dense",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_forms_have_pytorchs_values(name):
    torch.manual_seed(0)
    models.define_quantized()
    function, wanted = OTHERS[name]
    model, x = Given(function), torch.rand(5, 32)
    ((found, *_),) = check(read(model, x), VNNI, model, x, 1e-5 if "bfloat16" not in name else 0.1)
    assert found == wanted


@pytest.mark.parametrize(("after", "joined"), [
    (lambda y: y.round(), ("round",)),
    (lambda y: y.clamp(0, 9).long(), ("clip", "cast")),
    (lambda y: y.half(), ()),  # which has no number of a trial's random sums
    (lambda y: (40 * y).long(), ("multiply",)),
])
def test_casts_are_joined_to_sums_of_known_range(after, joined):
    torch.manual_seed(0)
    models.define_quantized()
    model, x = Given(lambda of, w, s, x: after(OTHERS["one scale of a weight"][0](of, w, s, x))), torch.rand(5, 32)
    made = normalize(multiply_integers(read(model, x), VNNI))
    (names,) = (g.names for g in groups(made) if g.anchor.op.name == "qdense")
    assert names == ("qdense", "dequantize", *joined)


@pytest.fixture(scope="module")
def affine():
    """torchao's operators, by parts of PyTorch's as its package defines them."""
    if hasattr(torch.ops.torchao, "dequantize_affine"):
        return torch.ops.torchao
    library = torch.library.Library("torchao", "FRAGMENT")
    kept.append(library)
    number = "Scalar? quant_min=None, Scalar? quant_max=None"
    library.define(
        "dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, "
        f"ScalarType input_dtype, {number}, ScalarType output_dtype=float) -> Tensor"
    )

    def dequantize(x, block, scale, point, _, low=None, high=None, output_dtype=torch.float32):
        blocks = [n for size, own in zip(x.shape, block, strict=True) for n in (size // own, own)]
        each = [n if i % 2 == 0 else 1 for i, n in enumerate(blocks)]
        shifted = x.reshape(blocks).to(output_dtype)
        shifted = shifted if point is None else shifted - point.reshape(each).to(output_dtype)
        return (shifted * scale.reshape(each)).reshape(x.shape).to(output_dtype)

    library.impl("dequantize_affine", dequantize, "CompositeImplicitAutograd")
    return torch.ops.torchao


kept: list = []  # a library's operators are there for as long as it is


class Affine(nn.Module):
    """A linear layer as torchao's `quantize_` exports it: groups of 4 bits, or bytes with data rounded by tokens."""

    def __init__(self, block: tuple[int, int], low: int, high: int, *, by_tokens: bool, kind=torch.float32) -> None:
        super().__init__()
        self.block, self.bounds, self.by_tokens, self.kind = list(block), (low, high), by_tokens, kind
        shape = 24 // block[0], 64 // block[1]
        self.register_buffer("weight", torch.randint(low, high + 1, (24, 64), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(shape).to(kind) / 50)
        self.register_buffer("point", torch.zeros(shape, dtype=torch.int8))
        self.bias = nn.Parameter(torch.rand(24).to(kind))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        of = torch.ops.torchao
        if self.by_tokens:
            scale = x.abs().amax(-1) / 100
            points = (x.amin(-1) * 40).clamp(-128, 127).to(torch.int8)
            q = ((x / scale[..., None]).round() + points[..., None]).clamp(-128, 127).to(torch.int8)
            x = of.dequantize_affine(q, [1] * (x.ndim - 1) + [64], scale, points, torch.int8, -128, 127)
        given = self.block, self.scale, self.point, torch.int8, *self.bounds
        return nn.functional.linear(x, of.dequantize_affine(self.weight, *given, output_dtype=self.kind), self.bias)


FORMS = {
    "groups of 4 bits": ((1, 32), -8, 7, False, "matmul_nbits"),
    "rows of bytes": ((1, 64), -128, 127, False, "matmul_nbits"),
    "one scale": ((24, 64), -128, 127, False, "matmul_nbits"),
    "blocks of several rows": ((2, 32), -8, 7, False, "dense"),
    "data by tokens": ((1, 64), -128, 127, True, "qdense"),
    "data by tokens, one scale": ((24, 64), -128, 127, True, "qdense"),
    "data by tokens, groups": ((1, 32), -8, 7, True, "matmul_nbits"),
}


@pytest.mark.parametrize("name", FORMS)
def test_torchaos_blocks_are_read_as_integers(affine, name):
    torch.manual_seed(0)
    block, low, high, by_tokens, wanted = FORMS[name]
    model, x = Affine(block, low, high, by_tokens=by_tokens), torch.randn(2, 3, 64)
    ((found, *_),) = check(read(model, x), VNNI, model, x)
    assert found == wanted
    _, plain = import_program(torch.export.export(model.eval(), (x,)))  # with whose values a library's are compared
    np.testing.assert_allclose(plain.module()(x).detach(), model(x).detach(), atol=1e-5)


def test_torchaos_numbers_of_bfloat16_are_its_own(affine):
    torch.manual_seed(0)
    model = Affine((1, 32), -8, 7, by_tokens=False, kind=torch.bfloat16)
    program = torch.export.export(model.eval(), (torch.randn(3, 64).bfloat16(),))
    network, _ = import_program(program)
    assert {node.op.name for node in post_order(network.root) if isinstance(node, Call)} >= {"dense"}
