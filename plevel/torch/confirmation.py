"""Confirmation in context: the whole graph timed with kernels and without.

A kernel that is faster alone may lose in a graph, by conversions of layouts, caches and threads. So ours
stay only where the graph is faster beyond the interval of its measurement: as one library, else family by family,
then workload by workload.
"""
# Over 300 lines: the search for a form, and the comparisons that it rests on.

from __future__ import annotations

import errno
import logging
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import torch

from plevel.torch.agreement import MOST, TOLERANCE, agree, differences, sizes
from plevel.torch.frozen import (
    WRITES,
    Written,
    copy_strided,
    is_dense,
    is_mask,
    is_same,
    put_back,
    unexpanded,
)
from plevel.torch.node import hint
from plevel.torch.plan import Plan
from plevel.torch.progress import Progress
from plevel.torch.store import MOVED_BY, folder
from plevel.torch.verdict import Verdict
from plevel.torch.whole import Whole
from strategy.confirmation import Comparison
from strategy.fault import CompileError
from strategy.network.graph import NetworkError
from strategy.record import Estimate, estimate
from strategy.table import show_number
from strategy.workload import Workload
from workers.reference import epsilon
from workers.scratch import ScratchError, check_room

logger = logging.getLogger("plevel.torch")
ROUNDS = 15
LEAST_ROUNDS = 7
SURE = 0.8  # a ratio that the interval of the least rounds lies below ends a comparison
BURST_S = 0.02
LIMIT_S = 10.0  # of one comparison, once it has the least rounds
SINGLES_S = 15.0  # the last of them begun within
REST = 0.25  # of a library's time, in steps that Inductor would run itself
CALLS = 2 * LEAST_ROUNDS + 5  # of either form, for one comparison
PART = 0.01  # of the tolerance, which inputs are moved by
ROUNDING = 4  # times the rounding of Inductor's form may be another's

OVER = "the time for confirmation was over"
# Of Python, of PyTorch, of C++, of the system, and of a C compiler or a builder that the system has killed.
_NO_MEMORY = re.compile("MemoryError|bad_alloc|(can't|[Cc]annot) allocate memory|Killed signal|SIGKILL")

Compiled = Callable[..., Any]
Kept = frozenset[Workload]


class Timed(NamedTuple):
    """The ratio of the times of a call, new to old, and both medians."""

    ratio: Estimate
    old_s: float
    new_s: float


def confirm(
    plan: Plan,
    make: Callable[[Kept], Compiled],
    make_whole: Callable[[], Whole],
    inputs: Sequence[Any],
    state: Sequence[torch.Tensor],
    progress: Progress,
    form_s: float,
    make_moved: Callable[[float], Compiled],
    make_rounded: Callable[[float], Compiled] | None,
) -> tuple[Compiled, Whole | None, Verdict]:
    """The fastest form of the graph that was found, its library if it is one, and why.

    Args:
        make: compiles the graph with the kernels of these workloads in place.
        make_whole: compiles the graph as one library; whatever it raises is why there is none.
        inputs: what the graph is called with; it is called with copies, and those that it changes are put back.
        state: the tensors of the model that the graph changes: they are put back after each call, whatever it raises.
        progress: says what goes on; nothing is begun that is expected to take longer than is left there.
        form_s: seconds that the first form is expected to take to compile.
        make_moved: gives the graph with what it looks up in tables off by a part.
        make_rounded: gives the graph with numbers off by a part where it rounds them to integers, if it does.
    """
    found = _Search(plan, make, inputs, state, progress, form_s, make_moved, make_rounded)
    try:
        found.run(make_whole)
    except _RefusedError as error:
        return found.alone, None, found.refused(str(error))
    return found.best, found.whole, found.verdict()


class _RefusedError(Exception):
    """The reason why nothing is timed."""


