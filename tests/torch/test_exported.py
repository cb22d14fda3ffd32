"""Exported programs as networks: what they compute, as PyTorch does, and what they refuse. Little is compiled."""

from __future__ import annotations

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.functional import (
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
    avg_pool2d,
    avg_pool3d,
    bilinear,
    grid_sample,
    interpolate,
    lp_pool2d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
    max_unpool2d,
    max_unpool3d,
    pdist,
    pixel_shuffle,
    scaled_dot_product_attention,
)

from plevel.comparison import UnfitError, error_of
from plevel.torch.aten import OPERATORS
from plevel.torch.exported import import_program, run_program
from plevel.torch.quantization import define_quantized
from strategy import compile as compiler
from strategy.expr import Call, Constant, Var, post_order
from strategy.network.graph import Network, NetworkError
from strategy.network.normal import normalize
from strategy.reference import evaluate

pytestmark = [
    pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning"),  # PyTorch's, of itself
    pytest.mark.filterwarnings("ignore:var.*degrees of freedom:UserWarning"),
]
X = torch.linspace(-4, 4, 32).view(4, 8)
ODD = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0, 1e38, 1e-3, -1.0, -0.9999999])
IMAGE = torch.linspace(-1, 1, 2 * 4 * 6 * 6).view(2, 4, 6, 6).sin()
COUNTS = torch.arange(32).view(4, 8) % 3
TURNS = torch.polar(torch.ones(4), torch.arange(4.0))
HALVED = torch.ones(8).to(torch.float8_e4m3fn)
BYTES, SCALES = (torch.arange(1024) % 251 - 125).to(torch.int8).view(16, 64), torch.arange(1, 17).bfloat16()


class Calls(nn.Module):
    def __init__(self, function, *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs):
        return self.function(*self.parts, *inputs)


def comparisons(x, kind):
    return [getattr(torch, op)(x, kind) for op in ("lt", "le", "gt", "ge", "eq", "ne")]


def mixed(experts, x, i):
    """The product of each row with its expert's weight, as transformers groups them."""
    chosen, order = torch.sort(i)
    ends = torch.histc(chosen.float(), bins=4, min=0, max=3).cumsum(0, dtype=torch.int32)
    found = torch._grouped_mm(x[order], experts.weight.view(4, 8, 8).transpose(1, 2), ends)
    return torch.empty_like(found).index_copy(0, order, found)


def written(x, i):
    found = torch.zeros_like(x)
    found[1:3, -2:] = x[:2, :2]
    found[0] = 1
    found[:, 0] += i[:, 0]
    found[1::2] -= 3
    found[:, 1:-1:3] = x[:, :2]
    return found


def added_to_diagonal(x, values):
    x.diagonal().add_(values)
    return x


def quantised(x, weight):
    """A linear layer as PyTorch's export quantises it, its data with a scale that is given or a tensor."""
    define_quantized()
    of, kind = torch.ops.quantized_decomposed, torch.int8
    rows = torch.linspace(0.01, 0.02, 4), torch.arange(4), 0, -127, 127, kind
    for own in ((0.037, 3), (torch.tensor(0.05, dtype=torch.float64), torch.tensor(-2))):
        numbers = *own, -128, 127, kind
        x = of.dequantize_per_tensor(of.quantize_per_tensor(x, *numbers), *numbers)
    return nn.functional.linear(x, of.dequantize_per_channel(of.quantize_per_channel(weight, *rows), *rows))


def quantised_anew(x, weight):
    """Linear layers whose data have the scale of their values at the call: of the tensor, or of each of its rows."""
    define_quantized()
    of, kind, found = torch.ops.quantized_decomposed, torch.int8, []
    rows = torch.linspace(0.01, 0.02, 4), torch.arange(4) - 4, 0, -127, 127, kind
    weight = of.dequantize_per_channel(of.quantize_per_channel(weight, *rows), *rows)
    for choose, low, high, own in (
        (of.choose_qparams, -128, 127, kind), (of.choose_qparams, 0, 255, torch.uint8),
        (of.choose_qparams_symmetric, -127, 127, kind), (of.choose_qparams_symmetric, 0, 255, torch.uint8),
    ):
        numbers = *choose(x, low, high, 1e-5, own), low, high, own
        found.append(of.dequantize_per_tensor(of.quantize_per_tensor(x, *numbers), *numbers))
    for choose in (of.choose_qparams_per_token, of.choose_qparams_per_token_asymmetric):
        numbers = *choose(x, kind), -128, 127, kind
        found.append(of.dequantize_per_token(of.quantize_per_token(x, *numbers), *numbers, torch.float32))
    return [nn.functional.linear(values, weight) for values in found]


def numbered(i, x):
    """Counts of numbers, and sums of weights, of which the program says how many there are."""
    found = [torch.bincount(i, minlength=5), *(torch.bincount(i, w, minlength=4) for w in (x, i))]
    for counts, length in zip(found, (5, 4, 4), strict=True):
        torch._check(counts.shape[0] == length)
    return [counts + 1 for counts in found]


def put(x, places, values):
    found = x.clone()
    found[places] = values
    return found


