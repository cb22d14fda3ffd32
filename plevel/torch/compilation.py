"""One compilation of a graph: by Inductor with plevel's kernels in the frozen form, or as a library of plevel's."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any

import torch
from torch.fx import GraphModule

from plevel.kernel_selection import Choose
from plevel.torch.budget import Budget, Part
from plevel.torch.confirmation import Kept, confirm
from plevel.torch.explanation import Report, make_report, note, report_whole
from plevel.torch.form import hold, keep_frozen, make_form, make_moved, make_rounded
from plevel.torch.freezing import Stamps, read_tensors, require_same
from plevel.torch.frozen import WRITES, compile_frozen, constant_outputs, giving_copies
from plevel.torch.option import Options
from plevel.torch.plan import Plan, make_plan, model_target
from plevel.torch.progress import Progress
from plevel.torch.reporting import recorded, report
from plevel.torch.toolchain import ask_toolchain
from plevel.torch.verdict import Verdict, read_verdict, write_verdict
from plevel.torch.whole import StaleError, Whole, draft_whole, forget_whole
from strategy.network.graph import NetworkError
from strategy.table import show_number
from workers.pool import Pool

logger = logging.getLogger("plevel.torch")
Compiled = Callable[..., Any]
_CALLER = 5  # frames from a step to the caller of the backend, which warnings name


@dataclass(eq=False)
class Compilation:
    """One compilation of a graph, which `run` makes once.

    Inductor shows the frozen graph in the midst of its own compilation. Its kernels are planned there, and a library of
    the whole is built meanwhile; afterwards the forms are timed, unless a verdict on them is known.

    Args:
        module: the graph of Dynamo's.
        inputs: what it is called with.
        options: the user's.
        choose: selects the kernel of a workload.
        stamps: the module's parameters and buffers, as they were before.
        pool: has children build kernels.
        ahead: the thread that builds while Inductor compiles.
        budget: counts the time that confirmation takes.
        progress: says what goes on.
    """

    module: GraphModule
    inputs: Sequence[Any]
    options: Options
    choose: Choose
    stamps: Stamps
    _: KW_ONLY
    pool: Pool
    ahead: ThreadPoolExecutor
    budget: Budget
    progress: Progress

    def __post_init__(self) -> None:
        self._begun_s = self.budget.taken_s(Part.INDUCTOR)
        self._autocast = torch.autocast("cpu", torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu"))
        # From the frozen graph:
        self._plan: Plan | None = None
        self._verdict: Verdict | None = None
        self._kept: Kept = frozenset()
        self._frozen: GraphModule | None = None  # a copy to make forms of, where they are to be timed
        self._tensors: list[Any] = []  # parameters and buffers; None in place of those that Inductor has frozen since
        self._state: list[torch.Tensor] = []  # those that the graph changes
        self._constants: list[int] = []
        self._library: Future[Whole] = Future()

    def run(self) -> tuple[Compiled, list[torch.Tensor]]:
        """The compiled graph, and its parameters and buffers that are read at each call."""
        ask_toolchain()
        try:
            found = self._ask_inductor()
            plan, left = self._planned(), [t for t in self._tensors if t is not None]
            whole = self._rebuild_library(plan)
            if self.options.confirm and self._verdict is None and plan.has_products:
                found, whole, self._verdict = self._confirm(plan, found, left)
            if whole and self._verdict:
                require_same(self.stamps, left)  # later processes find it by the weights of before
                if self._verdict.is_final:
                    whole.keep(self._verdict)
                return run_whole(self.module, whole, self._verdict, self.options), left
        finally:
            self._library.add_done_callback(_sweep)
        self._report(plan)
        return giving_copies(found, self._constants), left

    def _ask_inductor(self) -> Compiled:
        self.progress.say("Inductor compiles it")
        with self.budget.count(Part.INDUCTOR):
            return compile_frozen(self.module, self.inputs, self._visit)

    def _planned(self) -> Plan:
        if self._plan is None:
            raise RuntimeError(
                "Inductor did not freeze the graph: it enables gradients, or this PyTorch has other passes than 2.13"
            )
        return self._plan

    def _visit(self, frozen: GraphModule) -> None:
        with self.budget.count(Part.CONFIRMATION):
            self._plan_kernels(frozen)
        self.progress.say("Inductor compiles it")

    def _plan_kernels(self, frozen: GraphModule) -> None:
        """Plan the graph's kernels, and put those in place that are known to be faster, or are not to be timed."""
        self.progress.say("its kernels are selected")
        self._tensors, changed = read_tensors(self.inputs)
        self._constants = constant_outputs(frozen)
        self._state = [self._tensors[place] for place in changed if place < len(self._tensors)]
        self._plan = plan = make_plan(frozen, self.choose, self.pool.ask_all)
        self.progress.say(f"kernels of {len(plan.selections)} workloads are built")
        if not self.options.confirm:
            self._kept = plan.build(plan.preferred())
        elif not self.options.again and (known := self._find_verdict(plan)):
            self._verdict = known
            if not known.whole:
                self._kept = plan.build(w for w in plan.selections if w.key in known.kept)
        if self.options.confirm and (self._verdict is None or self._verdict.whole):
            self._frozen = keep_frozen(frozen)  # as this is Inductor alone, to compare with
            if plan.has_products:
                self._begin_library(plan, is_written=bool(changed))
        plan.apply(frozen, self._kept)

    def _find_verdict(self, plan: Plan) -> Verdict | None:
        """The verdict on disk, else that of another machine like this one."""
        verdict = read_verdict(plan, self.choose)
        if verdict is None and plan.has_products and _is_recorded(self.options):
            verdict = recorded(plan, self.choose, self.options.database)
            if verdict:
                write_verdict(verdict)
        return verdict

    def _begin_library(self, plan: Plan, *, is_written: bool) -> None:
        """Have the graph's library built while Inductor compiles; where it can be none, the kernels of its forms."""
        self.ahead.submit(self.pool.start)
        self.progress.say("its library is planned")
        try:
            if is_written:
                raise NetworkError(WRITES)
            with self._autocast:  # which is off while PyTorch traces
                build = draft_whole(self.module, self.inputs, plan.target, self.choose, plan.ask)
        except Exception as error:  # of PyTorch's export, too
            build = partial(_build_kernels, plan, error)
        self._library = self.ahead.submit(build)

    def _rebuild_library(self, plan: Plan) -> Whole | None:
        """The library that the known verdict is on; None if it is on none, or is void or cannot be built now."""
        if self._verdict is None or not self._verdict.whole:
            return None
        self.progress.say("its library is built")
        try:
            return self._library.result().chosen(self._verdict.library, plan.target)
        except StaleError:
            self._verdict = None  # what Inductor has compiled is to be timed
        except Exception as error:  # it could be built once
            warnings.warn(f"plevel: a graph runs by Inductor, not as one library: {error}", stacklevel=_CALLER)
        return None

    def _confirm(
        self, plan: Plan, alone: Compiled, left: Sequence[torch.Tensor]
    ) -> tuple[Compiled, Whole | None, Verdict]:
        """The form of the graph that is the fastest, its library if it is one, and the verdict.

        Args:
            alone: the graph as Inductor compiled it, without kernels of plevel's.
            left: the parameters and buffers that are read at each call.
        """
        assert self._frozen is not None
        hold(self._frozen, left)

        def make(wanted: Kept) -> Compiled:
            return make_form(plan, wanted, self.module, self._frozen, self.inputs) if wanted else alone

        with (
            torch.utils._python_dispatch._disable_current_modes(),
            torch.random.fork_rng(devices=()),
        ):
            form_s = self.budget.taken_s(Part.INDUCTOR) - self._begun_s
            found, whole, verdict = confirm(
                plan, make, self._library.result, self.inputs, self._state, self.progress, form_s,
                partial(make_moved, self._frozen), make_rounded(self._frozen),
            )
        if verdict.is_final:
            write_verdict(verdict)
        elif verdict.short:
            logger.warning(
                "plevel: the times of a graph are not kept, and the next process takes them again, as memory ran out: "
                "%s: free some, or use fewer processes at once", verdict.short,
            )
        else:
            logger.warning("plevel: a graph is left to Inductor in this process: %s", verdict.ended)
        if self.options.again and whole is None:
            forget_whole(self.module, self.inputs, plan.target)
        self._kept = frozenset(w for w in plan.selections if w.key in verdict.kept)
        return found, whole, verdict

    def _report(self, plan: Plan) -> None:
        """Report a graph that Inductor runs, and warn of workloads whose kernels could not be built."""
        if plan.errors:
            (workload, why), *more = plan.errors.items()
            others = f", and {show_number(len(more), 'more workload')}" if more else ""
            warnings.warn(f"plevel: {workload}{others} left to Inductor: {why}", stacklevel=_CALLER)
        made = make_report(plan, self._kept, self._verdict, self.module, self.inputs)
        note(made, self.module, self.inputs)
        # A verdict for a library is of another report, where it could be built.
        if self._verdict is not None and self._verdict.is_final and not self._verdict.whole:
            _record(made, self._verdict, self.options)


def run_whole(module: GraphModule, whole: Whole, verdict: Verdict, options: Options) -> Compiled:
    """The call of a graph's library, after a report of it."""
    made = report_whole(whole, verdict, module)
    note(made, module)
    if verdict.is_final:
        _record(made, verdict, options)
    return whole.call


def _build_kernels(plan: Plan, why: Exception) -> Whole:
    """Build the kernels of a graph's forms, and raise the reason why it has no library."""
    plan.build(plan.selections)
    raise why


def _sweep(library: Future[Whole]) -> None:
    if not library.exception():
        library.result().sweep()


def _is_recorded(options: Options) -> bool:
    return bool(options.database or not options.lock)


def _record(made: Report, verdict: Verdict, options: Options) -> None:
    if _is_recorded(options):
        report(made, verdict, model_target(), options.database)
