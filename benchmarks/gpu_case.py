"""The cases of the GPU's figures, and the configurations that are tried of each."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from plevel.database import plevel_database
from strategy.op_strategy import Candidate, candidates
from strategy.record import JobEntry
from strategy.select import holds
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload

BERT = ((768, 768), (3072, 768), (768, 3072))  # n, k
LLAMA = ((4096, 4096), (11008, 4096), (4096, 11008))
ATTENTION = (  # batch, heads, groups of them, queries, keys, depth, causal
    (8, 12, 12, 512, 512, 64, False), (16, 12, 12, 197, 197, 64, False), (1, 32, 32, 2048, 2048, 128, True),
    (1, 32, 8, 1, 4096, 128, False), (16, 32, 8, 1, 2048, 128, False),
)
EXPERTS = ((64, 1024, 2048, (64, 512, 8192)), (8, 4096, 4096, (16, 512, 4096)))  # groups, n, k, and numbers of rows
RESNET = (  # data, out channels, window, stride, padding
    ((3, 224, 224), 64, 7, 2, 3), ((64, 56, 56), 64, 1, 1, 0), ((64, 56, 56), 64, 3, 1, 1),
    ((256, 56, 56), 128, 1, 2, 0), ((128, 28, 28), 128, 3, 1, 1), ((512, 28, 28), 256, 1, 2, 0),
    ((256, 14, 14), 256, 3, 1, 1), ((1024, 14, 14), 512, 1, 2, 0), ((512, 7, 7), 512, 3, 1, 1),
)
SMALL = 24  # extents of `--small` at most


def cases(most: int | None = None) -> list[tuple[str, Workload]]:
    """Pairs of a goal's name and what is measured for it; with all extents cut to `most`, where given."""
    found: list[tuple[str, Workload]] = []

    def add(
        goal: str, op: str, shapes: dict[str, tuple[str, list[int]]], attrs: Any = None, *constant: str
    ) -> None:
        inputs = {
            name: f"{dtype}[{','.join(str(min(e, most or e)) for e in shape)}]"
            for name, (dtype, shape) in shapes.items()
        }
        case = goal, Workload.make(op, inputs, attrs, constant)
        if case not in found:
            found.append(case)

    for m, n, k in [(m, n, k) for n, k in LLAMA for m in (1, 16, 512)]:
        add("dense bfloat16", "dense", {"data": ("bfloat16", [m, k]), "weight": ("bfloat16", [n, k])})
    for dtype in ("float32", "float16"):
        shapes = [(1024, 1024, 1024), (4096, 4096, 4096), (511, 513, 1023)]
        shapes += [(m, n, k) for n, k in (*BERT, *LLAMA) for m in (1, 16, 512)]
        for m, n, k in shapes:
            operands = {"data": (dtype, [m, k]), "weight": (dtype, [n, k])}
            add(f"dense {dtype}", "dense", operands)
        for (c, h, w), out, window, stride, padding in RESNET:
            operands = {"data": (dtype, [1, c, h, w]), "weight": (dtype, [out, c, window, window])}
            attrs = {"strides": stride, "padding": padding}
            add(f"conv2d {dtype}", "conv2d", operands, attrs, "weight")
    single = "float32"
    affine = {"gamma": (single, [768]), "beta": (single, [768])}
    add("rows", "softmax", {"data": (single, [8192, 1024])})
    add("rows", "softmax", {"data": ("float16", [3072, 512])})
    add("rows", "layer_norm", {"data": (single, [8192, 768]), **affine})
    add("scan", "cumsum", {"data": (single, [16777216])})
    add("scan", "cumsum", {"data": (single, [4096, 4096])}, {"axis": 1})
    add("scan", "cumsum", {"data": (single, [64, 1048576])}, {"axis": 1})
    for batch, heads, groups, m, n, d, causal in ATTENTION:
        operands = {
            name: ("bfloat16", [batch, count, length, d])
            for name, count, length in (("query", heads, m), ("key", groups, n), ("value", groups, n))
        }
        add("attention", "attention", operands, {"is_causal": causal})
    for m, n, k in ((1, 4096, 4096), (1, 11008, 4096), (8, 11008, 4096)):
        count = -(-min(k, most or k) // 32)
        blocks = {"weight": ("uint8", [n, count, 16]), "scales": ("bfloat16", [n, count])}
        add("4 bits", "matmul_nbits", {"data": ("bfloat16", [m, k]), **blocks}, {"block_size": 32})
    for groups, n, k, m in [(g, n, k, m) for g, n, k, rows in EXPERTS for m in rows]:
        operands = {"data": ("bfloat16", [m, k]), "weight": ("bfloat16", [groups, n, k]), "ends": ("int32", [groups])}
        add("experts", "grouped_dense", operands)
    for rows, length, k in ((4096, 4096, 16), (1, 1000000, 50), (32, 128256, 50)):
        add("topk", "topk", {"data": (single, [rows, length])}, {"k": min(k, most or k)})
    add("sort", "argsort", {"data": (single, [1048576])})
    add("memory", "add", {"lhs": (single, [64, 1048576]), "rhs": (single, [1048576])})
    add("memory", "sum", {"data": (single, [8192, 8192])}, {"axis": [1]})
    return found


def draw(
    workload: Workload, target: Target, trials: int, seed: int, database: Path | None = None
) -> tuple[JobEntry, ...]:
    """Configurations of all implementations in turn, their fallbacks first; then a database's best, or random ones."""
    lists: list[tuple[Candidate, list[Config]]] = []
    tuned = None if database is None else _best_of(workload, target, database)
    for candidate in candidates(workload, target):
        if holds(candidate, workload):
            configs = [candidate.fallback]
            if tuned is not None:
                configs += [tuned[name] for name in {candidate.implementation} & tuned.keys()]
            elif candidate.space is not None:
                configs += candidate.space.sample(random.Random(seed), trials - 1)
            lists.append((candidate, list(dict.fromkeys(configs))))
    drawn = [
        (number, candidate, configs[turn])
        for turn in range(trials)
        for number, (candidate, configs) in enumerate(lists)
        if turn < len(configs)
    ]
    return tuple(
        JobEntry(
            index=index, task_id=number, implementation=candidate.implementation,
            version=candidate.version, config=config,
        )
        for index, (number, candidate, config) in enumerate(drawn)
    )


def _best_of(workload: Workload, target: Target, database: Path) -> dict[str, Config]:
    """The fastest configuration of each implementation in a database."""
    with plevel_database(database) as records:
        return {m.implementation: m.config for m in records.measured(workload, target, None)}