COMPUTED = {
    "a factor twice is no activation": (lambda x: (x * x * x.sigmoid(), x.sigmoid() * x * x), X),
    "nor is it with erf": (lambda x: (x * x * 0.5 * (1 + torch.erf(x * 0.5**0.5)), x * x * 0.5 * x.erf()), X),
    "activations": (lambda x: (x * x.sigmoid(), x * (0.5 * (1 + torch.erf(x * 0.5**0.5)))), X),
    "rrelu": (lambda x: (nn.functional.rrelu(x), nn.functional.rrelu(x, 0.25, 0.5)), X),
    "decimals": (lambda x: [torch.round(v, decimals=n) for v in (x, x * 100) for n in (0, 1, 3, -2)], X.exp()),
    "ranges whose numbers are rounded": (
        lambda i: (i + torch.linspace(0, 4, 15).long(), i + torch.arange(0, 15.2, dtype=torch.int64)),
        torch.zeros(15, dtype=torch.int64),
    ),
    "ranges of fractions in narrower integers": (
        lambda i: [torch.arange(*n, dtype=d) + i for d in (torch.int32, torch.int16)
                   for n in ((1.7, 9.9, 2.9), (5.5, -2.5, -3.5))],
        torch.zeros(3, dtype=torch.int64),
    ),
    "weights of one row": (
        lambda x, y: [nn.functional.linear(*a) for a in ((x, y), (x[0], y), (x[0], y, y[0]), (x[None], y, y[0]))],
        X, X[1].sin(),
    ),
    "integers and floats": (lambda i: comparisons(i, 0.5), COUNTS),
    "bools and numbers": (lambda b: [*comparisons(b, 2), *comparisons(b, 0.5), b + 2, b * 0.5], COUNTS > 0),
    "bools and bools": (
        lambda b, i: (b + b[:1], b.add(i > 1), b > b[:1], b >= b.flip(0), b < b[:1], b <= b.flip(0), (i - 1).exp2()),
        COUNTS > 0, COUNTS,
    ),
    "integers promoted": (lambda i: (i + 0.5, 0.5 - i, i * 1.0, torch.where(i > 1, i, 0.5)), COUNTS),
    "alpha": (lambda x, i: (torch.add(x, i, alpha=0.5), torch.sub(i, x, alpha=3), torch.add(i, i, alpha=3)), X, COUNTS),
    "functions of integers": (
        lambda i: (
            i.sqrt(), i.exp(), (i > 0).sigmoid(), i**0.5, i**2, i.float().sin(), i.reciprocal(), i.expm1(), i.isnan(),
            i.isinf(), (i > 0).isnan(), i.isfinite(), i.copysign(1 - i), torch.heaviside(i - 1, i),
        ), COUNTS,
    ),
    "long ranges": (lambda i: (torch.arange(0, 300_000, 0.5), torch.arange(0.5, 300_000), i + 1), COUNTS),
    "numbers as tensors": (lambda i: (i + torch.full((8,), 3), i + torch.arange(0, 4, 0.5)), COUNTS),
    "a part longer than its axis": (lambda x: (x[:, :1_000_000] * 2, x[-1_000_000:] * 2), X),
    "vectors": (lambda x, y: (x @ y, x @ y[:, None], y[None] @ x), X[0], X[1]),
    "products with factors": (
        lambda x: (
            torch.addmm(x[0], x, x.T @ x, beta=0.3, alpha=2), torch.addmm(x * torch.nan, x, x.T @ x, beta=0),
            torch.baddbmm(x[None], x[None], (x.T @ x)[None], beta=0.5),
        ), X,
    ),
    "products of integers": (
        lambda i, b, n, x: (
            i @ i.T, i @ i[0], i[0] @ i.T, n @ n.T, b @ b.T, b.int() @ b.int().T, nn.functional.linear(i, i, i[:, 0]),
            nn.functional.linear(n, n), torch.addmm(i[:, :4], i, i.T, beta=2, alpha=-3), x @ x.transpose(1, 2),
            torch.einsum("ab,cb->ca", i, i), (i << 60) @ i.T, torch.addbmm(i[0], x, x.transpose(1, 2) @ x, beta=3),
        ), COUNTS, COUNTS.to(torch.uint8) * 100, COUNTS.to(torch.int8) * 50, COUNTS.view(2, 2, 8),
    ),
    "products that are summed": (
        lambda x: (
            torch.addbmm(x[0, :, 0], x, x.transpose(1, 2), beta=0.5, alpha=2),
            torch.addbmm(x[0, :, 0] * torch.nan, x[:1], x[:1].transpose(1, 2), beta=0),
        ), IMAGE[0, :, :5],
    ),
    "whole powers": (
        lambda i, n, p: (
            i**3, n**5, i**0, n**2, 2**i, (-1) ** p, 3**i, i.pow(i), (i - 1).pow(p), n.pow(n), (i > 0) ** 2, i**2.5,
            2 ** (p - 1), (i + 3).pow(p * 30),
        ), COUNTS, COUNTS.to(torch.int8) * 50, COUNTS - 1,
    ),
    "one element without axes": (
        lambda x, i, p: (
            x.softmax(0), x.log_softmax(-1), *x.max(0), *x.min(-1, keepdim=True), x.argmax(0), x.argmin(), *x.topk(1),
            *x.sort(0), *i.sort(descending=True), *x.median(0, keepdim=True), *x.nanmedian(0), *x.kthvalue(1),
            x.var(correction=0), x.std(), *torch.var_mean(x, 0), x.amax(0), x.cumsum(0), x.cumprod(-1),
            x.logcumsumexp(0), *x.cummax(0), *i.cummin(0), x.index_select(0, p), i.max(), *i.mode(),
            x.index_reduce(0, p, x, "mean"),
        ), torch.tensor(0.5), torch.tensor(3), torch.tensor([0]),
    ),
    "bools that are ranked": (
        lambda b: (
            b.max(), b.amin(1), *b.max(1), *b.min(0, keepdim=True), *b.sort(1, descending=True), b.argsort(0),
            b.signbit(), b.byte().any(1), b.byte().any(), *b.cummax(1), *b.cummin(0),
            b.cumsum(1, dtype=torch.uint8), b.maximum(b[0]), b.minimum(b[:, :1]),
        ), COUNTS > 0,
    ),
    "variances with any correction": (
        lambda x: (
            x.var(1, correction=2.5), x.std(0, correction=-1), x.var((0, 1), correction=40), x[0].var(0, correction=8),
            (x[0] * 0).std(0, correction=9), *torch.var_mean(x, 1, correction=3, keepdim=True),
        ), X.sin(),
    ),
    "elements that are the most frequent": (
        lambda x, i: (*i.mode(1), *i.mode(0, keepdim=True), *x.mode(0), *(i > 0).mode(), *x.round().mode(1)), X, COUNTS,
    ),
    "Bessel functions": (lambda x, i: (x.i0(), torch.special.i0e(x * 20), (x.double() * 5).i0(), i.i0()), X, COUNTS),
    "angles of real numbers": (lambda x, i: (x.angle(), (i - 1).angle()), ODD, COUNTS),
    "copies of views": (
        lambda x: (torch.view_copy(x, (8, 4)), torch.permute_copy(x, (1, 0)), torch.narrow_copy(x, 1, 2, 3)), X,
    ),
    "numbers that wrap around": (
        lambda b, n, t: (
            b == 300, b < 300, b + 300, b * -1, b > -1, b & -2, b // -1, b % -3, -b, torch.where(b > 100, b, -1),
            n & 255, n == 200, b.masked_fill(b > 0, -1), torch.add(b, b, alpha=-3), torch.full_like(b, -1),
            b.sign(), t.sign(), t.clamp_max(t[0]), t.clamp_min(t[1]), t.fmax(t[0]), b.fmod(b[0] + 70),
            torch.fmod(n | -128, 3), torch.fmod(n | -128, -n - 1), torch.div(n | -128, 3, rounding_mode="trunc"),
        ), COUNTS.to(torch.uint8) * 100, COUNTS.to(torch.int8) * 50, COUNTS > 0,
    ),
    "bits": (
        lambda i, b: (
            i & 3, i | (i << 2), i ^ -5, ~i, (i - 9) >> 1, 1 << i,
            i.to(torch.uint8).bitwise_not(), b & (i > 1), ~b, b ^ b[0],
        ), COUNTS * 3, COUNTS > 0,
    ),
    "angles, and the larger of numbers": (
        lambda x, y: (
            x.atan2(y), y.atan2(x), x.copysign(y), x.fmax(y), y.fmin(x), x.hypot(y),
        ), torch.cat([X, ODD[None], -ODD[None]]), torch.cat([X.flip(0), ODD.flip(0)[None], ODD[None].roll(1)]),
    ),
    "logarithms and norms of any order": (
        lambda x: [
            x.log10(), x.pow(3).log2(), torch.cdist(x, x + 1, p=3), torch.dist(x, x * 2), torch.addmv(x[:, 0], x, x[0]),
            *(torch.linalg.vector_norm(x - 4, order, dim=1) for order in (0, 3, -1, 0.5, torch.inf, -torch.inf)),
        ], 10 ** (X + 4).floor(),
    ),
    "running extremes": (
        lambda x, i, y: [f(v, axis) for f in (torch.cummax, torch.cummin) for v in (x, i, y[2:], i.to(torch.uint8))
                         for axis in (0, -1)],
        X.sin(), COUNTS - 1, torch.stack([ODD, -ODD, ODD.roll(3), ODD.roll(5)]).nan_to_num(5),
    ),
    "medians": (
        lambda x, y: (
            x.median(), *x.median(1), *x.median(0, keepdim=True), *x.kthvalue(3, 1), y.median(1)[0], y.nanmedian(1)[0],
            y.nanmedian(), y.median(), *x[0, 0].median(0), x.long().median(0)[0], *x[:3].nanmedian(0),
        ), torch.randperm(32, generator=torch.Generator().manual_seed(0)).view(4, 8) / 7,
        torch.stack([ODD, ODD.roll(3), ODD * torch.nan, X[0]]),
    ),
    "bounds that are searched": (
        lambda x, y, i: [
            f(right) for right in (False, True) for f in (
                lambda r: torch.bucketize(x, x[0], right=r),
                lambda r: torch.bucketize(y, x[1], right=r, out_int32=True),
                lambda r: torch.searchsorted(x, x + 0.5, right=r), lambda r: torch.searchsorted(x[0], y, right=r),
                lambda r: torch.searchsorted(x[0], 1.5, right=r),
                lambda r: torch.bucketize(i, i[:, 0].sort()[0], right=r),
                lambda r: torch.searchsorted(x.flip(1), y.expand(4, 8), right=r, sorter=x.flip(1).argsort(1)),
            )
        ], X, ODD, COUNTS,
    ),
    "inverses, solutions and determinants": (
        lambda x, y: (
            torch.linalg.inv(x), torch.linalg.solve(x, y), torch.linalg.solve(x, y[..., 0]),
            torch.linalg.solve(x[0], y[0, :, 0]), torch.linalg.solve(x, y.mT, left=False), torch.linalg.solve(x[0], y),
            torch.linalg.det(x), x[1].det(), (x * 0 + 1).det(), x.logdet().nan_to_num(-1), *torch.linalg.slogdet(x),
            torch.linalg.inv(x[:, 1:2, :1]),
        ), torch.arange(75.0).view(3, 5, 5).square().sin() * (1 - torch.eye(5)), torch.arange(30.0).view(3, 5, 2).cos(),
    ),
    "values that a mask places": (
        lambda x, image: (
            x.index_put((x > 0,), torch.arange(16.0)), x.index_put((x > 0,), torch.arange(16.0), accumulate=True),
            put(x, x[:, 0] < 0, x[2:] * 2), put(x, (slice(None), x[0] > -3.5), 0.0), put(x, x[:, 0] > 0, x[3] * 5),
            put(image, (slice(None), image[0, :, 0, 0] > 0), image[:, :1] + 9),
            put(image, (slice(None), slice(None), image[0, 0] > 0), image[0, 0, :1, :1]),
            put(x, (slice(None), COUNTS[0] > 1), x[:, :2] + 7), put(x, x[:, 0] > 9, 3.0),
        ), X, IMAGE,
    ),
    "axes apart that are indexed": (
        lambda x, i, j: (
            x[i, :, j], x[:, i, :, j], x[i[:, None], :, :, j] * 2, put(x, (slice(None), i, slice(None), j), 9.0),
            put(x, (i, slice(None), j), x[:3, :, 0]),
        ), IMAGE.view(4, 4, 3, 6), torch.tensor([2, 0, 1]), torch.tensor([1, 0, -1]),
    ),
    "elements in the places of a mask": (
        lambda x, m, n: (
            x.masked_scatter(m, x * 2), x.masked_scatter(m[:, :1], x[1:]),
            x.masked_scatter(m[:, :1].expand(4, 8), X[0]),
            x.view(2, 2, 8).masked_scatter(n[:, None].expand(2, 2, 8), x), x.masked_scatter(m[1], x.flatten() + 1),
            x.view(4, 1, 8).masked_scatter(m[:, :1, None], x), x[0].masked_scatter(m, x),
        ), X, torch.tensor([0, 1, 1, 0, 0, 1, 0, 1]).bool() & (X > -3) & (X < 3), torch.tensor([[False], [True]]),
    ),
    "values that are claimed": (lambda x, i: (torch._check(i.max().item() <= 3), x + i)[1], X, COUNTS),
    "types that are claimed": (lambda x, i: (x.to(torch.float32) + 1, i.to(torch.float32)), X, COUNTS),
    "bfloat16": (nn.Linear(8, 4).bfloat16(), X.bfloat16()),
    "norms of bfloat16 by weights of float32, as autocast has them": (
        Calls(
            lambda rows, group, image, x, y: (rows(x), group(y), image(y)),
            nn.LayerNorm(8), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True),
        ), X.bfloat16(), IMAGE.bfloat16(),
    ),
    "transposed convolutions": (
        Calls(
            lambda a, b, x: (a(x), b(x[:, :, 0])), nn.ConvTranspose2d(4, 6, 3, (2, 3), 1, (1, 0), groups=2),
            nn.ConvTranspose1d(4, 3, 4, 2, 1),
        ), IMAGE,
    ),
    "transposed convolutions by phases": (
        Calls(
            lambda *parts: [part(parts[-1]) for part in parts[:-1]], nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2),
            nn.ConvTranspose2d(4, 3, 2, 2), nn.ConvTranspose2d(4, 2, (4, 5), 3, (0, 2), 2),
            nn.ConvTranspose2d(4, 2, 1, 2),
        ), IMAGE,
    ),
    "transposed convolutions of three dimensions": (
        Calls(
            lambda *parts: [part(parts[-1]) for part in parts[:-1]], nn.ConvTranspose3d(4, 2, 2, 2),
            nn.ConvTranspose3d(4, 6, (3, 2, 1), (2, 1, 3), (1, 0, 0), (1, 0, 2), groups=2, bias=False),
            nn.ConvTranspose3d(4, 2, (1, 3, 3), 1, (1, 1, 3), dilation=(1, 1, 2)),
            nn.ConvTranspose3d(4, 2, 2, 2, (1, 0, 1), (2, 0, 1), dilation=(3, 1, 2)),
        ), torch.stack([IMAGE, IMAGE + 1, IMAGE * 2], 2),
    ),
    "a convolution of three dimensions": (
        nn.Conv3d(4, 4, (2, 2, 1), (2, 1, 1), (1, 0, 1), groups=2), IMAGE[None].transpose(1, 2)
    ),
    "images at other sizes": (
        lambda x: (
            interpolate(x, scale_factor=2, mode="bilinear"),
            interpolate(x, (7, 3), mode="bilinear", align_corners=True),
            interpolate(x, (9, 5), mode="bicubic"), interpolate(x, (9, 5)), pixel_shuffle(x, 2),
            interpolate(x, (12, 74)), interpolate(x, scale_factor=(1.1, 1.7)),
            *(interpolate(x, size, factor, mode, align, antialias=True) for mode in ("bilinear", "bicubic")
              for size, factor, align in (((4, 9), None, False), (None, (0.7, 1.3), False), ((3, 2), None, True))),
        ), IMAGE,
    ),
    "images by scales that are no ratios of their sizes": (
        lambda x: [
            interpolate(x[:, :, :, :shape], scale_factor=scale, mode=mode)
            for shape, scale in ((5, 0.5), (3, (0.7, 1.3)), (4, (1.1, 2.3))) for mode in ("bilinear", "bicubic")
        ], torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(1)),
    ),
    "adaptive pools": (
        lambda x: [f(x, size) for f in (adaptive_avg_pool2d, adaptive_max_pool2d) for size in ((2, 3), (5, 4))], IMAGE
    ),
    "adaptive pools of three dimensions": (
        lambda x: [
            f(x, size) for f in (nn.functional.adaptive_avg_pool3d, nn.functional.adaptive_max_pool3d)
            for size in (1, (2, 3, 2), (3, 4, 6))
        ], IMAGE,
    ),
    "places of adaptive pools": (
        lambda x, y: [
            *nn.functional.adaptive_max_pool2d(x, (2, 3), return_indices=True),
            *nn.functional.adaptive_max_pool2d(x[0], (4, 7), return_indices=True),
            *nn.functional.adaptive_max_pool2d(y, (3, 4), return_indices=True),
            *nn.functional.adaptive_max_pool2d(y * 0, 1, return_indices=True),
            *nn.functional.adaptive_max_pool1d(x[0], 4, return_indices=True),
            *nn.functional.adaptive_max_pool3d(x[:, None], (3, 1, 4), return_indices=True),
            *nn.functional.adaptive_max_pool3d(y, (1, 2, 2), return_indices=True),
        ], IMAGE, torch.tensor([torch.nan, -torch.inf, 2, 2]).repeat(3, 5)[None, None, :, :6],
    ),
    "pools of one image": (
        lambda x: (
            max_pool2d(x, 3, 2, 1), avg_pool2d(x, 2), adaptive_max_pool2d(x, (5, 4)), adaptive_avg_pool2d(x, (5, 4)),
            adaptive_avg_pool2d(x, 2),
        ), IMAGE[0],
    ),
    "weights of bytes": (
        lambda x: torch._weight_int8pack_mm(x, BYTES, SCALES), X.repeat(1, 8).bfloat16()
    ),
    "products of bytes": (
        lambda x, y: (torch._int_mm(x, BYTES.t()), torch._int_mm(x, y.t()), torch._int_mm(x, y.t().contiguous())),
        BYTES[:3].flip(1), BYTES.flip(0).clone(),
    ),
    "elements by index": (
        lambda x, i: (
            x.gather(1, i), x.gather(0, i[:2]), x[torch.tensor([1, -1])], x[:, i[0]], x[i[0], i[1] - 2], x[i[:, :1]],
            x.view(4, 2, 4)[:, torch.tensor([[0], [1]]), i[:2, :3]],
            x.index_select(1, i[1]), torch.zeros(4, 8).scatter_add(1, i, x), x.scatter_add(0, i[:3], x),
        ),
        X, COUNTS,
    ),
    "orders": (
        lambda x: (
            *x.topk(3, 1), *x.topk(2, 0, largest=False), *x.sort(1, descending=True), x.argsort(0), x.flip(0, 1),
            x.cumsum(1), (x > 0).cumsum(0), x.cumprod(0), (x > 0).cumprod(0), x.roll(2, 1),
        ),
        X.sin(),
    ),
    "statistics": (
        lambda x: (
            x.var(1), x.std(0, correction=0), *torch.var_mean(x, 1, keepdim=True), *x.max(1), *x.min(0, keepdim=True),
            x.max(), x.prod(1), x.argmin(1), x.logsumexp(1), x.norm(dim=1),
        ),
        X.sin(),
    ),
    "truths": (
        lambda b, x: (
            b.any(), b.any(1), b.all(0, keepdim=True), x.any(1), b & (x > 1), b | (x > 1), b ^ (x > 1), ~b,
            torch.logical_and(x, b), torch.logical_not(x), b[:1].expand(4, 8), x.masked_fill(b, -7.0),
        ),
        COUNTS > 1, X.round(),
    ),
    "roundings": (
        lambda x, i: (
            x.ceil(), x.trunc(), x.sign(), x // 0.3, x % 0.3, torch.div(x, 0.3, rounding_mode="trunc"), i / 2, i // 2,
            (i - 1) % 2, x.reciprocal(), x.abs().log2(), torch.fmod(x, 0.7), i.ceil(), i.floor(), i.round(), i.trunc(),
            torch.div(i - 1, 2, rounding_mode="trunc"),
        ),
        X, COUNTS,
    ),
    "the other side of the error function": (lambda x: [(x * 2 + n).erfc() * (x * x * 4).exp() for n in (0, 1)], X),
    "inverses, gamma and signs": (
        lambda x, i: (
            *(f(v) for v in (x / 4, (x / 4).double()) for f in (torch.erfinv, torch.lgamma)), i.lgamma(),
            (x * 9).lgamma(), x.signbit(), (0 * x).signbit(), (i - 1).signbit(), x.logcumsumexp(0),
            x.view(2, 2, 8).logcumsumexp(1), (x * 40).logcumsumexp(-1),
        ), X, COUNTS,
    ),
    "near zero": (lambda x: (x.log1p(), x.expm1(), x.tan(), x.isfinite()), X.abs() * 1e-6),
    "activations by parts": (
        lambda x: (
            nn.functional.elu(x), nn.functional.selu(x), nn.functional.softplus(x), nn.functional.glu(x),
            nn.functional.logsigmoid(x), nn.functional.softsign(x), nn.functional.prelu(x, torch.tensor([0.25])),
        ),
        X,
    ),
    "shapes": (
        lambda x: (
            nn.functional.pad(x, (1, 2, 3, 0), value=1.5), nn.functional.pad(x > 0, (1, 2), value=True),
            nn.functional.pad(x, (-1, 2)), x.repeat(2, 1, 3), x.tril(-1),
            x.triu(1), torch.cat([torch.tensor([]), x], -2), torch.tile(x, (2,)),
            x.repeat_interleave(2, 1), torch.stack([x, x], 1), *x.chunk(3, 1),
        ),
        X,
    ),
    "one element": (
        lambda x, i: (x.sum(), x.mean(), x.amax(), x.cumsum(0), x.cumprod(0), x.norm(), x.gather(0, i), i.sum()),
        torch.tensor(0.5), torch.tensor(0),
    ),
    "small numbers": (
        lambda x: (x.log10(), (x * 1e20).expm1()), torch.tensor([1e-45, 1e-40, 1e-38, 1e-37, 1e-10]),
    ),
    "small numbers of 64 bits": (
        lambda x: (x.tanh(), x.expm1(), torch.nn.functional.elu(-x)), torch.tensor([1e-300, 1e-20, 1e-9]).double(),
    ),
    "signs of zeros": (
        lambda x: (1 / x.asinh(), 1 / x.atanh(), 1 / x.atan(), 1 / x.tanh()), torch.tensor([-0.0, 0]),
    ),
    "no variance": (lambda x: (x.var(0), x.std(1), *torch.var_mean(x, 1)), torch.ones(3, 1, 2)[:1]),
    "sums of integers": (
        lambda i: (i.int().sum(1), (i > 1).sum(), i.int().prod(0), i.sum(0, dtype=torch.float32)), COUNTS
    ),
    "bounds": (
        lambda x, i: (
            torch.ops.aten.hardtanh(x), x.clamp(3, 1), i.clamp(2, 1), nn.functional.hardtanh(x, -2, 1),
            (i + 2**60).clamp(2**60 - 1, 2**60 + 1) - 2**60,
        ), X, COUNTS,
    ),
    "bounds of bytes": (
        lambda b: (b.clamp(-6, 252), b.clamp(max=-3), b.clamp(min=2.5), b.clamp_min(-1), b.clamp(3, 1)),
        COUNTS.to(torch.uint8) * 100,
    ),
    "places in one row": (
        lambda x, p: (
            x.put(p, x[0, :3]), x.put(p.view(3, 1), x[0, :3], accumulate=True), x[0, 0].put(p[:1] * 0, x[1, 1]),
        ), X, torch.tensor([2, -1, 2]),
    ),
    "bools that are summed": (
        lambda b, i, p: (
            b.scatter_add(1, i, ~b), b.scatter_reduce(1, i, b, "sum"), b.index_put((p,), b[:3], accumulate=True),
            b.scatter_reduce(0, i, ~b, "sum", include_self=False), b.put(p, b[0, :3], accumulate=True),
        ), COUNTS > 1, COUNTS, torch.tensor([2, -1, 2]),
    ),
    "a reduction by name": (
        lambda x, i: (
            x.scatter(1, i, x, reduce="add"), x.scatter(0, i[:2], x, reduce="multiply"),
            i.scatter(1, i, 3, reduce="add"), x.scatter(1, i, 0.5, reduce="multiply"),
        ), X, COUNTS,
    ),
    "a corner of a scatter": (
        lambda x, i: (x.scatter_add(1, i[:3, :5], x), x.scatter_add(0, i[:2, :5], x + 1)), X, COUNTS
    ),
    "transposed convolutions that end later": (
        Calls(
            lambda *parts: [part(parts[-1]) for part in parts[:-1]],
            nn.ConvTranspose2d(4, 3, 3, 2, padding=1, output_padding=2, dilation=3),
            nn.ConvTranspose2d(4, 3, 2, (1, 2), output_padding=(1, 2), dilation=3),
        ), IMAGE,
    ),
    "aligned corners and a scale": (
        lambda x: interpolate(x, scale_factor=1.7, mode="bilinear", align_corners=True), IMAGE
    ),
    "two kinds of 16 bits": (lambda x: x.half() + x.bfloat16(), X.round()),
    "kinds side by side": (lambda x, i: (torch.cat([i.int(), x, i > 1]), torch.stack([i.int(), i])), X, COUNTS),
    "parts that are written": (
        lambda x, i: [written(x, i), x.select_scatter(x[:, 0], 1, -1)],
        X, COUNTS,
    ),
    "places that are written": (
        lambda x, i, p: (
            x.index_put((p,), x[:3] * 2), put(x, (slice(None), p), x[:, :1]), x.index_add(0, p % 2, x[:3]),
            x.index_put((p, p + 4), torch.tensor(9.0)), x.index_put((p, -p - 1), x[0, :3], accumulate=True),
            x.index_put((p[:, None], p), x[:1, :3]), x.index_put((x > 1,), torch.tensor(7.0)),
            x.index_copy(1, p, x[:, :3]),
            put(x.view(2, 2, 8), (slice(None), p % 2, p), x[:2, :3]), x.index_put((torch.tensor([0, 0]),), x[2:]),
            x.scatter(1, i, 5.0), x.scatter(0, p[:, None].expand(3, 5), x + 1), nn.functional.one_hot(i, 3),
            x.scatter_reduce(1, i, x, "amax"), x.scatter_reduce(0, i[:2], x, "amin"), x.scatter_reduce(0, i, x, "sum"),
            nn.functional.fold(nn.functional.unfold(x[None, None], 2), (4, 8), 2),
        ), X, COUNTS, torch.tensor([2, 0, 3]),
    ),
    "places that several elements are reduced to": (
        lambda x, i: [
            v.scatter_reduce(axis, places, v, how, include_self=own)
            for v in (x, i * 3 - 2) for axis, places in ((1, i), (0, i[:2]))
            for how in ("sum", "prod", "mean", "amax", "amin") for own in (True, False)
        ], X, COUNTS,
    ),
    "rows that are reduced to others": (
        lambda x, p: [
            x.index_reduce(axis, p[: x.shape[axis]] % 3, x, how, include_self=own)
            for axis in (0, 1) for how in ("prod", "mean", "amax", "amin") for own in (True, False)
        ], X, torch.tensor([2, 0, 3, 0, 1, 5, 2, 2]),
    ),
    "bags": (
        lambda w, i, o: (
            nn.functional.embedding_bag(i, w, mode="sum"), nn.functional.embedding_bag(i, w),
            nn.functional.embedding_bag(i[0], w, o),
            nn.functional.embedding_bag(i[0], w, o, mode="sum", per_sample_weights=w[0]),
            nn.functional.embedding_bag(i[0], w, o, include_last_offset=True),
            nn.functional.embedding_bag(i, w - 5, mode="max"), nn.functional.embedding_bag(i[0], w - 5, o, mode="max"),
            *(nn.functional.embedding_bag(i[0], w, o, mode=m, padding_idx=1) for m in ("sum", "mean", "max")),
            *(nn.functional.embedding_bag(i * 0, w, mode=m, padding_idx=0) for m in ("sum", "mean", "max")),
        ), X, COUNTS, torch.tensor([0, 3, 3, 8]),
    ),
    "memory by strides": (
        lambda x: (
            adaptive_avg_pool2d(x.contiguous(memory_format=torch.channels_last), 1) * 2,
            x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2).as_strided((3, 4), (2, 5), 1) * 2,
            (x + 1)[1:].as_strided((2, 3), (1, 2)) * 2, (x + 1)[1:].as_strided((2, 3), (1, 2), 150) * 2,
            (x + 1).as_strided((3, 1, 4, 5), (5, 7, 10, 1)) * 2, (x + 1).as_strided((5, 3, 4), (0, 4, 1), 2) * 2,
            (x + 1).as_strided((5, 40), (16, 1), 8) * 2, (x + 1).as_strided((4, 2, 3), (9, 3, 1), 3) * 2,
        ), IMAGE,
    ),
    "windows of many elements": (
        lambda x: x.repeat(600, 64).as_strided((8, 3, 200, 64), (64, 102_400, 512, 1)).amax((2, 3)), X,
    ),
    "norms of instances": (
        Calls(
            lambda a, b, c, x: (a(x), b(x.view(2, 4, 36)), c(x)), nn.InstanceNorm2d(4, affine=True),
            nn.InstanceNorm1d(4), nn.BatchNorm2d(4, track_running_stats=False),
        ), IMAGE,
    ),
    "pools of three dimensions": (
        lambda x: (
            max_pool3d(x, 2), max_pool3d(x, (2, 3, 3), 2, (1, 1, 0), (1, 2, 1), ceil_mode=True), max_pool3d(x[0], 2),
            avg_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0), count_include_pad=False), avg_pool3d(x, 3, 2, 1, True),
        ), IMAGE.view(1, 2, 4, 6, 6),
    ),
    "places of the largest elements": (
        lambda x, i, p: [
            *max_pool2d(x, 2, return_indices=True), *max_pool2d(x[0], (3, 2), (1, 2), (1, 0), return_indices=True),
            *max_pool2d(x, 3, 2, 1, 2, ceil_mode=True, return_indices=True),
            *max_pool2d(i, 3, 1, 1, return_indices=True), *max_pool1d(x[0], 3, 2, return_indices=True),
            *max_pool3d(x[:, None], (2, 3, 1), (1, 2, 3), (1, 1, 0), ceil_mode=True, return_indices=True),
            *max_pool2d(p, 3, 1, 1, return_indices=True), *max_pool2d(p, 2, return_indices=True),
        ], IMAGE, (IMAGE * 3).long(), torch.tensor([torch.nan, -torch.inf, 2, 2]).repeat(3, 5)[None, :, :6],
    ),
    "largest elements that are put back": (
        lambda x: (
            max_unpool2d(*max_pool2d(x, 2, return_indices=True), 2),
            max_unpool3d(*max_pool3d(x[:, None], 2, return_indices=True), 2, output_size=(5, 6, 7)),
        ), IMAGE,
    ),
    "pools by a divisor": (
        lambda x: (
            avg_pool2d(x, 3, 2, 1, ceil_mode=True, divisor_override=4), avg_pool2d(x[0], 2, divisor_override=1),
            avg_pool3d(x[:, None], (2, 3, 2), 2, 1, ceil_mode=True, divisor_override=5), lp_pool2d(x, 3, 2),
        ), IMAGE,
    ),
    "samples of a grid": (
        lambda x, g: (
            grid_sample(x, g, align_corners=False), grid_sample(x, g, "nearest", "border", align_corners=True),
            grid_sample(x, g, "bilinear", "border", align_corners=False),
            grid_sample(x, g, "nearest", align_corners=False), grid_sample(x, g, "bicubic", align_corners=False),
            grid_sample(x, g, "bilinear", "reflection", align_corners=False),
            grid_sample(x, g, "bicubic", "reflection", align_corners=True),
        ), IMAGE, (torch.arange(2 * 3 * 5 * 2).view(2, 3, 5, 2) * 0.7).sin().sqrt() * 2.4 - 1.2,  # some NaN
    ),
    "samples of a volume": (
        lambda x, g: [
            grid_sample(x, g, mode, padding, align_corners=align)
            for mode in ("bilinear", "nearest") for padding in ("zeros", "border", "reflection")
            for align in (False, True)
        ], IMAGE[:, None], (torch.arange(2 * 3 * 2 * 5 * 3).view(2, 3, 2, 5, 3) * 0.7).sin() * 1.9,
    ),
    "Fourier transforms": (
        lambda x: (
            *(torch.view_as_real(torch.fft.rfft(x, n, axis, norm)) for n, axis, norm in (
                (None, -1, None), (5, 0, "ortho"), (11, -1, "forward"),
            )),
            *(torch.fft.irfft(torch.fft.rfft(x), n, norm=norm) for n, norm in ((None, "ortho"), (7, None))),
            torch.fft.fft2(x).real, torch.fft.ifft2(torch.fft.fft2(x)[:3]).imag, torch.fft.rfftn(x).abs(),
            torch.fft.irfft2(torch.fft.rfft2(x), (4, 9)),
        ), X,
    ),
    "spectrograms": (
        lambda x, w: (
            torch.stft(x, 8, 4, window=w, return_complex=True).abs()[..., :-1],
            torch.stft(x[0], 8, 3, 6, w[:6], False, normalized=True, onesided=False, return_complex=True).angle().cos(),
            torch.istft(torch.stft(x, 8, 4, window=w, return_complex=True), 8, 4, window=w),
            torch.fft.rfftn(-x[:, :8]).angle(),  # no repetition, whose spectrum has zeros, and these any angle
        ), X.repeat(1, 4).sin(), torch.hann_window(8) + 0.1,
    ),
    "complex numbers": (
        lambda x: [torch.view_as_real(v) for z in (torch.complex(x, x + 1),) for v in (
            z + x, x - z, z * 2.5, z * (1 + 2j), z / x[0], z / (z + 3), z / 2j, z.conj() * z, -z, torch.cat([z, z]),
            torch.cat([x, z]), nn.functional.pad(z, (1, 2), value=1.0),
            z.sum(1), z.mean(0), z @ z.T, z[1:, None].expand(3, 2, 8), torch.view_as_complex(x.view(4, 4, 2)) * TURNS,
        )], X.sin(),
    ),
    "functions of complex numbers": (
        lambda x, i: [torch.view_as_real(v) for z in (torch.complex(x, x + 1),) for v in (
            z**2, z**3, z**-2, z**1, z.exp(), torch.where(x > 0, z, 2.0), torch.where(x > 0, x, z), 1 / z, z.mean(),
            z.cumsum(1), z.diagonal(), z.gather(1, i), z.unfold(1, 3, 2), torch.full_like(z, 1 + 2j), z[0] + 3j,
            torch.full((2,), 3j), nn.functional.linear(z, z[:3], z[0, :3]),
        )] + [v for z in (torch.complex(x, x + 1),) for v in (
            z.conj().imag * 2, torch.linalg.vector_norm(z, dim=1), z == z.conj(), z != z[0],
        )], X.sin(), COUNTS,
    ),
    "complex numbers that are written": (
        lambda x, i: [torch.view_as_real(v) for z in (torch.complex(x, x + 1),) for v in (
            written(z, i), torch.slice_scatter(z, z[:, :3] * 2j, 1, 1, 7, 2), z.select_scatter(z[0], 0, 2),
            z.index_put((i[0],), z[1]), z.index_put((i[0],), -z[:1], accumulate=True), torch.ops.aten.copy(z, x[0]),
        )] + [torch.ops.aten.copy(x, torch.complex(x, x) * 2)], X.sin(), COUNTS,
    ),
    "diagonals that are written": (
        lambda x, image: (
            x.clone().fill_diagonal_(3), torch.diagonal_scatter(x, x[0, :3], -1), torch.diagonal_scatter(x, x[:, 0], 2),
            torch.diagonal_scatter(image, image[:, :, 1, :3], 3, -1, 2), added_to_diagonal(x @ x.T, x[:, 0]),
            added_to_diagonal(torch.complex(x, x), x[0, :4]).imag,
        ), X, IMAGE,
    ),
    "paddings by name": (
        lambda x: [
            nn.functional.conv3d(x, x[:, :, :2, :3, :2], padding="valid"),
            nn.functional.conv3d(x, x[:, :, :3, :3, :3], padding="same"),
            nn.functional.conv2d(x[0], x[0, :, :, :2, :3], padding="valid"),
            nn.functional.conv1d(x[0, :, :, 0], x[0, :, :, 1, :3], padding="valid"),
        ], IMAGE.view(1, 2, 4, 6, 6),
    ),
    "integers beside an axis that float64 lacks": (
        lambda i: [nn.functional.pad(i, (1, 2), value=2**53 + 1) - n for n in (2**53, 2**53 + 1)], COUNTS
    ),
    "values of no elements": (
        lambda x: (
            torch.cat([x[:0].sort(0)[0], x]), torch.cat([x[:0].topk(2, 1)[0], x[:, :2]]),
            torch.cat([(x[:0] * 2)[:, None], x[:, None]]), torch.cat([x @ x[:0].T, x @ x.T], 1).softmax(1),
            x[:, :0] @ x[:, :0].T + x, torch.cat([(x[:0] @ x.T).relu() @ x, x]),
        ), X[:, :4].contiguous(),
    ),
    "heads in groups": (
        lambda q, k: scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True),
        IMAGE, IMAGE[:, :2].contiguous(),
    ),
    "attention of other ranks": (
        lambda q: (
            scaled_dot_product_attention(q, q[:, :3], q[:, :3, :5]),
            scaled_dot_product_attention(q[0], q[1], q[1], is_causal=True),
            scaled_dot_product_attention(q[None, None], q[None, None], q[None, None], q[:, :1, :4] > 0),
            scaled_dot_product_attention(q, q, q, q[0, :, :4] > 0, scale=0.5),
            scaled_dot_product_attention(q[None, :1], q[:, None], q[None, :1]),
            scaled_dot_product_attention(q[:, None], q[None], q[:1, None], is_causal=True),
        ), IMAGE[0, :, :4],
    ),
    "values without inputs": (
        lambda x: (x[torch.tril_indices(4, 4, -1).unbind()], x + torch.hann_window(8), x[:, :4] * torch.eye(4)), X
    ),
    "distances, windows, diagonals and bounds that are tensors": (
        lambda x: (
            pdist(x * x), pdist(x, 1), pdist(x[:1]), bilinear(x, x[:, :3], torch.sin(torch.arange(48)).view(2, 8, 3)),
            torch.cdist(x[:3], x + 1), torch.cdist(x, x[:2] * 2, p=1), x.unfold(1, 4, 3), x.unfold(0, 2, 1), x.exp2(),
            x.clamp(x[0], x[0].abs() + 1), x.clamp(min=x[:1] + 2), x.diagonal(),
            torch.einsum("iji->ji", x.view(4, 2, 4)), x.view(4, 2, 4).diagonal(-1, 0, -1),
            x.view(4, 2, 4).diagonal(1, 2, 1),
        ), X,
    ),
    "experts": (
        Calls(mixed, nn.Linear(8, 32).bfloat16()), X.bfloat16(), torch.tensor([3, 0, 3, 1])
    ),
    "integers for real numbers": (quantised, X, X.cos()),
    "integers of scales that values give": (quantised_anew, X.sin() + 0.2, X.cos()),
    "counts of numbers": (numbered, COUNTS.flatten(), X.flatten()),
    "histograms": (lambda x: (x.histc(5, -3, 2.5), x.sin().histc(7, -1, 1), x.round().histc(9, -4, 4)), X),
    "buckets of distances": (
        lambda x: x + torch.where(COUNTS < 1, COUNTS, torch.arange(32).view(4, 8).log().long() * COUNTS), X
    ),
    "memory that is written": (
        lambda x: (
            torch.empty_permuted((4, 8), (1, 0)).copy_(x) * 2, torch.empty_strided((4, 8), (1, 4)).copy_(x) * 3,
        ), X,
    ),
    "branches": (
        lambda x, b: [
            torch.cond(test, lambda x: (x.sin(), x[0].exp()), lambda x: (x * 2, x[1] + 1), (x,))
            for test in (b[0], b[1], (x.sum() > 1).logical_not())
        ], X, torch.tensor([True, False]),
    ),
    "steps over an axis": (
        lambda x, state: (
            *scan(lambda s, row: (s * 0.5 + row, (s.sin(), row - s)), state, x),
            *scan(lambda s, y: ((s[0] + y, s[1] * 2), s[0] * y), (state[:4] * 1, x[:, 0] + 1), x, dim=1, reverse=True),
        ), X, X[0].exp(),
    ),
    "steps until a number": (
        lambda x: while_loop(lambda i, x: i.sum() < 4, lambda i, x: (i + 1, x.cos() + i), (torch.tensor([0]), x)), X,
    ),
    "steps until a real number": (
        lambda x: while_loop(lambda i, x: i < 1, lambda i, x: (i + 0.25, x.cos() + i), (torch.tensor(0.5), x)), X,
    ),
    "an input named as an output": (lambda output: output * 2, X),
    "an input unchanged": (lambda x: (x, x.view(8, 4), x + 1), X),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", COMPUTED)