class _Search:
    """The best form of a graph so far, and the comparisons that said so."""

    def __init__(
        self, plan: Plan, make: Callable[[Kept], Compiled], inputs: Sequence[Any], state: Sequence[torch.Tensor],
        progress: Progress, form_s: float, make_moved: Callable[[float], Compiled],
        make_rounded: Callable[[float], Compiled] | None,
    ) -> None:
        self.plan, self.make, self.progress, self.form_s = plan, make, progress, form_s
        self.make_moved, self.make_rounded = make_moved, make_rounded
        kinds = (i.tensor.dtype for found in plan.extraction.workloads for i in found.workload.inputs)
        self.epsilon = max(map(epsilon, kinds), default=0.0)
        self.tolerance = max(TOLERANCE, 4 * self.epsilon)
        self.inputs = inputs
        self.is_dense = all(is_dense(i) for i in inputs if isinstance(i, torch.Tensor))
        self.given = [copy_strided(i) if isinstance(i, torch.Tensor) else hint(i) for i in inputs if self.is_dense]
        self.state: Written = [(tensor, copy_strided(tensor)) for tensor in state]
        self.written: Written = []
        self.alone = self.best = make(frozenset())
        self.kept: Kept = frozenset()
        self.whole: Whole | None = None
        self.apart = self.ended = ""
        self.errors: dict[Workload, str] = {}
        self.library: dict[str, str] = {}
        self.differing: set[Workload] = set()
        self.steps: list[Comparison] = []
        self.won: list[Timed] = []

    def run(self, make_whole: Callable[[], Whole]) -> None:
        if not self.is_dense:
            raise _RefusedError("an input is a sparse or nested tensor, or wraps others, so it is not timed")
        if any(isinstance(i, torch.SymInt) and i.node.hint is None for i in self.inputs):  # of mark_unbacked
            raise _RefusedError("a size of its inputs has no known value, so it is not timed")
        with _putting_back(self.state):
            outputs = self.alone(*self.given)
        if not all(is_dense(o) for o in outputs if isinstance(o, torch.Tensor)):
            raise _RefusedError("an output is a sparse or nested tensor, or wraps others, so it is not timed")
        del outputs  # which may have gigabytes
        pairs = zip(self.given, self.inputs, strict=True)
        changed = [(g, i) for g, i in pairs if isinstance(i, torch.Tensor) and not is_same(g, i)]
        put_back(changed)
        self.written = [*changed, *self.state]
        begin = time.perf_counter()
        self.expected = self._outputs(self.alone)
        self.call_s = time.perf_counter() - begin
        # Forms cost a compilation each, a library's kernels are built while Inductor compiles.
        if self._try_whole(make_whole):
            if self._rest() > REST and self._has_time(self.form_s):
                with suppress(TimeoutError):
                    # None, if only a library has kernels for its products: Inductor alone was compared.
                    if built := self.plan.build(self.plan.preferred()):
                        self._exchange(built)
            return
        if not self._has_time(self.form_s):
            self.ended = OVER
            return
        self._say(f"{len(self.plan.selections)} kernels are built")
        try:
            families = self.plan.families()
        except TimeoutError:
            self.ended = OVER
            return
        self.errors.update(self.plan.errors)
        for exchanged in families:
            self._exchange(exchanged)
        end = time.perf_counter() + SINGLES_S
        for exchanged in self.plan.singles(families):
            if time.perf_counter() > end:
                break
            self._exchange(exchanged)

    def refused(self, why: str) -> Verdict:
        return Verdict(self.plan.key, self.plan.graph, self.plan.extraction.flops, refused=why)

    def verdict(self) -> Verdict:
        # The first exchange was compared with Inductor alone; the sum of several was not.
        plan, won = self.plan, self.won
        before_s = self.steps[0].before_s if self.steps else None
        after_s = won[-1].new_s if won else before_s
        if len(won) > 1 and self._has_time(0.0):
            _, before_s, after_s = self._compare(self.alone, self.best)
        return Verdict(
            plan.key, plan.graph, plan.extraction.flops, tuple(sorted(w.key for w in self.kept)), tuple(self.steps),
            pool=f"openmp, {show_number(torch.get_num_threads(), 'thread')}", before_s=before_s,
            after_s=after_s, whole=self.whole is not None, apart=self.apart, library=self.library, ended=self.ended,
            errors={w.key: why for w, why in self.errors.items() if w not in self.kept},
            differing=tuple(sorted(w.key for w in self.differing - self.kept)),
            short=next(filter(_NO_MEMORY.search, (self.apart, *self.errors.values())), ""),
        )

    def _outputs(self, function: Compiled) -> list[Any]:
        """The outputs of a call as they are at once, and the inputs and buffers as it leaves them."""
        torch.default_generator.manual_seed(0)  # for a dropout that is not in eval mode
        with _putting_back(self.written):
            found = [o.clone() if isinstance(o, torch.Tensor) else o for o in function(*self.given)]
            return [*found, *(given.clone() for given, _ in self.written)]

    def _agrees(self, function: Compiled, *, by_strides: bool = True) -> bool:
        found = self._outputs(function)
        return agree(found, self.expected, self.tolerance, by_strides=by_strides) or agree(
            found, self.expected, self.tolerance, by_strides=by_strides, allowed=self._changes()
        )

    def _changes(self) -> list[float]:
        """The differences of Inductor's outputs by inputs whose numbers are all off by the tolerance, up or down.

        They are measured with a part of it, too. Those that are rounding alone do not grow with it, and allow some
        more. Jumps, as of a number that is rounded or an expert that is chosen, grow less than it does.
        """
        part = max(self.tolerance * PART, self.epsilon)
        each = zip(self._moved(part), self._moved(self.tolerance), self._jumps(part), strict=True)
        return [
            max(min(self.tolerance / part * little, max(ROUNDING * little, most)), jump) for little, most, jump in each
        ]

    def _jumps(self, part: float) -> list[float]:
        """The differences to allow where numbers off by a part of them, up or down, are rounded to other integers.

        Another form's numbers may lie on the other side of a half, where inputs that are off by as little change none.
        """
        changes = [0.0] * len(sizes(self.expected))
        if self.make_rounded is None:
            return changes
        with suppress(Exception):  # of PyTorch, for an operator that Inductor alone has
            still, up, down = (self._outputs(self.make_rounded(off)) for off in (0.0, part, -part))
            changes = list(map(max, differences(up, still), differences(down, still)))
        return [min(ROUNDING * change, MOST * size) for change, size in zip(changes, sizes(self.expected), strict=True)]

    def _moved(self, part: float) -> list[float]:
        """The differences of outputs by inputs whose numbers are all off by a part of them, up or down.

        If none can be, as of tokens, the rows that are looked up for them are instead. Masks stay as they are.
        """
        pairs = [
            (unexpanded(given), unexpanded(i))
            for given, i in zip(self.given, self.inputs, strict=True)
            if isinstance(i, torch.Tensor) and (i.is_floating_point() or i.is_complex())
            and i.element_size() > 1  # PyTorch has no arithmetic of numbers of 8 bits
            and not is_mask(i)
        ]
        if not pairs:
            found = right = self.expected
            with suppress(Exception):  # of PyTorch, for an operator that Inductor alone has
                right, found = (self._outputs(self.make_moved(off)) for off in (0.0, part))
            return differences(found, right)
        with _putting_back(pairs):
            for given, _ in pairs:
                given.mul_(1 + part * torch.randn(given.shape, device=given.device).sign())
            return differences(self._outputs(self.alone), self.expected)

    def _say(self, stage: str) -> None:
        self.progress.say(stage, is_timing=True)

    def _has_time(self, compile_s: float) -> bool:
        """Return whether what takes so long to compile can be compared in the time that is left."""
        return self.progress.left_s >= compile_s + CALLS * self.call_s

    def _compare(self, old: Compiled, new: Compiled) -> Timed:
        return compare(old, new, self.given, self.written)

    def _exchange(self, exchanged: Kept) -> None:
        """Exchange the kernels of these workloads if that is faster."""
        if not self._has_time(self.form_s):
            self.ended = OVER
            return
        wanted = self.kept ^ exchanged
        names = ", ".join(sorted({w.op for w in exchanged}))
        self._say(f"Inductor compiles it with other kernels of {names}")
        begin = time.perf_counter()
        try:
            candidate = self.make(wanted)
            self.form_s = time.perf_counter() - begin
            self._say(f"it is timed with other kernels of {names}")
            agrees = self._agrees(candidate)
        except (OSError, CompileError):  # of the disk or the C compiler, whatever the form
            raise
        except Exception as error:  # of Inductor, for code that other forms lack
            check_room(folder(), MOVED_BY)  # Inductor's compiler does not say that the disk is why it failed
            why = f"the graph fails with it: {type(error).__name__}: {' '.join(str(error).split())[:500]}"
            logger.warning("plevel: a form of a graph is left out, with other kernels of %s: %s", names, why)
            logger.debug("the form failed", exc_info=True)
            self.errors.update(dict.fromkeys(exchanged, why))
            return
        if not agrees:
            self.differing |= exchanged
            return
        timed = self._compare(self.best, candidate)
        self.steps.append(_step(timed, (w.key for w in exchanged), added=exchanged <= wanted))
        if self.steps[-1].kept:
            if self.whole:
                self.apart = "Inductor with all products replaced is faster"
            self.best, self.kept, self.whole = candidate, wanted, None
            self.won.append(timed)

    def _try_whole(self, make_whole: Callable[[], Whole]) -> bool:
        """Return whether the graph is faster as one library; `apart` has the reason if it is not."""
        self.apart = WRITES if self.written else _misfit(self.alone, self.given)
        if self.apart:
            return False
        try:
            self._say("its library is built")
            made = make_whole()
            if not self._has_time(0.0):
                self.apart = OVER
                return False
            self._say("it is timed as one library")
            for other in made.others:
                if self._has_time(0.0) and self._compare(other.call, made.call).ratio.high_s >= 1:
                    made = other
            self.library = made.kernels(self.plan.target)
            # It has PyTorch's strides, which Inductor's outputs may lack, such as of the first keys of a cache.
            if not self._agrees(made.call, by_strides=False):
                self.apart = "the outputs of its library differ from Inductor's"
                return False
            timed = self._compare(self.best, made.call)
        except Exception as error:  # kernels stay without it
            if isinstance(error, ScratchError) or getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):
                raise  # of the disk, and nothing to keep of the graph
            known = isinstance(error, NetworkError | CompileError)
            self.apart = str(error) if known else f"{type(error).__name__}: {error}"
            return False
        self.steps.append(_step(timed, (s.workload for s in made.manifest.steps if s.workload), whole=True))
        if not self.steps[-1].kept:
            self.apart = "it is not faster as one library"
            return False
        self.best, self.whole = made.call, made
        self.won.append(timed)
        return True

    def _rest(self) -> float:
        """The share of the library's time in steps that Inductor runs itself in all other forms."""
        assert self.whole is not None
        products = {found.workload.op for found in self.plan.extraction.workloads if found.flops}
        times = [(str(w).partition("(")[0], seconds) for w, seconds in self.whole.times(self.given)]
        return sum(s for op, s in times if op not in products) / sum(s for _, s in times)


