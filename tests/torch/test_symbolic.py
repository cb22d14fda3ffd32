"""Operators along axes of symbolic sizes: one library for all of them, beside PyTorch at several sizes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch import nn
from torch.nn.functional import (
    adaptive_avg_pool2d,
    adaptive_max_pool2d,
    avg_pool2d,
    conv2d,
    interpolate,
    layer_norm,
    max_pool2d,
    pad,
    scaled_dot_product_attention,
)

from plevel.cli.main import main

ROWS, PIXELS = torch.export.Dim("rows", min=4, max=70), torch.export.Dim("pixels", min=3, max=24)
IMAGE = {2: ROWS, 3: PIXELS}
ANY = {2: torch.export.Dim.DYNAMIC(min=5, max=70), 3: torch.export.Dim.DYNAMIC(min=6, max=69)}
X = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
PICTURE = X.view(1, 2, 4, 5)
DOWN, SAME = torch.linspace(-9, 9, 360).sin().view(20, 2, 3, 3), torch.linspace(-9, 9, 990).cos().view(5, 22, 3, 3)

def apart(x):
    """Rows of which none is as large as another one, where the example's are repeated."""
    return x + torch.arange(x.shape[0])[:, None] * 0.01


def attended(x):
    return (x @ x.mT).softmax(-1) @ x