def test_a_program_computes_what_pytorch_does(name: str) -> None:
    called, *inputs = COMPUTED[name]
    model = called if isinstance(called, nn.Module) else Calls(called)
    program = torch.export.export(model.eval(), tuple(inputs))
    network, plain = import_program(program)
    reference = run_program(program, plain, ())
    for form in (network, normalize(network)):
        given = {v.name: value for v, value in zip(form.inputs, reference.inputs, strict=True)}
        for v in post_order(form.root):  # a variable that is no input stands for its shape
            if isinstance(v, Var) and v not in form.inputs:
                given[v] = np.broadcast_to(False, v.tensor_type.concrete_shape)
        found = evaluate(form.root, given)
        assert [np.shape(f) for f in found] == [r.shape for r in reference.outputs]
        errors = [error_of(f, r) for f, r in zip(found, reference.outputs, strict=True)]
        assert max(errors) < 1e-2 if any(t.dtype == torch.bfloat16 for t in inputs) else max(errors) < 1e-5, errors


COMPILED = {
    "histograms of their bounds": (
        lambda x, y: (x.histc(10, 0, 3), y.histc(3, 0.6, 0.9)),
        torch.tensor([0.3 * i for i in range(11)]), torch.tensor([0.6, 0.7, 0.8, 0.9]),
    ),
    "odd numbers": (
        lambda x, p: (x.log1p(), x.sign(), x.clamp(3, 1), p.log2()), ODD, 2.0 ** torch.arange(-40, 50),
    ),
    "numbers of 16 bits": (
        lambda x: (
            x.log1p(), x.log2(), x.norm(), x.bfloat16().log1p(), x.log10(), x.atan2(200 - x),
            x.bfloat16().hypot(x.bfloat16()),
        ),
        torch.tensor([10000.0, 60000, 100, 1e-3, 300, 400, 1.5]).half(),
    ),
    "large numbers": (
        lambda x: (x.asinh(), x.acosh(), (-x).asinh(), x.log1p()), torch.tensor([math.inf, 3e38, 1e38, 3e8, 2e8, 9, 1]),
    ),
    **{name: COMPUTED[name] for name in ("small numbers", "small numbers of 64 bits", "signs of zeros")},
    "no variance": (lambda x: (x.var(0), x.var(0, correction=0), x.var(0, correction=3)), torch.ones(1, 6)),
    "whole numbers beyond narrow integers": (
        lambda x: [x.to(t).float() for t in (torch.uint8, torch.int8, torch.int16)],
        torch.linspace(-1e5, 1e5, 32) + 0.5,
    ),
    "integers that wrap around": (
        lambda i, n, b: ((i << 60) @ i.T, n @ n.T, b @ b.T, (n.int() << 28) @ n.int().T, n**3, n.pow(n)),
        COUNTS, COUNTS.to(torch.int8) * 50, COUNTS.to(torch.uint8) * 100,
    ),
    "what a graph's edges send": (
        lambda x, i: (
            x[:1] + 1, torch.ones(5000, 64).index_add(0, i, x), torch.zeros(5000, 64).half().index_add(0, i, x.half()),
            torch.ones(5000, 64).scatter_reduce(0, i[:, None].expand(x.shape), x, "mean", include_self=False),
        ), (torch.arange(20_000 * 64) % 7).float().view(20_000, 64), torch.arange(20_000) ** 2 % 4999,
    ),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", COMPILED)
def test_a_compiled_program_computes_what_pytorch_does(name: str) -> None:
    called, *inputs = COMPILED[name]
    network, _ = import_program(torch.export.export(Calls(called), tuple(inputs)))
    expected = [r.float().numpy() for r in called(*inputs)]
    outputs = compiler.compile(network.root, "cpu")(*(i.numpy() for i in inputs))
    for found, wanted in zip(map(np.asarray, outputs), expected, strict=True):
        epsilon = {"float32": 1e-6, "float16": 1e-3}.get(found.dtype.name, 1e-2)
        np.testing.assert_allclose(found.astype("float32"), wanted, rtol=epsilon, atol=0)


def test_an_output_is_no_value_of_the_graph_whose_name_it_has() -> None:
    program = torch.export.export(Calls(lambda x: x.view(8, 4)), (X,))
    _, plain = import_program(program)
    assert run_program(program, plain, ["output", "view"]).values.keys() == {"view"}


@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_number_is_not_rounded_to_16_bits_before_a_product(dtype: torch.dtype) -> None:
    def multiplied(x):
        return (
            x * 0.1, x / 0.3, x / 1e5, x // 0.3, x * torch.tensor(0.1), x / torch.tensor(1e5),
            x / torch.tensor(300_000),
        )

    thirds = torch.tensor([-0.3, 0.3, -0.6, 0.9])  # whose quotients by the rounded number are whole
    program = torch.export.export(Calls(multiplied), (torch.cat([X.flatten(), thirds]).to(dtype),))
    network, plain = import_program(program)
    reference = run_program(program, plain, ())
    outputs = compiler.compile(network.root, "cpu")(*reference.inputs)
    for found, wanted in zip(outputs, reference.outputs, strict=True):
        assert np.asarray(found, "float64").tolist() == np.asarray(wanted, "float64").tolist()


REFUSED = {
    "an RReLU that draws random numbers": (lambda x: nn.functional.rrelu(x, training=True), X),
    "dropout_p": (lambda q: scaled_dot_product_attention(q, q, q, dropout_p=0.5), torch.ones(1, 2, 4, 8)),
    "its output 1 is used": (lambda x: torch.native_layer_norm(x, [8], None, None, 1e-5), X),
    "it returns complex.*, of complex numbers": (lambda x: torch.complex(x, x), X),
    "a spectrogram of complex numbers": (
        lambda x: torch.stft(torch.complex(x, x), 8, window=torch.ones(8), return_complex=True).abs(), X
    ),
    "complex numbers, of which plevel has no such": (lambda x: torch.fft.rfft(x).tan().real, X),
    "a transform of 5000 numbers": (lambda x: torch.fft.rfft(x, 5000).abs(), X),
    "a weight is of float8_e4m3fn": (lambda x: x * HALVED.float(), X),
    "a weight that is computed": (torch._weight_int8pack_mm, X.bfloat16(), BYTES[:, :8], SCALES),
    "a weight of k = 7": (lambda x: torch._weight_int8pack_mm(x, BYTES[:, :7].clone(), SCALES), X.bfloat16()[:, :7]),
    "by a mask and other indices": (lambda x, i: x.index_put((x[:, 0] > 0, i[:2, 0]), torch.zeros(2)), X, COUNTS),
    "a histogram from 0 to 0": (lambda x: x.histc(4), X),
    "memory by strides": (lambda x: x[:, 1:].as_strided((2, 2), (1, 1)), X),
    "memory before its tensor's": (lambda x: (x + 1)[1:].as_strided((3, 8), (8, 1), 0), X),
    "640000 elements written into an axis of 10000": (
        lambda x, i: x.index_reduce(0, i, x, "amax"), torch.zeros(10_000, 64), torch.zeros(10_000, dtype=torch.int64),
    ),
    "it returns no tensor": (lambda x: 3, X),
    "equations of 17 unknowns: plevel solves": (torch.linalg.inv, torch.eye(17)),
    "item.*depends on values: keep it a tensor": (lambda x, n: x * n.item(), X, torch.tensor(2.5)),
    "axis 0 of full has the size u0, which depends on values": (lambda n: torch.zeros(n.item(), 3), torch.tensor(3)),
    "PyTorch cannot decompose it": (torch.func.grad(lambda x: (x**2).sum()), X),
    "randn_like": (lambda x: x + torch.randn_like(x), X),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_computed_is_refused_by_name(message: str) -> None:
    called, *inputs = REFUSED[message]
    with pytest.raises(NetworkError, match=message):
        import_program(torch.export.export(Calls(called), tuple(inputs)))


def test_an_index_in_a_branch_limits_a_symbolic_size() -> None:
    def last(x):
        return x[torch.arange(3, 7)].sum(0)

    model = Calls(lambda x: torch.cond(x.sum() > 1, last, lambda x: x.sum(0), (x,)))
    sizes = {0: torch.export.Dim("n", min=2, max=64)}
    network, _ = import_program(torch.export.export(model, (torch.randn(9, 4),), dynamic_shapes=((sizes,),)))
    assert network.sizes is not None
    (size,) = network.sizes.sizes
    assert size.low == 7


def test_a_branch_by_a_symbolic_size_is_refused() -> None:
    model = Calls(lambda x: torch.cond(x.shape[0] > 5, lambda x: x.sin(), lambda x: x * 2, (x,)))
    sizes = {0: torch.export.Dim("n", min=2, max=64)}
    program = torch.export.export(model, (X,), dynamic_shapes=((sizes,),))
    with pytest.raises(NetworkError, match="its condition depends on a symbolic size"):
        import_program(program)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: while_loop(lambda x: x.sum() < 9, lambda x: (x + 1,), (x,)),
            r"while_loop \(while_loop\): whether there is another step depends on data: plevel unrolls loops of",
        ),
        (
            lambda x: while_loop(lambda i, x: i < 9999, lambda i, x: (i + 1, x.cos()), (torch.tensor(0), x)),
            r"while_loop \(while_loop\): plevel unrolls loops of at most 16384 nodes and steps in all",
        ),
    ],
)
def test_a_loop_that_cannot_be_unrolled_is_refused_in_one_line(function, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        import_program(torch.export.export(Calls(function), (X,)))


def test_integers_between_pixels_are_refused_in_one_line() -> None:
    program = torch.export.export(Calls(lambda x: interpolate(x, (9, 7), mode="bilinear")), (IMAGE.byte(),))
    with pytest.raises(NetworkError, match=r"^upsample_bilinear2d \(.*\): uint8 between pixels: .*, cast it first$"):
        import_program(program)


def test_an_index_in_an_early_step_of_a_loop_limits_a_symbolic_size() -> None:
    places = torch.tensor([[7], [0]])
    model = Calls(lambda x: scan(lambda s, place: (s + 1, x.index_select(0, place)[0] * 1), x[0] * 1, places)[1])
    sizes = {0: torch.export.Dim("n", min=2, max=64)}
    network, _ = import_program(torch.export.export(model, (torch.randn(9, 4),), dynamic_shapes=((sizes,),)))
    assert network.sizes is not None
    (size,) = network.sizes.sizes
    assert size.low == 8


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda x: x[:2] * 2, 2), (lambda x: x[-3:-1] * 2, 3), (lambda x: x[1:5] * 2, 5), (lambda x: x[3] * 2, 4),
        (lambda x: x[-2] * 2, 2), (lambda x: x[:1] * 2, 1), (lambda x: x[::1] * 2, 1),
        (lambda x: x[torch.tensor([0, 2]) + 2] * 2, 5), (lambda x: x[torch.tensor([0, -4])] * 2, 4),
        (lambda x: x.index_select(0, torch.tensor([4, 1])) * 2, 5), (lambda x: x[:, torch.tensor([0, 4])][0] * 2, 1),
        (lambda x: x[torch.arange(x.shape[0]) - 1] * 2, 1),
    ],
)
def test_parts_of_an_axis_bound_its_size(function, least: int) -> None:
    sizes = {0: torch.export.Dim.AUTO}
    program = torch.export.export(Calls(function), (X.repeat(2, 1),), dynamic_shapes=((sizes,),), strict=False)
    network, _ = import_program(program)
    assert network.sizes is not None
    (size,) = network.sizes.sizes
    assert size.low == least


