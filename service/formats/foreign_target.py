"""Targets of other tools' logs, with options that plevel does not know."""

from __future__ import annotations

from strategy.target import KINDS, Target, TargetError


def foreign_target(spec: object) -> Target:
    """The target of another tool's log, without options unknown to plevel.

    Raises:
        TargetError: a known option has a value of the wrong type.
    """
    first = spec.get("kind") if isinstance(spec, dict) else next(iter(str(spec).split(None, 1)), "")
    if first == "cpu":  # plevel's name for this host, but the log is of another
        raise TargetError("target 'cpu' names no processor: expected llvm with -mcpu")
    if isinstance(first, str) and first and first not in KINDS:
        spec = {**spec, "foreign": True} if isinstance(spec, dict) else f"{spec} -foreign"
    try:
        target = Target.parse(spec)
    except TargetError:
        target = Target.parse(_without_unknown(spec))
    if target.model == "unknown":  # TVM's word for no model, which ApplyHistoryBest never matches
        data = target.to_json()
        del data["model"]
        target = Target.parse(data)
    return target


_OPTIONS = frozenset(
    "foreign kind keys device mcpu arch mattr mtriple target num-cores model libs max_num_threads "
    "max_threads_per_block thread_warp_size".split()
)


def _without_unknown(spec: object) -> object:
    if isinstance(spec, dict):
        return {name: value for name, value in spec.items() if name in _OPTIONS}
    if isinstance(spec, str):
        first, *words = spec.split()[:200] or [""]
        kept = [
            w
            for w in words
            if w == "-foreign" or (w.lstrip("-").partition("=")[0] in _OPTIONS and "=" in w)
        ]
        return " ".join([first, *kept])
    return spec
