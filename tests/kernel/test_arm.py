"""Libraries for Arm's processors, run by QEMU: products by their instructions give NumPy's answers."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategy.compile.entry import LibraryRow
from strategy.compile.export import export_library
from strategy.compile.lower import lower
from strategy.op_strategy import candidates
from strategy.target import Target
from strategy.workload import Workload
from workers.reference import compare, numpy_dtype, reference, tolerances

from .test_low_precision import KINDS, convolution, laid_out_shapes, points, product, whole_range

COMPILER = "aarch64-linux-gnu-gcc"  # Debian: gcc-aarch64-linux-gnu and qemu-user-static
EMULATOR = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
NEOVERSE = Target.parse("llvm -mcpu=neoverse-v1 -mtriple=aarch64-linux-gnu -num-cores=2")
MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include "made.h"
static void *room(const char *name, size_t size) {
  void *made = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  FILE *file = fopen(name, "rb");
  if (!file || fread(made, 1, size, file) != size) exit(2);
  fclose(file);
  return made;
}
int main(int count, char **sizes) {
  size_t size = strtoul(sizes[3], NULL, 10);
  void *out = room("out", size);
  if (product(room("data", strtoul(sizes[1], NULL, 10)), room("weight", strtoul(sizes[2], NULL, 10)), out)) return 3;
  return fwrite(out, 1, size, fopen("out", "wb")) != size;
}
"""


@pytest.fixture(autouse=True)
def compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    if EMULATOR is None or shutil.which(COMPILER) is None:
        pytest.skip("no compiler or emulator of AArch64 on this host")
    monkeypatch.setenv("CC", COMPILER)


def check(workload: Workload, name: str, config: Any, folder: Path) -> None:
    given = whole_range(workload, 5)
    (right,) = reference(workload, given)
    lowered = lower(workload, NEOVERSE, name, config)
    dtype = numpy_dtype(lowered.arguments[-1].tensor.dtype)
    files = {**given, "out": np.full(right.shape, 77).astype(dtype)}
    for file, numbers in files.items():
        (folder / file).write_bytes(numbers.tobytes())
    (folder / "main.c").write_text(MAIN)
    export_library(workload, [LibraryRow(lowered)], folder / "made.so", "product")
    command = [COMPILER, "main.c", "made.so", "-Wl,-rpath,$ORIGIN", "-o", "main"]
    subprocess.run(command, cwd=folder, check=True)
    sizes = [str(numbers.nbytes) for numbers in files.values()]
    emulated = [str(EMULATOR), "-cpu", "max", "-L", "/usr/aarch64-linux-gnu", "./main", *sizes]
    subprocess.run(emulated, cwd=folder, check=True, timeout=100)
    found = np.frombuffer((folder / "out").read_bytes(), dtype).reshape(right.shape)
    compare(found, np.asarray(right), tolerances(workload, given, [right])[0])


@pytest.mark.sample(2)
@pytest.mark.parametrize("layout", [None, "NCHW", "NHWC"])
@pytest.mark.parametrize(("kind", "weight"), KINDS)
def test_products_by_instructions(kind: str, weight: str, layout: str | None, tmp_path: Path) -> None:
    zeros = points(kind, (100, 120))
    workload = product(f"{kind}[7,36]", f"{weight}[21,36]", False, **zeros)
    if layout is not None:
        attrs: dict[str, Any] = {"padding": [1, 0, 2, 1], "data_layout": layout, "kernel_layout": "OIHW", **zeros}
        data, filters = laid_out_shapes(attrs, (2, 9, 7, 9), (17, 9, 3, 3))
        workload = convolution(f"{kind}[{data}]", f"{weight}[{filters}]", False, **attrs)
    made = [c for c in candidates(workload, NEOVERSE) if c.implementation.endswith(("_dot.cpu", "_mmla.cpu"))]
    assert len(made) == 2
    for candidate in made:
        assert candidate.space is not None
        (config,) = candidate.space.sample(random.Random(kind + weight), 1)
        check(workload, candidate.implementation, config, tmp_path)
