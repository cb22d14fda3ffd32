"""Race of models: `torch.compile` with plevel's kernels beside Inductor with freezing, and eager PyTorch.

    python benchmarks/models.py [--threads N] [--database URL|FILE] [--seconds S] [MODEL...]

Models are written with torch.nn alone, of the sizes of BERT (two layers, 128 tokens), a multilayer
perceptron, ResNet-18 and a LLaMA layer (128 tokens), with random weights, in float32. `all` has every product that
plevel has a kernel for, `confirmed` only what the confirmation kept. Medians of interleaved bursts, in
milliseconds, and the ratio of Inductor's time to each. Without a database nothing is tuned. Needs torch==2.13.0.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.result import Cell, save

Made = tuple[nn.Module, tuple[Any, ...]]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width, bias=bias) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f in (self.query, self.key, self.value)
        )
        y = scaled_dot_product_attention(*parts, is_causal=self.causal)
        return self.out(y.transpose(1, 2).flatten(2))


class Encoder(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x + self.attention(x))
        return self.second(x + self.down(nn.functional.gelu(self.up(x))))


class Decoder(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads, causal=True, bias=False)
        self.first, self.second = nn.RMSNorm(width), nn.RMSNorm(width)
        self.gate, self.up = (
            nn.Linear(width, inner, bias=False),
            nn.Linear(width, inner, bias=False),
        )
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        y = self.second(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Residual(nn.Module):
    def __init__(self, given: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(given, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.skip: nn.Module = nn.Identity()
        if stride > 1:
            self.skip = nn.Sequential(
                nn.Conv2d(given, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(x) + self.skip(x))


def bert() -> Made:
    return nn.Sequential(Encoder(768, 12), Encoder(768, 12)), (torch.randn(1, 128, 768),)


def mlp() -> Made:
    sizes = [1024, 4096, 4096, 4096, 1000]
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), (torch.randn(64, 1024),)


def resnet() -> Made:
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    given = 64
    for channels in (64, 128, 256, 512):
        layers += [
            Residual(given, channels, 1 if channels == 64 else 2),
            Residual(channels, channels, 1),
        ]
        given = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)), (
        torch.randn(1, 3, 224, 224),
    )


def llama() -> Made:
    return Decoder(2048, 32, 5632), (torch.randn(1, 128, 2048),)


MODELS: dict[str, Callable[[], Made]] = {"bert": bert, "mlp": mlp, "resnet": resnet, "llama": llama}


def contenders(
    name: str, database: str | None
) -> tuple[dict[str, Callable[[], Any]], dict[str, float]]:
    """The calls to time, and the seconds that each took to compile."""
    from plevel.torch.backend import plevel

    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    place = {} if database is None else {"database": database}
    backends: dict[str, dict[str, Any]] = {
        "inductor": {},
        "all": {"backend": plevel, "options": {"confirm": False, **place}},
        "confirmed": {"backend": plevel, "options": {"confirm": True, **place}},
    }
    expected = model(*inputs)
    calls: dict[str, Callable[[], Any]] = {"eager": partial(model, *inputs)}
    compiled_s = {}
    torch._dynamo.reset()
    for label, given in backends.items():
        begin = time.perf_counter()
        function = torch.compile(model, dynamic=False, **given)
        found = function(*inputs)
        compiled_s[label] = time.perf_counter() - begin
        assert (found - expected).norm() <= 1e-4 * expected.norm(), (
            f"{name}: {label} differs from eager"
        )
        calls[label] = partial(function, *inputs)
    return calls, compiled_s


def measure(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Medians of bursts in turns, of a sixteenth of a second each."""
    samples: dict[str, list[float]] = {label: [] for label in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples["eager"]) < 5:
        for label, call in calls.items():
            count, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < 1 / 16:
                call()
                count += 1
            samples[label].append((time.perf_counter() - begin) / count)
    return {label: statistics.median(found) for label, found in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS)
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--database")
    parser.add_argument("--seconds", type=float, default=8.0)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.database is None:  # nor this user's own
        for name in ("PLEVEL_URL", "PLEVEL_DATABASE"):
            os.environ.pop(name, None)
        os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()
    print(f"{'model':8}{'':12}{'ms':>9}{'Inductor /':>12}{'compile s':>11}")
    rows: list[list[Cell]] = []
    with torch.inference_mode():
        for name in given.models:
            calls, compiled_s = contenders(name, given.database)
            found = measure(calls, given.seconds)
            for label, median_s in found.items():
                ratio, spent = found["inductor"] / median_s, compiled_s.get(label)
                shown = "" if spent is None else f"{spent:.1f}"
                print(
                    f"{name:8}{label:12}{1e3 * median_s:9.2f}{ratio:12.2f}{shown:>11}", flush=True
                )
                rows.append([name, label, median_s, ratio, spent])
    save(
        {"model": "", "": "", "median": "s", "times as fast as Inductor": "×", "first call": "s"}, rows,
        variant=f"{given.threads}-threads", peer="Inductor with freezing, and eager PyTorch",
        note="untuned" if given.database is None else "tuned",
    )  # fmt: skip


if __name__ == "__main__":
    main()
