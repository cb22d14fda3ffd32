"""The backend of `torch.compile`: Inductor, with plevel's kernels in its frozen graph where they are faster.

    fast = torch.compile(model, backend="plevel", options={"database": "http://farm:8765"})
    with torch.inference_mode():
        y = fast(x)
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch._inductor.config
from torch._dynamo.exc import RestartAnalysis
from torch.fx import GraphModule

from plevel.kernel_selection import Choose, make_chooser, open_records, read_lock
from plevel.torch.budget import Budget, Part
from plevel.torch.confirmation import Kept, confirm
from plevel.torch.explanation import Report, make_report, note, owned, report_whole
from plevel.torch.form import hold, keep_frozen, make_form
from plevel.torch.freezing import (
    Stamps,
    forget,
    freeze_for,
    is_volatile,
    read_stamps,
    read_tensors,
    require_same,
    watch,
)
from plevel.torch.frozen import WRITES, compile_frozen, constant_outputs, giving_copies
from plevel.torch.option import OptionError, Options
from plevel.torch.plan import Plan, make_plan, model_target
from plevel.torch.progress import Progress
from plevel.torch.reporting import recorded, report
from plevel.torch.toolchain import ask_toolchain
from plevel.torch.verdict import Verdict, read_verdict, write_verdict
from plevel.torch.whole import StaleError, Whole, draft_whole, find_whole, forget_whole
from strategy.network.graph import NetworkError
from workers.pool import Pool

logger = logging.getLogger("plevel.torch")
_budget = Budget()


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
        with open_records(wanted.database or wanted.lock) as database:
            lock = read_lock(wanted.lock, model_target(), wanted.database)
            choose = make_chooser(model_target(), database, lock)
            found, left = _compile(module, inputs, wanted, choose, stamps)
        watch(stamps, left)
        if any(isinstance(i, torch.nn.Parameter) for i in inputs):
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
        warnings.warn(f"plevel: a graph is left to Inductor: {reason}", stacklevel=2)
        return _alone(module, inputs, reason)


def _reset() -> None:
    forget()
    _budget.reset()


plevel.reset = _reset  # type: ignore[attr-defined]  # what `torch._dynamo.reset` calls
freeze_for(plevel)


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
        return _run_whole(module, *found, options), []
    budget = _budget if options.confirm and not options.again else Budget(math.inf)

    def left_s() -> float:
        return budget.left_s

    def build_left_s() -> float:
        # Building while Inductor compiles delays nothing, and the time that is left grows meanwhile.
        return math.inf if budget.is_within(Part.INDUCTOR) else budget.left_s

    with (
        budget.count(Part.CONFIRMATION), Progress(left_s) as progress, Pool(left=build_left_s) as pool,
        ThreadPoolExecutor(1) as ahead,
    ):
        return _compile_frozen(module, inputs, options, choose, stamps, pool, ahead, budget, progress)


def _compile_frozen(
    module: GraphModule, inputs: Sequence[Any], options: Options, choose: Choose, stamps: Stamps, pool: Pool,
    ahead: ThreadPoolExecutor, budget: Budget, progress: Progress,
) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """Inductor's compilation, with what `ahead` builds meanwhile."""
    plan: Plan | None = None
    verdict: Verdict | None = None
    kept: Kept = frozenset()
    frozen_once: GraphModule | None = None
    tensors: list[Any] = []
    state: list[torch.Tensor] = []
    constants: list[int] = []
    library: Future[Whole] = Future()
    autocast = torch.autocast("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))

    def visit(frozen: GraphModule) -> None:
        with budget.count(Part.CONFIRMATION):
            plan_kernels(frozen)
        progress.say("Inductor compiles it")

    def plan_kernels(frozen: GraphModule) -> None:
        nonlocal plan, verdict, kept, frozen_once, tensors, state, constants, library
        progress.say("its kernels are selected")
        tensors, changed = read_tensors(inputs)
        constants = constant_outputs(frozen)
        state = [tensors[place] for place in changed if place < len(tensors)]
        plan = make_plan(frozen, choose, pool.ask_all)
        progress.say(f"kernels of {len(plan.selections)} workloads are built")
        if not options.confirm:
            kept = plan.build(plan.preferred())
        elif not options.again and (verdict := _known(plan, choose, options)) and not verdict.whole:
            kept = plan.build(w for w in plan.selections if w.key in verdict.kept)
        if options.confirm and (verdict is None or verdict.whole):  # this is Inductor alone, to compare with
            frozen_once = keep_frozen(frozen)
        if options.confirm and plan.has_products and (verdict is None or verdict.whole):
            ahead.submit(pool.start)
            progress.say("its library is planned")
            with autocast:  # which is off while PyTorch traces
                library = _build_ahead(ahead, module, inputs, plan, choose, bool(changed))
        plan.apply(frozen, kept)

    whole: Whole | None = None
    before_s = budget.taken_s(Part.INDUCTOR)
    ask_toolchain()
    try:
        progress.say("Inductor compiles it")
        with budget.count(Part.INDUCTOR):
            found = compile_frozen(module, inputs, visit)
        if plan is None:
            raise RuntimeError(
                "Inductor did not freeze the graph: it enables gradients, or this PyTorch has other passes than 2.13"
            )
        planned, left = plan, [t for t in tensors if t is not None]
        if verdict is not None and verdict.whole:
            progress.say("its library is built")
            try:
                whole = library.result().chosen(verdict.library, planned.target)
                found = whole.call
            except StaleError:
                verdict = None  # `found` is Inductor alone
            except Exception as error:  # it could be built once
                warnings.warn(f"plevel: a graph runs by Inductor, not as one library: {error}", stacklevel=4)
        if options.confirm and verdict is None and planned.has_products:
            if frozen_once is not None:
                hold(frozen_once, left)

            def make(wanted: Kept) -> Callable[..., Any]:
                return make_form(planned, wanted, module, frozen_once, inputs) if wanted else found

            with (
                torch.utils._python_dispatch._disable_current_modes(),
                torch.random.fork_rng(devices=()),
            ):
                form_s = budget.taken_s(Part.INDUCTOR) - before_s
                chosen, whole, verdict = confirm(planned, make, library.result, inputs, state, progress, form_s)
            if verdict.is_final:
                write_verdict(verdict)
            else:
                logger.warning("plevel: a graph is left to Inductor in this process: %s", verdict.ended)
            if options.again and whole is None:
                forget_whole(module, inputs, planned.target)
            kept = frozenset(w for w in planned.selections if w.key in verdict.kept)
            found = chosen
        if whole and verdict:
            require_same(stamps, left)  # later processes find it by the weights of before
            whole.keep(verdict)
            return _run_whole(module, whole, verdict, options), left
    finally:
        library.add_done_callback(_sweep)
    if planned.errors:
        (workload, why), *more = planned.errors.items()
        others = f", and {len(more)} more workloads" if more else ""
        warnings.warn(f"plevel: {workload}{others} left to Inductor: {why}", stacklevel=4)
    made = make_report(planned, kept, verdict, module, inputs)
    note(made, module, inputs)
    if verdict is not None and verdict.is_final and not verdict.whole:  # else its library could not be built again
        _record(made, verdict, options)
    return giving_copies(found, constants), left


def _sweep(library: Future[Whole]) -> None:
    if not library.exception():
        library.result().sweep()


def _build_ahead(
    ahead: ThreadPoolExecutor,
    module: GraphModule,
    inputs: Sequence[Any],
    plan: Plan,
    choose: Choose,
    is_written: bool,
) -> Future[Whole]:
    """Build the graph's library while Inductor compiles; where it can be none, the kernels of its forms."""
    try:
        if is_written:
            raise NetworkError(WRITES)
        return ahead.submit(draft_whole(module, inputs, plan.target, choose, plan.ask))
    except Exception as error:  # of PyTorch's export, too
        why = error

    def build_kernels() -> Whole:
        plan.build(plan.selections)
        raise why

    return ahead.submit(build_kernels)


def _known(plan: Plan, choose: Choose, options: Options) -> Verdict | None:
    """The verdict on disk, else that of another machine like this one."""
    verdict = read_verdict(plan, choose)
    if verdict is None and plan.has_products and _is_recorded(options):
        verdict = recorded(plan, choose, options.database)
        if verdict:
            write_verdict(verdict)
    return verdict


def _is_recorded(options: Options) -> bool:
    return bool(options.database or not options.lock)


def _run_whole(module: GraphModule, whole: Whole, verdict: Verdict, options: Options) -> Callable[..., Any]:
    made = report_whole(whole, verdict, module)
    note(made, module)
    _record(made, verdict, options)
    return whole.call


def _record(made: Report, verdict: Verdict, options: Options) -> None:
    if _is_recorded(options):
        report(made, verdict, model_target(), options.database)
