"""The backend of `torch.compile`: Inductor, with plevel's kernels in its frozen graph where they are faster.

    fast = torch.compile(model, backend="plevel", options={"database": "http://farm:8765"})
    with torch.inference_mode():
        y = fast(x)
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch._inductor.config
from torch._dynamo.exc import RestartAnalysis
from torch.fx import GraphModule

from plevel.database import REST_S, Rest, RestingError
from plevel.kernel_selection import (
    Choose,
    Chosen,
    is_outdated,
    make_chooser,
    open_records,
    read_lock,
)
from plevel.torch.budget import Budget, Part
from plevel.torch.compilation import Compilation, run_whole
from plevel.torch.explanation import Report, note, owned
from plevel.torch.freezing import (
    Stamps,
    forget,
    freeze_for,
    is_volatile,
    read_stamps,
    serves_others,
    watch,
)
from plevel.torch.option import OptionError, Options
from plevel.torch.plan import model_target
from plevel.torch.progress import Progress, Series
from plevel.torch.whole import find_whole
from strategy.select import Reason, Selection
from strategy.select.lock import Lock
from strategy.table import show_number
from strategy.workload import Workload
from workers.pool import Pool

logger = logging.getLogger("plevel.torch")
_budget = Budget()
_series = Series()
_rest = Rest()
_told: set[str] = set()  # reasons that graphs were left to Inductor for, and others that are told once
_OUTDATED = "are of other versions of implementations than are installed"
_known_locks: set[str] = set()  # by their paths: one was used, or its first graph was warned of


def plevel(
    module: GraphModule,
    inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compiles one graph of Dynamo's.

    Whatever fails on the way leaves the graph to Inductor alone, with one warning. So does a graph that
    may need gradients, without one.

    Raises:
        OptionError: an option that there is not, or a `mode` other than "reduce-overhead".
    """
    wanted = Options.read(options)
    if mode not in (None, "reduce-overhead"):  # CUDA graphs, which a CPU has none of; the default of transformers
        raise OptionError(f"mode {mode!r:.40} is Inductor's, and plevel times its default: leave it out (mode=None)")
    if torch.is_grad_enabled():
        return _alone(module, inputs, "gradients are enabled: call it under torch.inference_mode()")
    if torch._inductor.config.cpp_wrapper:
        return _alone(
            module,
            inputs,
            "torch._inductor.config.cpp_wrapper is set, and kernels are called from Python",
        )
    if is_volatile(module):
        why = "its parameters or buffers changed twice after they were frozen (torch._dynamo.reset() forgets that)"
        warnings.warn(f"plevel: a graph is left to Inductor: {why}", stacklevel=2)
        return _alone(module, inputs, why)
    try:
        stamps = read_stamps(module)
        with open_records(wanted.database or wanted.lock, rest=_rest) as database:
            lock = read_lock(wanted.lock, model_target(), wanted.database)
            choose = make_chooser(model_target(), database, lock)
            answers: dict[Workload, Chosen] = {}

            def choose_noted(workload: Workload) -> Chosen:
                answers[workload] = choose(workload)
                return answers[workload]

            found, left = _compile(module, inputs, wanted, choose_noted, stamps)
        if wanted.lock and lock and not wanted.database:
            _check_lock(wanted.lock, lock, answers)
        else:
            _check_versions(answers.values())
        watch(stamps, left)
        if any(isinstance(i, torch.nn.Parameter) for i in inputs) and serves_others():
            warnings.warn(
                "plevel: a graph reads its weights at each call, as the last that PyTorch compiles of one function "
                "(torch._dynamo.config.recompile_limit); isolate_recompiles=True of torch.compile counts models apart",
                stacklevel=2,
            )
        return found
    except RestartAnalysis:  # PyTorch traces the graph again
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        logger.debug("the graph is left to Inductor", exc_info=True)
        if not isinstance(error, RestingError) or str(error) not in _told:
            later = f"; it is not asked again for {REST_S:.0f} s: graphs that need it are, too"
            is_away = _rest.is_for(str(error))
            warnings.warn(f"plevel: a graph is left to Inductor: {reason}{later if is_away else ''}", stacklevel=2)
            _told.add(str(error))
        return _alone(module, inputs, reason)


