"""Race of models: `torch.compile` with plevel's kernels beside eager PyTorch, Inductor, ONNX Runtime and OpenVINO.

    python benchmarks/models.py [--threads N] [--database URL|FILE] [--trials N] [--seconds S] [MODEL...]

Models are those of torchvision and transformers and a multilayer perceptron, with random weights, in float32.
Inductor freezes, as plevel's backend does (`--max-autotune` has it tune its products, too); with `--unguarded` none of
the compiled models checks before a call that its modules are as they were. `all` has every product that plevel has a
kernel for, `confirmed` only what the confirmation kept, the whole graph as one library where that is faster; `model.so`
is what `plevel compile` makes of the same model, called by its C function. `--trials` tunes each model's workloads
first, as many times as it has distinct workloads, into `--database`; `--metaschedule` lets MetaSchedule tune the same
model, imported into Relax, for as many. `--like` has a second database, whose kernels run beside: that of a model like
it, where this one had few trials.
Medians of bursts, in another order each round; before a burst the threads of other pools have time to fall asleep, and
calls of its first 20 ms are not counted. Without a database nothing is tuned. The first start is the first call
in a new process with empty caches on disk, confirmation included; the second start is that in another new process, with
the caches that the first has left. Needs torch==2.13.0, torchvision==0.28.0 and transformers; peers that are not
installed (onnxruntime with onnxscript, openvino) are left out. Each model's row is saved as soon as it is there, beside
those that are in the file already.
"""
# Over 300 lines: the models, and each way of running them.

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch._inductor.config
from torch import nn

from benchmarks.fixture import make_parser, natural
from benchmarks.result import Cell, save

Made = tuple[nn.Module, tuple[torch.Tensor, ...]]
PEERS = ("Inductor", "ONNX Runtime", "OpenVINO")
BESIDE = ("MetaSchedule", "like")  # where they are asked for
LIBRARIES = ("ONNX Runtime", "OpenVINO")  # as `model.so` they check no guards
SHOWN = ("eager", "Inductor", "ONNX Runtime", "OpenVINO", "all", "confirmed", "model.so")


class FirstOutput(nn.Module):
    """A model of transformers that gives a tensor instead of its record of outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (found, *_) = self.model(inputs_embeds=x, use_cache=False, return_dict=False)
        return found


def bert(tokens: int) -> Made:
    from transformers import BertConfig, BertModel

    config = BertConfig(attn_implementation="sdpa")
    return FirstOutput(BertModel(config, add_pooling_layer=False)), (torch.randn(1, tokens, 768),)


def llama(tokens: int) -> Made:
    """A layer of the sizes of LLaMA-7B."""
    from transformers import LlamaConfig, LlamaModel

    config = LlamaConfig(num_hidden_layers=1, vocab_size=16, attn_implementation="sdpa")
    return FirstOutput(LlamaModel(config)), (torch.randn(1, tokens, config.hidden_size),)


def mlp() -> Made:
    layers: list[nn.Module] = []
    for a, b in pairwise([1024, 4096, 4096, 4096, 1000]):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), (torch.randn(64, 1024),)


def vision(name: str, batch: int = 1) -> Made:
    import torchvision

    return torchvision.models.get_model(name), (torch.randn(batch, 3, 224, 224),)


MODELS: dict[str, Callable[[], Made]] = {
    "bert-128": partial(bert, 128),
    "bert-256": partial(bert, 256),
    "vit-b16": partial(vision, "vit_b_16"),
    "mlp-64": mlp,
    "resnet18": partial(vision, "resnet18"),
    "resnet50": partial(vision, "resnet50"),
    "resnet50-8": partial(vision, "resnet50", 8),
    "resnext50": partial(vision, "resnext50_32x4d"),
    "mobilenet-v2": partial(vision, "mobilenet_v2"),
    "efficientnet-b0": partial(vision, "efficientnet_b0"),
    "llama-128": partial(llama, 128),
    "llama-1": partial(llama, 1),
}


def compilers(
    database: str | None, max_autotune: bool, like: str | None = None, again: bool = False, unguarded: bool = False
) -> Iterator[tuple[str, Callable[[nn.Module], Any]]]:
    from plevel.torch.backend import plevel

    free = {"guard_filter_fn": torch.compiler.skip_guard_on_all_nn_modules_unsafe} if unguarded else {}
    make = partial(torch.compile, dynamic=False, isolate_recompiles=unguarded)
    yield "Inductor", partial(make, options={"max_autotune": max_autotune, **free})
    kinds = [("all", False, database), ("confirmed", True, database)]
    if like is not None:
        kinds.append(("like", True, like))
    for label, confirm, place in kinds:
        options: dict[str, Any] = {"confirm": confirm, "again": again and confirm, **free}
        options |= {} if place is None else {"database": place}
        yield label, partial(make, backend=plevel, options=options)


def freezing(label: str) -> Any:
    """The context of a compiler's first call: Dynamo freezes graphs for Inductor by a setting of the process alone."""
    return torch._inductor.config.patch(freezing=label == "Inductor")