def test_attention_with_heads_of_a_symbolic_size_is_refused_in_one_line() -> None:
    sizes = {3: torch.export.Dim("depth")}
    model = Calls(lambda q: scaled_dot_product_attention(q, q, q))
    program = torch.export.export(model, (IMAGE,), dynamic_shapes=((sizes,),))
    with pytest.raises(NetworkError, match=r"attention with heads of a symbolic size: export .* fixed$"):
        import_program(program)


def test_windows_that_overlap_take_rows_as_long_as_divide_their_steps() -> None:
    model = Calls(lambda x: x.as_strided((5, 40), (16, 1)) * 2)
    network, _ = import_program(torch.export.export(model, (X.repeat(4, 2),)))
    (take,) = (v for v in post_order(network.root) if isinstance(v, Call) and v.op.name == "take")
    data, places = take.args
    assert isinstance(places, Constant)
    assert (data.tensor_type.concrete_shape, places.value.size) == ((32, 8), 25)


def test_experts_compute_with_their_own_weights_only() -> None:
    called, *inputs = COMPUTED["experts"]
    network, _ = import_program(torch.export.export(called.eval(), tuple(inputs)))
    calls = {v.op.name: v for v in post_order(normalize(network).root) if isinstance(v, Call)}
    assert not {"dense", "batch_matmul"} & calls.keys()
    assert isinstance(calls["grouped_dense"].args[1], Constant | Var)  # as it is stored, out of rows of k