def _reset() -> None:
    forget()
    _budget.reset()
    _rest.reset()
    _told.clear()
    _known_locks.clear()


plevel.reset = _reset  # type: ignore[attr-defined]  # what `torch._dynamo.reset` calls
freeze_for(plevel)


def _check_versions(answers: Iterable[Chosen]) -> None:
    """Warn once of kernels that records of other versions decide, as of a model that was tuned before an update."""
    outdated = sum(isinstance(s, Selection) and s.reason is Reason.STALE for s in answers)
    if outdated and _OUTDATED not in _told:
        _told.add(_OUTDATED)
        warnings.warn(
            f"plevel: the records of {show_number(outdated, 'workload')} of a graph {_OUTDATED}, whose times are not "
            "known (tune the model again by plevel.torch.tune)",
            stacklevel=3,
        )


def _check_lock(path: str, lock: Lock, asked: Iterable[Workload]) -> None:
    """Warn of a lock that has none of the workloads of the first graph, or has them in versions of another plevel."""
    fixed = [workload for workload in asked if workload.is_constant]
    target = model_target()
    if path in _known_locks or not fixed or not lock.is_for(target):
        return
    _known_locks.add(path)
    found = [entry for workload in fixed if (entry := lock.find(workload, target)) is not None]
    outdated = sum(is_outdated(entry, target) for entry in found)
    if not found:
        warnings.warn(
            f"plevel: {path} has none of the {show_number(len(fixed), 'workload')} of a graph, as a lock of another "
            "model or of inputs of other shapes: kernels are selected untuned (write a lock of this model by "
            "'plevel extract' and 'plevel lock')",
            stacklevel=3,
        )
    elif outdated:
        warnings.warn(
            f"plevel: {path} has {outdated} of the {show_number(len(fixed), 'workload')} of a graph in other versions "
            "of implementations than are installed: their kernels are selected without it (write the lock again by "
            "'plevel lock', after 'plevel tune')",
            stacklevel=3,
        )


def _alone(module: GraphModule, inputs: Sequence[Any], why: str) -> Callable[..., Any]:
    from torch._inductor.compile_fx import compile_fx

    note(Report(note=f"left to Inductor: {why}", parameters=owned(module, inputs)), module, inputs)
    logger.info("left to Inductor: %s", why)
    found: Callable[..., Any] = compile_fx(module, inputs, config_patches={"freezing": False})
    return found


def _compile(
    module: GraphModule, inputs: Sequence[Any], options: Options, choose: Choose, stamps: Stamps
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The compiled graph, and its parameters and buffers that are read at each call."""
    if options.confirm and not options.again and (found := find_whole(module, inputs, model_target(), choose)):
        return run_whole(module, *found, options), []
    budget = _budget if options.confirm and not options.again else Budget(math.inf)
    failed = False

    def left_s() -> float:
        return budget.left_s

    def build_left_s() -> float:
        if failed:
            return 0.0
        # Building while Inductor compiles delays nothing, and the time that is left grows meanwhile.
        return math.inf if budget.is_within(Part.INDUCTOR) else budget.left_s

    with (
        budget.count(Part.CONFIRMATION), Progress(left_s, _series) as progress, Pool(left=build_left_s) as pool,
        ThreadPoolExecutor(1) as ahead,
    ):
        try:
            compilation = Compilation(
                module, inputs, options, choose, stamps, pool=pool, ahead=ahead, budget=budget, progress=progress
            )
            return compilation.run()
        except BaseException:  # Ctrl-C, above all: what is built ahead is not waited for
            failed = True
            raise