def start(name: str, label: str, database: str | None, threads: int, max_autotune: bool, again: bool) -> float:
    """Seconds of a model's first call by one of the compilers; `again` confirms whatever is on record."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    compiler = dict(compilers(database, max_autotune, again=again))[label]
    with torch.inference_mode(), freezing(label):
        begin = time.perf_counter()
        compiler(model.eval())(*inputs)
        return time.perf_counter() - begin


def starts(name: str, label: str, given: argparse.Namespace) -> tuple[float, float]:
    """`start` in a process with empty caches on disk, and in another with those that it left."""
    found = []
    with tempfile.TemporaryDirectory() as caches:
        folders = {n: str(Path(caches, n)) for n in ("XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR")}
        for again in (True, False):
            call = f"start({name!r}, {label!r}, {given.database!r}, {given.threads}, {given.max_autotune}, {again})"
            done = subprocess.run(
                [sys.executable, "-c", f"from benchmarks.models import start; print({call})"],
                env={**os.environ, **folders, "PYTHONPATH": os.pathsep.join(sys.path)},
                stdout=subprocess.PIPE, text=True, check=True,
            )
            found.append(float(done.stdout.split()[-1]))
    return found[0], found[1]


def peers(model: nn.Module, x: torch.Tensor, threads: int) -> Iterator[tuple[str, Any]]:
    """ONNX Runtime and OpenVINO as calls of one input, each of the same exported file."""
    try:
        import onnxruntime

        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = str(Path(folder) / "model.onnx")
            torch.onnx.export(model, (x,), path, dynamo=True, verbose=False)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            session = onnxruntime.InferenceSession(path, options)
            name, given = session.get_inputs()[0].name, x.numpy()
            yield "ONNX Runtime", lambda: torch.from_numpy(session.run(None, {name: given})[0])
            import openvino

            settings = {
                "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads,
                "PERFORMANCE_HINT": "LATENCY",
            }
            compiled = openvino.Core().compile_model(path, "CPU", settings)
            request = compiled.create_infer_request()

            def infer() -> torch.Tensor:
                request.infer([given], share_inputs=True)
                return torch.from_numpy(request.get_output_tensor(0).data)

            yield "OpenVINO", infer
    except ImportError as error:
        print(f"  {error}: without it")


def metaschedule(model: nn.Module, x: torch.Tensor, threads: int, trials: int) -> Any:
    """The model through Relax, its weights packed before the call, after so many trials for each distinct workload."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    import plevel.torch
    from benchmarks.metaschedule import build

    count = len(plevel.torch.extract(model, (x,)).workloads)
    os.environ["TVM_NUM_THREADS"] = str(threads)
    program = torch.export.export(model, (x,))
    module = from_exported_program(program, keep_params_as_input=True, unwrap_unit_return_tuple=True)
    module, weights = relax.frontend.detach_params(module)
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "module.json"), Path(folder, "module.so")
        source.write_text(tvm.ir.save_json(module))
        build(source, library, threads, trials * count)
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    packed = machine["main_transform_params"](weights["main"])
    shared = tvm.runtime.from_dlpack(x)
    return lambda: torch.from_dlpack(machine["main"](shared, *packed))


def deployed(model: nn.Module, x: torch.Tensor, database: str | None) -> Iterator[tuple[str, Any]]:
    """The model's library as a call, unless plevel cannot run one of its operators by itself."""
    from plevel.deployment import deploy
    from plevel.kernel_selection import make_chooser, open_records
    from plevel.torch.exported import import_program
    from plevel.torch.plan import model_target
    from strategy.network.graph import NetworkError

    try:
        with tempfile.TemporaryDirectory() as folder, open_records(database) as records:
            network, _ = import_program(torch.export.export(model, (x,)))
            path = Path(folder) / "model.so"
            target = model_target()
            made = deploy(network, target, make_chooser(target, records), path, name="model", about="benchmark")
            function = ctypes.CDLL(str(path)).model
    except NetworkError as error:
        print(f"  {error}: without model.so")
        return
    (output,) = made.description.outputs

    def call() -> torch.Tensor:
        y = torch.empty(output.shape)
        assert not function(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()))
        return y

    yield "model.so", call