# A function, what it is given, and the sizes of that.
COMPILED = {
    "orders": (
        lambda x: (
            *apart(x).sort(0, descending=True), apart(x).argsort(0), *apart(x).topk(3, 0), x.sort(0)[0],
            *apart(x).topk(4, 0, largest=False), *apart(x).kthvalue(2, 0), apart(x).argmax(0), apart(x).argmin(0),
            (x * 30).to(torch.int8).topk(3, 1)[0], (x > 0).to(torch.uint8).topk(2, 1, largest=False)[0],
        ), X, {0: ROWS},
    ),
    "integers, powers and variances": (
        lambda x: (
            (i := (x * 3).round().long()) @ i.T, i.T @ i, nn.functional.linear(i, i[:3]), x.var(0, correction=2.5),
            x.var(correction=3), torch.bucketize(x[0, 0], x[:, 1].sort()[0]),
            x.sin() ** x.shape[0], i.mode(0)[0], i.pow(2), i**3,
        ), X, {0: ROWS},
    ),
    "medians": (
        lambda x: (
            *apart(x).median(0), x.median(), *apart(x).T.nanmedian(1, keepdim=True), x.round().long().median(0)[0],
        ), X, {0: ROWS},
    ),
    "windows and diagonals": (
        lambda x: (
            x.unfold(0, 3, 1), (x @ x.T).diagonal(), (x @ x.T).diagonal(-2), (x @ x.T).diagonal(1), x.logcumsumexp(0),
            torch.cat([x, x]).unfold(0, 2, 2), torch.diagonal_scatter(x @ x.T, x[1:, 0], -1),
        ), X, {0: ROWS},
    ),
    "norms, searches, and extents that are multiples with a summand": (
        lambda x: (
            layer_norm(x.T, (x.shape[0],)), nn.functional.pdist(x), torch.searchsorted(x[:, 0].sort()[0], x[:, 1]),
            torch.cat([x, x[:3], x]) * 2,
        ), X, {0: ROWS},
    ),
    "sums and means by places": (
        lambda x: (
            i := apart(x)[:, :1].argsort(0).expand(x.shape) // 2, x.index_add(0, i[:, 0], x),
            x.scatter_reduce(0, i, x, "mean"), x.scatter_reduce(0, i, x, "sum", include_self=False),
            x.scatter_reduce(0, i, x, "mean", include_self=False), i.scatter_add(0, i, i),
        ), X, {0: ROWS},
    ),
    "histograms": (
        lambda x: (torch.outer(x[:, 0], x[:, 1]).flatten().histc(4, -2, 2), x.flatten().histc(3, -1, 3)), X, {0: ROWS},
    ),
    "pads": (
        lambda x: (
            pad(x, (0, 0, 0, 70 - x.shape[0]), value=1.5), pad(x, (0, 1, 70 - x.shape[0], 0)),
            pad(x, (0, 0, x.shape[0], 2)), pad(x, (0, 0, 2 - x.shape[0], 0)), pad(x > 0, (x.shape[0], 0), value=True),
        ), X, {0: ROWS},
    ),
    "transforms": (
        lambda x: (
            torch.fft.fft2(x).real, torch.fft.rfft(x, dim=0, norm="ortho").imag, torch.fft.ifft(x.T).imag,
            torch.fft.irfft(torch.fft.rfft(x.T), x.shape[0]),
            torch.stft(x.T, 4, 2, window=torch.hann_window(4), return_complex=True).abs(),
        ), X, {0: torch.export.Dim.DYNAMIC(min=4, max=70)},
    ),
    "larger images": (
        lambda x: (
            interpolate(x, scale_factor=2, mode="bilinear"), interpolate(x, scale_factor=3, mode="bicubic"),
            interpolate(x, scale_factor=2), interpolate(x, scale_factor=(2, 4)),
            interpolate(x, scale_factor=2, mode="bilinear", align_corners=True),
            interpolate(x.bfloat16(), scale_factor=(1, 2), mode="bilinear"),
        ), PICTURE, IMAGE,
    ),
    "the places of an image, and one more": (
        lambda x: attended(pad(x.flatten(2).mT, (0, 0, 1, 0), value=1.0)),
        PICTURE, IMAGE,
    ),
    "down and up again": (
        lambda x: conv2d(
            torch.cat([x, interpolate(conv2d(x, DOWN, stride=2, padding=1).relu(), x.shape[2:], mode="bilinear")], 1),
            SAME, padding=1,
        ), PICTURE.repeat(1, 1, 2, 2), {2: 2 * ROWS, 3: 2 * PIXELS},
    ),
    "strides over any picture": (
        lambda x: (
            y := conv2d(x, DOWN, stride=2, padding=1).relu(), max_pool2d(y, 3, 2, 1), max_pool2d(y, 2, ceil_mode=True),
            avg_pool2d(y, 3, 2, ceil_mode=True), y + conv2d(x, DOWN[:, :, :1, :1], stride=2),
            conv2d(avg_pool2d(y, 2), DOWN[:2, :1].repeat(1, 20, 1, 1), stride=3, padding=2).flatten(1),
        ), PICTURE.repeat(1, 1, 3, 3), ANY,
    ),
    "quotients of a picture": (
        lambda x: (
            x[:, :, ::2, 1::3] * 2, x + x.shape[3] // 3,
            interpolate(conv2d(x, DOWN, stride=2, padding=1), x.shape[2:], mode="bilinear") + 1,
            interpolate(x[:, :, ::2], scale_factor=(2, 1)),
            conv2d(x, DOWN, stride=2, padding=1).flatten(2).mT.softmax(-1),
        ), PICTURE.repeat(1, 1, 3, 3), ANY,
    ),
    "windows that divide a padded axis": (
        lambda x: (pad(x, (0, 0, 0, -x.shape[0] % 3)).unflatten(0, (-1, 3)).amax(1), x[: x.shape[0] // 2] * 2), X,
        {0: torch.export.Dim.DYNAMIC(min=4, max=70)},
    ),
    "an even axis beside the axis itself and one more": (
        lambda x: (
            y := pad(x, (0, 0, 0, x.shape[0] % 2)), y.unflatten(0, (-1, 2)).amax(1), pad(x, (0, 0, 1, 0)) * 2, x + 1,
            torch.cat([y, pad(x, (0, 0, 0, 1))]).softmax(0),
        ), X, {0: torch.export.Dim.DYNAMIC(min=4, max=70)},
    ),
    "images at parts of their size": (
        lambda x: (
            *(interpolate(x, scale_factor=(0.5, 0.75), mode=mode) for mode in ("nearest", "bilinear", "bicubic")),
            *(interpolate(x, (5, x.shape[3] // 2), mode=m, antialias=True) for m in ("bilinear", "bicubic")),
            adaptive_avg_pool2d(x, (3, 2)), adaptive_max_pool2d(x, (2, 3)),
        ), PICTURE.repeat(1, 1, 3, 3), ANY,
    ),
    "images of the size of others": (
        lambda x: (
            interpolate(x[:, :, :3, :2], x.shape[2:], mode="bicubic"), interpolate(x, (7, 3), mode="bilinear"),
            interpolate(x[..., :2, :2], (x.shape[2], 2 * x.shape[3])), interpolate(x, (x.shape[3], x.shape[2])),
            interpolate(x, (x.shape[3], 6), mode="bilinear", align_corners=True),
        ), PICTURE, IMAGE,
    ),
}


class Cached(nn.Module):
    """Two layers of attention to caches and to new tokens, with a mask over both."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 24), nn.Linear(8, 24)])

    def forward(self, x, seen, keys0, values0, keys1, values1):
        found = []
        for layer, keys, values in zip(self.layers, (keys0, keys1), (values0, values1), strict=True):
            q, k, v = (p.unflatten(-1, (2, 4)).transpose(1, 2) for p in layer(x).chunk(3, -1))
            found += [torch.cat([keys, k], 2), torch.cat([values, v], 2)]
            y = scaled_dot_product_attention(q, *found[-2:], attn_mask=seen[:, None, None])
            x = x + y.transpose(1, 2).flatten(2)
        return x, *found


class Called(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.forward = function


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself
@pytest.mark.parametrize("name", COMPILED)
def test_a_library_of_symbolic_sizes_computes_what_pytorch_does(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    function, given, sizes = COMPILED[name]
    program = torch.export.export(Called(function), (given,), dynamic_shapes=(sizes,), strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    arguments = [tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify", "--target", "cpu", "--threads", "2"]
    with pytest.raises(SystemExit) as done:
        main(["compile", *map(str, arguments)])
    assert not done.value.code, capsys.readouterr().err
    assert "agree at sizes" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself
@pytest.mark.parametrize("most", [None, 20])
def test_the_axes_of_a_cache_that_are_equal_are_one_size(
    most: int | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PyTorch has a symbol for each, with the bounds that each is given."""
    torch.manual_seed(0)
    seen = torch.ones(2, 8, dtype=torch.bool)
    seen[0, 0] = False
    given = torch.randn(2, 3, 8), seen, *torch.randn(4, 2, 2, 5, 4).unbind()
    free = torch.export.Dim.DYNAMIC
    dims = ({0: free, 1: free},) * 2 + ({0: free, 2: free},) * 3 + ({0: free, 2: free(max=most) if most else free},)
    program = torch.export.export(Cached().eval(), given, dynamic_shapes=dims, strict=False)
    torch.export.save(program, tmp_path / "model.pt2")
    arguments = [tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify", "--target", "cpu", "--threads", "2"]
    with pytest.raises(SystemExit) as done:
        main(["compile", *map(str, arguments)])
    assert not done.value.code, capsys.readouterr().err
    assert "agree at sizes" in capsys.readouterr().out
    header = (tmp_path / "model.h").read_text()
    assert "seen: bool[n,m + k], input" in header
    assert header.count("float32[n,2,k,4], input") == 4
    assert ("k: a symbolic size, from 1 to 20" in header) == bool(most)


@pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself
@pytest.mark.parametrize("bounds", [{"max": 9}, {"min": 7}], ids=str)
def test_a_sum_of_sizes_stays_within_its_bounds(bounds: dict[str, int], tmp_path: Path) -> None:
    free = torch.export.Dim.DYNAMIC
    given = torch.randn(4, 3), torch.randn(4, 3), torch.randn(8, 1)
    program = torch.export.export(
        Called(lambda x, y, mask: torch.cat([x, y]) * mask), given,
        dynamic_shapes=({0: free}, {0: free}, {0: free(**bounds)}), strict=False,
    )
    torch.export.save(program, tmp_path / "model.pt2")
    arguments = [tmp_path / "model.pt2", "-o", tmp_path / "model.so", "--verify", "--target", "cpu", "--threads", "2"]
    with pytest.raises(SystemExit) as done:
        main(["compile", *map(str, arguments)])
    assert not done.value.code
    said = "n + m: from 2 to 9" if "max" in bounds else f"n + m: from 7 to {2 * (2**31 - 1)}"
    assert said in (tmp_path / "model.h").read_text()
    call, buffers = ctypes.CDLL(str(tmp_path / "model.so")).plevel_model, [torch.ones(200) for _ in range(4)]
    pointers = [ctypes.c_void_p(b.data_ptr()) for b in buffers]
    found = [call(ctypes.c_int64(n), ctypes.c_int64(m), *pointers) == 0 for n, m in ((4, 4), (1, 1), (5, 5))]
    assert found == [True, "max" in bounds, "min" in bounds]
