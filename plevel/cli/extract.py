"""`plevel extract`: the workloads of a PyTorch model, as a model file."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plevel.cli import option
from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import whole

if TYPE_CHECKING:
    from plevel.extraction import Extraction
    from strategy.network.size import Dims


def extract(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION|FILE.pt2|FILE.onnx", show_default=False,
            help="A function that returns the model and a tuple of inputs, an exported program, or an ONNX model.",
        ),
    ],
    out: Annotated[Path, option.out("Where to write the model file.")] = Path("model.toml"),
    dim: option.Dims = None,
    as_json: option.AsJson = False,
) -> None:
    """Write a PyTorch or ONNX model's workloads to a file that `tune` and `lock` read.

    The function is imported from the current folder or from what is installed, and is run.

    Example: plevel extract models:resnet -o resnet.toml
    """
    from plevel.cli.model_file import write_model
    from plevel.cli.output import tell
    from strategy.record import RunWorkload
    from strategy.table import show_number

    option.check_apart("--out", out, [Path(model)])
    # The output of the model's own code is no part of the document.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        found = _extract(model, option.read_dims(dim))
    if not found.workloads:
        why = f"nothing in it that plevel has a kernel for{_missed(found)}"
        raise CommandError(f"{model}: {why}: 'plevel ops' lists the operators")
    head = (
        f"{model}: {show_number(len(found.workloads), 'workload')} with {100 * found.covered:.1f} % of "
        f"the arithmetic of its products{_missed(found)}"
    )
    listed = [RunWorkload(workload=w.workload, weight=w.occurrences) for w in found.workloads]
    with whole(out) as kept:
        kept.write(write_model(listed, head, "cpu -thread-pool=openmp -constants=cold").encode())
    rows = [
        {"workload": w.workload.key, "occurrences": w.occurrences, "share": found.share(w)}
        for w in found.workloads
    ]
    missed = [
        {"operator": m.name, "occurrences": m.occurrences, "flops": m.flops} for m in found.missed
    ]
    tell(
        f"{out}: {head}",
        {"model": str(out), "covered": found.covered, "workloads": rows, "missed": missed},
        as_json=as_json,
    )


def _extract(model: str, sizes: Dims) -> Extraction:
    from plevel.extra import require
    from plevel.extraction import ExtractError
    from strategy.network.graph import NetworkError

    try:
        if model.endswith(".onnx"):
            require("onnx", "onnx")
            from plevel.onnx.extraction import extract as extract_file

            return extract_file(Path(model), sizes)
        if not model.endswith(".pt2") and ":" not in model:
            raise UsageError(
                f"{model!r:.120}: name package.module:function, a file.pt2 of torch.export.save, or a file.onnx"
            )
        if sizes:
            raise UsageError("--dim: only ONNX files have sizes to give; give a PyTorch model inputs of other sizes")
        require("torch", "torch")
        from plevel.torch import extraction

        sys.path.insert(0, "")
        return extraction.extract(*extraction.load_model(model))
    except NetworkError as error:
        raise UsageError(f"{model}: {error}") from error
    except ExtractError as error:
        raise UsageError(str(error)) from error


def _missed(found: Extraction) -> str:
    if not found.missed:
        return ""
    whole = found.flops or 1
    listed = ", ".join(f"{m.name} ({100 * m.flops / whole:.1f} %)" for m in found.missed)
    return f"; not covered: {listed}"
