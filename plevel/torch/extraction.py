"""The workloads of a model, with how often each occurs and its share of the arithmetic."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from plevel.extraction import (
    Extracted,
    ExtractError,
    Extraction,
    Missed,
    blocked_workloads,
    has_choice,
    library_workloads,
)
from plevel.torch.exported import import_graph
from plevel.torch.frozen import compile_frozen, unchanged
from plevel.torch.merging import find_merged
from plevel.torch.node import DTYPES, dtype, flops, is_of_integers, is_static, name_of
from plevel.torch.program import load_program
from plevel.torch.site import find_sites
from strategy.network.graph import NetworkError
from strategy.network.group import PRODUCTS
from strategy.workload import Workload

__all__ = ["ExtractError", "Extracted", "Extraction", "Missed", "extract", "extract_graph", "load_model"]


_BY_NAME = (
    "inputs by name: give a tuple of them, in the order of the model's arguments, or of the dictionary if the model "
    "takes one"
)


class _Read(Exception):
    """Ends a compilation once the frozen graph is read."""


def extract(model: Callable[..., Any], inputs: Sequence[Any]) -> Extraction:
    """The workloads of a model's call with these inputs; nothing is compiled, and buffers and inputs stay as they are.

    Raises:
        ExtractError: the model cannot be traced as one graph or more, or has no graph at all.
    """
    if isinstance(inputs, Mapping):
        raise ExtractError(_BY_NAME)
    graphs: list[Extraction] = []
    given = (inputs,) if isinstance(inputs, torch.Tensor) else inputs

    def read(module: GraphModule) -> None:
        graphs.append(extract_graph(module))
        raise _Read

    def backend(module: GraphModule, values: Sequence[Any]) -> Callable[..., Any]:
        try:
            compile_frozen(module, values, read)
        except Exception as error:
            if not _is_read(error):
                raise
            graphs[-1] = _with_library(module, values, graphs[-1])
        eager: Callable[..., Any] = module.forward
        return eager  # the rest of the model may be in further graphs

    was = torch._inductor.config.freezing
    modules = list(model.modules()) if isinstance(model, torch.nn.Module) else []
    held = [dict(m._buffers) for m in modules]
    written = [*(b for m in modules[:1] for b in m.buffers()), *(i for i in tree_leaves(given) if torch.is_tensor(i))]
    try:
        torch._inductor.config.freezing = True
        with unchanged(written), torch.inference_mode(), _without_traces():
            # Apart from other entries: of eight on one function, Dynamo compiles no more.
            torch.compile(model, backend=backend, dynamic=False, isolate_recompiles=True)(*given)
    except Exception as error:
        raise ExtractError(
            f"the model cannot be traced: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
        ) from error
    finally:
        torch._inductor.config.freezing = was
        for module, buffers in zip(modules, held, strict=True):
            module._buffers.update(buffers)
    if not graphs:
        raise ExtractError(
            "nothing to extract: the model calls no PyTorch operator, or PyTorch leaves its function uncompiled, as "
            "those with an LSTM or GRU: torch._dynamo.config.allow_rnn = True compiles them (TORCH_LOGS=graph_breaks: "
            "PyTorch's reasons)"
        )
    return _joined(graphs)


@contextmanager
def _without_traces() -> Iterator[None]:
    """Keep back what PyTorch logs of an error that it raises, too, such as of inputs of a wrong shape."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addFilter(_is_no_trace)
    try:
        yield
    finally:
        logger.removeFilter(_is_no_trace)


def _is_no_trace(record: logging.LogRecord) -> bool:
    return not record.exc_info


def _is_read(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, _Read):
        error = error.__cause__ or error.__context__
    return error is not None


def _with_library(module: GraphModule, inputs: Sequence[Any], known: Extraction) -> Extraction:
    """A graph's workloads with those that its library has beside them; as they are where it has no library.

    A library computes what its sites leave out, such as transposed convolutions, as products of its own form.
    """
    try:
        network, _ = import_graph(module, inputs)
        times, blocked = library_workloads(network), blocked_workloads(network)
    except NetworkError:
        return known
    sites = {w.workload for w in known.workloads}
    others = {w: n for w, n in times.items() if w not in sites and (w.op in PRODUCTS or has_choice(w))}
    found = [*known.workloads, *(Extracted(w, n, _flops(w, sites)) for w, n in others.items())]
    found += [Extracted(w, n, 0) for w, n in blocked.items() if has_choice(w)]
    return Extraction(tuple(found), ())


def _flops(workload: Workload, sites: Iterable[Workload]) -> int:
    """The operations of a product of a library; none of one that has a site, with another epilogue."""
    own = {msgspec.structs.replace(site, epilogue=()) for site in sites}
    is_other = workload.op not in PRODUCTS or msgspec.structs.replace(workload, epilogue=()) in own
    return 0 if is_other else workload.flops or 0


