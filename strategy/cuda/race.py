"""Reductions by several threads that TVM lowers wrongly, without an error."""

from __future__ import annotations

from typing import Any


def find_races(function: Any) -> list[str]:
    """The buffers in which several threads reduce to one element, or each to its own, without being joined.

    TVM joins the threads of a reduction, but leaves it as it is, without an error, where it cannot. Where it joins
    them, a thread's own part is a block without an initial value.

    Args:
        function: after `s_tir.LowerCrossThreadReduction`.
    """
    from tvm import s_tir, tirx
    from tvm_ffi import structural_walk

    threads: list[Any] = []
    found: list[str] = []

    def add_loop(loop: Any) -> None:
        if loop.thread_binding is not None and loop.thread_binding.thread_tag.startswith("threadIdx"):
            threads.append(loop.loop_var)

    def add_block(realize: Any) -> None:
        block = realize.block
        used: list[Any] = []
        for variable, value in zip(block.iter_vars, realize.iter_values, strict=True):
            if variable.iter_type == tirx.IterVar.CommReduce:
                structural_walk(value, [(tirx.Var, used.append)])
        if any(u.same_as(t) for u in used for t in threads):
            found.extend(
                w.source.name for w in block.writes if w.source.scope() != "local" or block.init is not None
            )

    structural_walk(function.body, [(tirx.For, add_loop)])
    structural_walk(function.body, [(s_tir.SBlockRealize, add_block)])
    return found


def keep_bounds(module: Any) -> Any:
    """The module with each lone condition of a reduction as a conjunction.

    TVM puts the parts of conjunctions around the store of what threads joined, and drops a condition that is none:
    threads beyond the last element would store theirs behind the buffer.
    """
    import tvm
    from tvm import s_tir, tirx
    from tvm_ffi import structural_map

    def conjoin(realize: Any) -> Any:
        condition = realize.predicate
        if realize.block.init is None or isinstance(condition, tirx.IntImm | tirx.And):
            return realize
        both = tirx.And(condition, condition)  # TVM joins no threads under a constant
        return s_tir.SBlockRealize(realize.iter_values, both, realize.block)

    kinds = [(s_tir.SBlockRealize, conjoin)]
    return tvm.IRModule({v: structural_map(f, kinds) for v, f in module.functions.items()}, attrs=module.attrs)