@pytest.mark.parametrize("aligned", [False, True])
def test_regions_are_sampled_as_torchvision_does(aligned: bool) -> None:
    """Each part of a box by the mean of its samples, computed one by one."""
    image = IMAGE.numpy()
    boxes = np.float32([[0, 1, 2, 9, 11], [1, -3, -2, 4, 6.5], [1, 4, 4, 4.5, 4.5], [0, 10, 1, 30, 4]])
    given = Var("x", "float32[2,4,6,6]"), Var("boxes", "float32[4,5]")
    made = OPERATORS["torchvision.roi_align.default"](*given, 0.5, 3, 2, 2, aligned)
    expected = np.zeros((4, 4, 3, 2))
    for i, (of, *box) in enumerate(boxes):
        left, top, right, bottom = (n / 2 - 0.5 * aligned for n in box)
        height, width = (e - b if aligned else max(e - b, 1) for b, e in ((top, bottom), (left, right)))
        for (row, column), _ in np.ndenumerate(expected[0, 0]):
            for down, across in np.ndindex(2, 2):
                y = top + height * (2 * row + down + 0.5) / 6
                x = left + width * (2 * column + across + 0.5) / 4
                if -1 <= y <= 6 and -1 <= x <= 6:
                    (y, v), (x, u) = (divmod(min(max(n, 0), 5), 1) for n in (y, x))
                    rows, columns = ([int(n), min(int(n) + 1, 5)] for n in (y, x))
                    pixels = image[int(of)][:, rows][:, :, columns]
                    expected[i, :, row, column] += np.einsum("cij,i,j->c", pixels, [1 - v, v], [1 - u, u]) / 4
    for form in (made, normalize(Network(given, {"y": made}, {})).outputs["y"]):
        assert error_of(evaluate(form, {"x": image, "boxes": boxes}), expected) < 1e-5