def extract_graph(module: GraphModule) -> Extraction:
    """The workloads of one frozen graph."""
    sites, counted = find_sites(module), dict(flops(module))
    of = {node: site.workload for site in sites for node in site.anchors}
    found: dict[Workload, Extracted] = {}
    for site in [*sites, *find_merged(module)]:
        parts = Counter(of[node] for node in site.anchors) if len(site.anchors) > 1 else Counter()
        size = sum(counted.get(node, 0) for node in site.anchors)
        _add(found, Extracted(site.workload, 1, size, parts))
    left = [(node, n) for node, n in counted.items() if node not in of]
    names = Counter(_missed_name(node) for node, _ in left)
    missed = [
        Missed(name, count, sum(n for node, n in left if _missed_name(node) == name))
        for name, count in names.items()
    ]
    return Extraction(tuple(found.values()), tuple(missed))


def _missed_name(node: Node) -> str:
    """The operator, with its dtype, operands or sizes where these are why it has no site."""
    if dtype(node) not in DTYPES:
        return f"{name_of(node)} of {str(dtype(node)).removeprefix('torch.')}"
    if is_of_integers(node):
        return f"{name_of(node)} of dequantised integers"
    return name_of(node) if is_static(node) else f"{name_of(node)} of symbolic sizes"


def _add(found: dict[Workload, Extracted], more: Extracted) -> None:
    before = found.get(more.workload)
    if before is None or (before.parts and not more.parts):
        found[more.workload] = more  # a single product of the same workload goes before merged ones
    elif bool(before.parts) == bool(more.parts):
        parts = Counter(before.parts) + Counter(more.parts)
        times = before.occurrences + more.occurrences
        found[more.workload] = Extracted(more.workload, times, more.flops, parts)


def _joined(graphs: Sequence[Extraction]) -> Extraction:
    found: dict[Workload, Extracted] = {}
    missed: dict[str, Missed] = {}
    for graph in graphs:
        for one in graph.workloads:
            _add(found, one)
        for m in graph.missed:
            before = missed.get(m.name, Missed(m.name, 0, 0))
            missed[m.name] = Missed(
                m.name, before.occurrences + m.occurrences, before.flops + m.flops
            )
    workloads = sorted(found.values(), key=lambda e: -e.occurrences * e.flops)
    return Extraction(tuple(workloads), tuple(sorted(missed.values(), key=lambda m: -m.flops)))


def load_model(where: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    """A model with inputs to call it with: of `package.module:function`, which gives both, or a `.pt2` file.

    Raises:
        ExtractError: there is no such function or file, or it does not give a model with inputs.
    """
    return _load_exported(Path(where)) if where.endswith(".pt2") else _load_function(where)


def _load_exported(path: Path) -> tuple[Callable[..., Any], Sequence[Any]]:
    try:
        program = load_program(path)
    except NetworkError as error:
        raise ExtractError(f"{path}: {error}") from error
    if program.example_inputs is None:
        raise ExtractError(f"{path} has no example inputs: export the model with inputs")
    args, kwargs = program.example_inputs
    model = program.module()
    return (lambda *given: model(*given, **kwargs)) if kwargs else model, args


def _load_function(where: str) -> tuple[Callable[..., Any], Sequence[Any]]:
    from importlib import import_module

    place, colon, name = where.partition(":")
    if not colon or not place or not name:
        raise ExtractError(
            f"{where!r:.120}: name package.module:function, a file.pt2 of torch.export.save, or a file.onnx"
        )
    try:
        function = getattr(import_module(place), name)
    except (ImportError, AttributeError) as error:
        raise ExtractError(f"{where}: {error}") from error
    except SystemExit as error:
        raise ExtractError(
            f"{where}: its import ended with sys.exit({error.code!r:.80}): keep the script's own work behind "
            "if __name__ == '__main__'"
        ) from error
    except Exception as error:
        raise ExtractError(f"{where}: its import raised {type(error).__name__}: {error}") from error
    try:
        found = function()
    except (Exception, SystemExit) as error:
        raise ExtractError(f"{where}() raised {type(error).__name__}: {error}") from error
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0])):
        raise ExtractError(
            f"{where}() gives {type(found).__name__}: it should return the model and a tuple of inputs"
        )
    model, inputs = found
    if isinstance(model, torch.nn.Module):
        with suppress(NotImplementedError):  # of an exported program, which stays in the mode that it has
            model.eval()
    if isinstance(inputs, Mapping):
        raise ExtractError(f"{where}() gives {_BY_NAME}")
    return model, tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