def contenders(name: str, given: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The calls to time."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    expected = model(*inputs)
    calls: dict[str, Callable[[], Any]] = {"eager": partial(model, *inputs)}
    torch._dynamo.reset()
    for label, compiler in compilers(given.database, given.max_autotune, given.like, unguarded=given.unguarded):
        function = compiler(model)
        with freezing(label):
            function(*inputs)
        calls[label] = partial(function, *inputs)
    calls |= peers(model, *inputs, given.threads)
    calls |= deployed(model, *inputs, given.database)
    if given.metaschedule:
        calls["MetaSchedule"] = metaschedule(model, *inputs, given.threads, given.metaschedule)
    for label, call in calls.items():
        assert (call() - expected).norm() <= 1e-4 * expected.norm(), f"{name}: {label} is wrong"
    return calls


def tune(name: str, trials: int, database: str) -> float:
    """Trials for each distinct workload; seconds."""
    import plevel.torch

    model, inputs = MODELS[name]()
    begin = time.perf_counter()
    count = len(plevel.torch.extract(model.eval(), inputs).workloads)
    print(f"{name}: {count} workloads extracted in {time.perf_counter() - begin:.1f} s", flush=True)
    begin = time.perf_counter()
    plevel.torch.tune(model, inputs, trials=trials * count, database=database)
    return time.perf_counter() - begin


def measure(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Medians of bursts, of a sixteenth of a second each and three calls at least, in a new order each round."""
    samples: dict[str, list[float]] = {label: [] for label in calls}
    end, order = time.perf_counter() + seconds, random.Random(0)
    while time.perf_counter() < end or len(samples["eager"]) < 7:
        for label, call in order.sample(list(calls.items()), len(calls)):
            time.sleep(0.03)  # idle threads of ONNX Runtime and OpenMP spin for up to 20 ms
            warm = time.perf_counter() + 0.02
            while time.perf_counter() < warm:
                call()
            count, begin = 0, time.perf_counter()
            while count < 3 or time.perf_counter() - begin < 1 / 16:
                call()
                count += 1
            samples[label].append((time.perf_counter() - begin) / count)
    return {label: statistics.median(found) for label, found in samples.items()}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS)
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--database")
    parser.add_argument("--trials", type=natural, default=0, help="for each distinct workload")
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--max-autotune", action="store_true")
    parser.add_argument("--unguarded", action="store_true", help="without guards on modules, but for the starts")
    parser.add_argument("--metaschedule", type=natural, default=0, metavar="TRIALS", help="for each distinct workload")
    parser.add_argument("--like", metavar="DATABASE")
    given = parser.parse_args()
    if unknown := set(given.models) - set(MODELS):
        parser.error(f"no model {', '.join(sorted(unknown))}: there are {', '.join(MODELS)}")
    if given.trials and given.database is None:
        parser.error("--trials needs --database, the place for what is measured")
    torch.set_num_threads(given.threads)
    if given.database is None:  # nor this user's own
        for name in ("PLEVEL_URL", "PLEVEL_DATABASE"):
            os.environ.pop(name, None)
        os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()
    tuned = {n: tune(n, given.trials, given.database) for n in given.models if given.trials}
    asked = [label for label, value in zip(BESIDE, (given.metaschedule, given.like), strict=True) if value]
    shown, against = (*SHOWN, *asked), (*PEERS, *asked, "model.so")
    columns = {
        "model": "", **dict.fromkeys(shown, "s"), **{f"{p} / confirmed": "×" for p in against},
        **{f"{p} / model.so": "×" for p in LIBRARIES},
        "Inductor's first start": "s", "plevel's first start": "s", "Inductor's second": "s", "plevel's second": "s",
        "tunes in": "s",
    }
    kinds = {"tuned": given.database, "max-autotune": given.max_autotune, "unguarded": given.unguarded}
    kinds |= dict.fromkeys(asked, True)
    kind = "".join(f"-{label.lower()}" for label, there in kinds.items() if there)
    note = f"{given.trials} trials for each distinct workload" if given.trials else None
    about = {"variant": f"{given.threads}-threads{kind}", "note": note if given.database else "untuned"}
    rows: list[list[Cell]] = []
    with torch.inference_mode():
        for name in given.models:
            calls = contenders(name, given)
            times = {label: starts(name, label, given) for label in ("Inductor", "confirmed")}
            found = measure(calls, given.seconds)
            del calls
            gc.collect()
            for label, median_s in found.items():
                ratio = median_s / found["confirmed"]
                shown_s = [f"{s:.1f} s" for s in times.get(label, ())]
                print(f"{name:16}{label:14}{1e3 * median_s:9.2f} ms {ratio:6.2f}  {'  '.join(shown_s)}", flush=True)
            cells: list[Cell] = [name, *(found.get(label) for label in shown)]
            cells += [found[p] / found["confirmed"] if p in found else None for p in against]
            cells += [found[p] / found["model.so"] if {p, "model.so"} <= set(found) else None for p in LIBRARIES]
            cells += [times[label][place] for place in (0, 1) for label in ("Inductor", "confirmed")]
            rows.append([*cells, tuned.get(name)])
            save(columns, rows, merge=True, **about)


if __name__ == "__main__":
    main()