def test_what_is_written_beyond_an_axis_goes_nowhere() -> None:
    """PyTorch refuses such indices when it runs."""
    model = Calls(lambda x, i, j: x.index_put((i, j), torch.tensor(9.0)))
    program = torch.export.export(model, (X, torch.tensor([1, 2]), torch.tensor([2, 3])))
    network, _ = import_program(program)
    given = (X.numpy(), np.asarray([0, -4]), np.asarray([8, -8]))
    found = evaluate(network.root, {i.name: value for i, value in zip(network.inputs, given, strict=True)})
    expected = X.numpy().copy()
    expected[0, 0] = 9
    np.testing.assert_array_equal(found[0], expected)


def test_numbers_and_none_are_no_inputs_and_outputs_of_a_library() -> None:
    class Scaled(nn.Module):
        def forward(self, x, scale, names=None, flag=False):
            return {"y": x * scale if flag else x, "names": names, "count": 3}

    program = torch.export.export(Scaled(), (X, 2.5), {"flag": True})
    network, plain = import_program(program)
    reference = run_program(program, plain, ())
    assert len(network.inputs) == len(reference.inputs) == len(reference.outputs) == 1
    found = evaluate(network.root, {network.inputs[0].name: reference.inputs[0]})
    np.testing.assert_allclose(found[0] if isinstance(found, tuple) else found, X.numpy() * 2.5)