def _step(timed: Timed, workloads: Iterable[str], *, added: bool = True, whole: bool = False) -> Comparison:
    return Comparison(
        workloads=tuple(sorted(set(workloads))), added=added, ratio=timed.ratio, before_s=timed.old_s,
        after_s=timed.new_s, kept=timed.ratio.high_s < 1, whole=whole,
    )


def _misfit(alone: Compiled, inputs: Sequence[Any]) -> str:
    """The reason why a library, which writes new dense tensors, cannot give the graph's outputs; else empty."""
    memory = {i.untyped_storage().data_ptr() for i in inputs if isinstance(i, torch.Tensor)}
    # The second call gives a constant of the graph again.
    for output in (*alone(*inputs), *alone(*inputs)):
        if not isinstance(output, torch.Tensor):
            return "it gives values that are no tensors"
        if output.numel() and output.untyped_storage().data_ptr() in memory:
            return "an output shares memory with an input, another output or a weight"
        memory.add(output.untyped_storage().data_ptr())
    return ""


@contextmanager
def _putting_back(written: Written) -> Iterator[None]:
    """Put back what a call writes, whatever it raises."""
    # A tensor that was made in inference mode can be changed there alone, and compilation leaves that mode.
    with torch.inference_mode() if any(given.is_inference() for given, _ in written) else nullcontext():
        try:
            yield
        finally:
            put_back(written)


