"""Triton's autotuner: its times go to a plevel service, and what the service knows is not measured again.

    import plevel.hooks.triton

    plevel.hooks.triton.install("http://farm:8765")      # report what is tuned
    @plevel.hooks.triton.autotune(configs=[…], key=["n"])  # ask first, in place of triton.autotune
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import triton
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from plevel.hooks.reporter import Reporter
from plevel.hooks.settings import is_off
from strategy.foreign import foreign_workload

KEEP = 3  # configurations of another device that are measured on this one
_FAILED = "Triton: out of resources, a failed static assertion, or an error of ptxas"
_installed: list[Reporter] = []


def install(url: str | None = None, **options: Any) -> Reporter | None:
    """Report all autotuning of this process, beside a listener that is set already.

    Args:
        url: the service; default: `PLEVEL_URL`.
        options: `token`, `namespace` and `folder` of `Reporter`.

    Returns:
        The connection, None if `PLEVEL_HOOKS=0` switches hooks off.
    """
    if is_off():
        return None
    uninstall()
    reporter = Reporter(url, **options)
    _installed.append(reporter)
    triton.knobs.autotuning.listener = _Listener(reporter, triton.knobs.autotuning.listener)
    return reporter


def uninstall() -> None:
    """Restore the listener that was set before, and deliver what was reported."""
    listener = triton.knobs.autotuning.listener
    if isinstance(listener, _Listener):
        triton.knobs.autotuning.listener = listener.before
    for reporter in _installed:
        reporter.close()
    _installed.clear()


class _Listener:
    def __init__(self, reporter: Reporter, before: Any) -> None:
        self.before = before
        self._reporter = reporter

    def __call__(
        self, *, fn: Any, key: Any, configs_timings: Mapping[Config, Any], cache_hit: bool, **more: Any
    ) -> None:
        if self.before is not None:
            self.before(
                fn=fn, key=key, configs_timings=configs_timings, cache_hit=cache_hit, **more
            )
        with self._reporter.spared():
            self._reporter.report({
                **_where(), "tool": "triton", "kernel": fn.__name__, "attrs": {"key": [_plain(v) for v in key]},
                "version": _source(fn),
                # Times from Triton's own cache are reported without a date, so that they are stored once.
                "measured_at": 0.0 if cache_hit else time.time(),
                "environment": {"triton": triton.__version__},
                "candidates": [_candidate(c, t) for c, t in configs_timings.items()],
            })


def _candidate(config: Config, times: Any) -> dict[str, Any]:
    given = {"config": config.all_kwargs()}
    took = [t / 1e3 for t in (times if isinstance(times, Sequence) else [times])]
    if not took or not math.isfinite(took[0]):
        return given | {"error": "compile", "message": _FAILED}
    if took[0] <= 0:
        return given | {"error": "runtime", "message": f"Triton: a time of {took[0]} s"}
    return given | {"samples_s": took[:1], "extra": {"quantiles_s": took}}


def autotune(
    configs: Sequence[Config], key: Sequence[str], *, keep: int = KEEP, **options: Any
) -> Callable[[Any], Autotuner]:
    """Make a `triton.autotune` that asks the service first, and measures only what it has to.

    If this kernel's source, key and device model are known, the best configuration is taken without a measurement;
    from another device the `keep` best are measured here. Configurations that nobody tried are measured
    in either case. Without an answer all are.
    """

    def decorate(fn: Any) -> Autotuner:
        tuner = triton.autotune(list(configs), list(key), **options)(fn)
        before = tuner.early_config_prune

        def prune(given: list[Config], nargs: Mapping[str, Any], **kwargs: Any) -> list[Config]:
            left = given if before is None else before(given, nargs, **kwargs)
            for reporter in _installed:
                with reporter.spared():
                    return _known_or_new(reporter, tuner, left, {**nargs, **kwargs}, keep)
            return left

        tuner.early_config_prune = prune
        return tuner

    return decorate


def _known_or_new(
    reporter: Reporter,
    tuner: Autotuner,
    configs: list[Config],
    arguments: Mapping[str, Any],
    keep: int,
) -> list[Config]:
    """The configurations to measure: the best known ones, and those that nobody tried."""
    fn = tuner.fn
    while not isinstance(fn, JITFunction):
        fn = fn.fn
    asked = foreign_workload("triton", fn.__name__, {"key": _key(tuner, arguments)})
    where = _where()
    found = reporter.likest(
        "triton", asked, device_model=where["device_model"], version=_source(fn),
        architecture=where["target"].get("arch", ""), limit=1000, failures=True,
    )
    if not found or not found["answers"]:
        return configs
    by_text = {_text(c.all_kwargs()): c for c in configs}
    ranked = [_text(a["config"]) for a in found["answers"]]
    tried = {*ranked, *(_text(c) for c in found["failed"])}
    new = [c for text, c in by_text.items() if text not in tried]
    best = [by_text[text] for text in ranked if text in by_text]
    if found["answers"][0]["likeness"] == "model" and not new:
        return best[:1] or configs
    return [*best[:keep], *new] or configs


def _key(tuner: Autotuner, arguments: Mapping[str, Any]) -> list[Any]:
    """The key of `Autotuner.run`, as its listener reports it."""
    own = {k: v for k, v in arguments.items() if k in tuner.arg_names}
    key = [own[k] for k in tuner.keys if k in own]
    key += [str(v.dtype) for v in own.values() if hasattr(v, "dtype")]
    return [_plain(v) for v in key]


def _plain(value: Any) -> bool | int | float | str | None:
    """A value of a key as JSON has it, others as their text."""
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


def _text(config: Mapping[str, Any]) -> str:
    return json.dumps(dict(config), sort_keys=True, default=str)


def _source(fn: Any) -> str:
    """A digest of the kernel's source and of what it calls; the source itself is never sent."""
    return hashlib.sha256(str(fn.cache_key).encode()).hexdigest()[:16]


@cache
def _place_of(device: Any) -> dict[str, Any]:
    target = driver.active.get_current_target()
    kind = {"hip": "rocm"}.get(target.backend, target.backend)
    arch = f"sm_{target.arch}" if kind == "cuda" else str(target.arch)
    model = ""  # without a GPU of PyTorch's only the architecture is known
    with contextlib.suppress(ImportError, AssertionError, RuntimeError):
        import torch

        model = torch.cuda.get_device_name(device)
    spec = {"kind": kind, "arch": arch, **({"model": model} if model else {})}
    return {"device_model": model, "target": spec}


def _where() -> dict[str, Any]:
    """The target and the model of the current device."""
    return _place_of(driver.active.get_current_device())
