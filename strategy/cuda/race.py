"""Reductions by several threads that TVM lowers wrongly, without an error."""

from __future__ import annotations

from typing import Any

from strategy.tir import change_functions, find, has_names


def find_races(function: Any) -> list[str]:
    """The buffers in which several threads reduce to one element, or each to its own, without being joined.

    TVM joins the threads of a reduction, but leaves it as it is, without an error, where it cannot. Where it joins
    them, a thread's own part is a block without an initial value.

    Args:
        function: after `s_tir.LowerCrossThreadReduction`.
    """
    from tvm import s_tir, tirx

    threads = [
        loop.loop_var
        for loop in find(function.body, tirx.For)
        if loop.thread_binding is not None and loop.thread_binding.thread_tag.startswith("threadIdx")
    ]
    found: list[str] = []
    for realize in find(function.body, s_tir.SBlockRealize):
        block = realize.block
        pairs = zip(block.iter_vars, realize.iter_values, strict=True)
        terms = [value for variable, value in pairs if variable.iter_type == tirx.IterVar.CommReduce]
        if any(has_names(term, threads) for term in terms):
            found += [w.source.name for w in block.writes if w.source.scope() != "local" or block.init is not None]
    return found


def keep_bounds(module: Any) -> Any:
    """The module with each lone condition of a reduction as a conjunction.

    TVM puts the parts of conjunctions around the store of what threads joined, and drops a condition that is none:
    threads beyond the last element would store theirs behind the buffer.
    """
    from tvm import s_tir, tirx
    from tvm_ffi import structural_map

    def conjoin(realize: Any) -> Any:
        condition = realize.predicate
        if realize.block.init is None or isinstance(condition, tirx.IntImm | tirx.And):
            return realize
        both = tirx.And(condition, condition)  # TVM joins no threads under a constant
        return s_tir.SBlockRealize(realize.iter_values, both, realize.block)

    return change_functions(module, lambda function: structural_map(function, [(s_tir.SBlockRealize, conjoin)]))