@pytest.mark.full
def test_state_is_refused_with_what_to_do() -> None:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x * self.count

    with pytest.raises(NetworkError, match="it changes count .* take such state as an input"):
        import_program(torch.export.export(Counter(), (X,)))
    cache = torch.zeros(4, 3)  # of the model, but no buffer of it: a constant, as of a static cache of transformers
    class Cached(nn.Module):
        def forward(self, x):
            return cache.index_copy_(0, torch.tensor([1]), x) * 2

    with pytest.raises(NetworkError, match=r"it changes .* \(constant_tensor\) when it runs"):
        import_program(torch.export.export(Cached(), (torch.ones(1, 3),), strict=False))
    with pytest.raises(NetworkError, match="a batch norm that changes its statistics: export the model in eval mode"):
        import_program(torch.export.export(nn.BatchNorm1d(8).train(), (X,)))


@pytest.mark.full
def test_a_deep_model_is_imported_with_extents_that_are_numbers() -> None:
    model = nn.Sequential(*(nn.Conv2d(1, 1, 1 + 2 * (i % 2), padding=i % 2) for i in range(150)))
    network, _ = import_program(torch.export.export(model.eval(), (torch.randn(1, 1, 5, 5),)))
    assert [str(n) for n in network.root.checked_type.fields[0].shape] == ["1", "1", "5", "5"]


def test_three_symbolic_sizes_are_the_rows_of_one_product() -> None:
    """Layers of ConvNeXt take pictures of n x h x w places."""
    model = nn.Sequential(nn.Conv2d(3, 4, 4, stride=4), Calls(lambda x: x.permute(0, 2, 3, 1)), nn.Linear(4, 2)).eval()
    sizes = {0: torch.export.Dim("n"), 2: 8 * torch.export.Dim("h"), 3: 8 * torch.export.Dim("w")}
    program = torch.export.export(model, (torch.zeros(2, 3, 16, 24),), dynamic_shapes=(sizes,))
    network, _ = import_program(program)
    assert network.sizes is not None
    (output,) = network.outputs.values()
    assert [str(e) for e in network.sizes.encoded(output.tensor_type)] == ["n", "2*m", "2*k", "2"]


def test_random_inputs_that_a_program_refuses_are_told_from_examples() -> None:
    program = torch.export.export(Calls(lambda x, i: x[i]), (torch.randn(1, 4), torch.tensor([0])))
    program._example_inputs = None
    _, plain = import_program(program)
    with pytest.raises(UnfitError, match="random inputs, as it has no examples: index 1 is out of bounds"):
        run_program(program, plain, ())