def compare(old: Compiled, new: Compiled, inputs: Sequence[Any], written: Written = ()) -> Timed:
    """The times of `new` and `old`, of bursts in turns, whose order alternates; a sure loss ends it."""
    begin = time.perf_counter()
    first, second = (_burst(function, inputs, 2, written) for function in (old, new))
    each_s = (time.perf_counter() - begin) / 4  # to put back a large cache takes longer than a step that writes to it
    calls = math.ceil(min(BURST_S / max(first, second, 1e-7), LIMIT_S / (2 * ROUNDS * each_s)))
    found: list[tuple[float, float]] = []
    end = time.perf_counter() + LIMIT_S

    def ratio() -> Estimate:
        return estimate([second / first for first, second in found])

    def is_decided() -> bool:
        # A win is looked for once, and a far one: to stop at the first interval that wins would find wins by chance.
        return ratio().low_s > 1 or (len(found) == LEAST_ROUNDS and ratio().high_s < SURE)

    while len(found) < LEAST_ROUNDS or (
        len(found) < ROUNDS and time.perf_counter() < end and not is_decided()
    ):
        if len(found) % 2:
            second = _burst(new, inputs, calls, written)
            first = _burst(old, inputs, calls, written)
        else:
            first = _burst(old, inputs, calls, written)
            second = _burst(new, inputs, calls, written)
        found.append((first, second))
    olds, news = zip(*found, strict=True)
    return Timed(ratio(), statistics.median(olds), statistics.median(news))


def _burst(function: Compiled, inputs: Sequence[Any], calls: int, written: Written) -> float:
    """Seconds of one call, each with the same inputs: a position that calls count up would leave its cache."""
    taken = 0.0
    for _ in range(calls):
        with _putting_back(written):
            begin = time.perf_counter()
            function(*inputs)
            taken += time.perf_counter() - begin
    return taken / calls
