"""PyTorch Inductor: its lookup table is a plevel service, and what it times goes there.

    import plevel.hooks.inductor

    plevel.hooks.inductor.install("http://farm:8765")
    torch.compile(model, mode="max-autotune")
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table.choices import LookupTableChoices
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache
from torch._inductor.virtualized import V

from plevel.hooks.reporter import Reporter
from plevel.hooks.settings import is_off
from strategy.foreign import foreign_workload
from strategy.host import cpu_arch, cpu_model

KEEP = 3  # configurations of another device that are timed on this one
_installed: list[Reporter] = []
# Choices of another release are not taken: it chose among other templates.
_VERSION = str(torch.__version__)
_PLAIN = (bool, int, float, str)


def install(url: str | None = None, **options: Any) -> Reporter | None:
    """Take Inductor's templates from the service, and report what it times.

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
    config.inductor_choices_class = Choices
    V.set_choices_handler(Choices())  # in place of what this thread has compiled with before
    add_feedback_saver(save)
    return reporter


def uninstall() -> None:
    """Restore Inductor's own choices, and deliver what was reported."""
    if config.inductor_choices_class is Choices:
        config.inductor_choices_class = None
        V.set_choices_handler(InductorChoices())
    savers = get_algorithm_selector_cache().feedback_saver_fns
    savers[:] = [fn for fn in savers if fn is not save]
    for reporter in _installed:
        reporter.close()
    _installed.clear()


class Choices(LookupTableChoices):  # type: ignore[misc]
    """Inductor's choices, of templates and configurations that the service knows for a product."""

    def uuid(self) -> str:
        """The identity in keys of Inductor's caches."""
        return "plevel.hooks.inductor.Choices"

    def _get_lookup_table(self) -> Any:
        return _Table() if _installed else {}

    @staticmethod
    @cache
    def _get_device_key(device: torch.device) -> str | None:
        return model_of(device)

    def make_lookup_key_variants(self, kernel_inputs: Any, op_name: str) -> tuple[str | None, str | None]:
        """The key with its device model, as the table ranks devices itself."""
        return self.make_lookup_key(kernel_inputs, op_name, include_device=True), None


class _Table:
    """The lookup table: asks the service for each key."""

    def __len__(self) -> int:
        return 1  # never empty

    def get(self, key: str, default: Any = None) -> Any:
        """The configurations of a key; those of another device are timed here, few of them."""
        for reporter in _installed:
            with reporter.spared():
                return _known(reporter, key) or default
        return default


def _known(reporter: Reporter, key: str) -> list[dict[str, Any]]:
    model, _, problem = key.partition("+")
    asked = foreign_workload("inductor", _op(problem), {"key": problem})
    found = reporter.likest("inductor", asked, device_model=model, version=_VERSION, limit=KEEP)
    # Inductor raises at an entry without a template, such as one that was imported.
    answers = [a for a in found["answers"] if _names_template(a["config"])] if found else []
    keep = 1 if answers and answers[0]["likeness"] == "model" else KEEP
    return [dict(a["config"]) for a in answers[:keep]]


def _names_template(entry: Any) -> bool:
    return isinstance(entry, dict) and isinstance(entry.get("template_id"), str)


def save(
    timings: dict[Any, float], name: str, input_nodes: Any, choices: Any, *more: Any
) -> None:
    """Report the choices that Inductor timed, in milliseconds; infinity is a failure."""
    for reporter in _installed:
        with reporter.spared():
            for line in _lines(timings, name):
                reporter.report(line)


def _lines(timings: dict[Any, float], name: str) -> Iterator[dict[str, Any]]:
    """The choices of each problem and device model as a foreign line."""
    by_problem: dict[tuple[str, str], list[dict[str, Any]]] = {}
    targets: dict[str, dict[str, str] | None] = {}
    for choice, took in timings.items():
        made = getattr(choice, "annotations", {}).get("ktc")
        if made is None:
            continue
        problem = Choices().make_lookup_key(made.inputs, name)
        if problem is None:
            continue
        # Those that are not plain follow from the template again.
        entry = {k: v for k, v in made.params.to_kwargs().items() if isinstance(v, _PLAIN)}
        entry["template_id"] = made.template.uid
        if getattr(made.template, "src_hash", None) is not None:
            entry["template_hash"] = made.template.src_hash
        outcome: dict[str, Any] = {"samples_s": [took / 1e3]}
        if not math.isfinite(took) or took <= 0:
            outcome = {"error": "runtime", "message": "Inductor: the choice failed"}
        device = made.inputs.device()
        place = problem, model_of(device)
        targets[place[1]] = _target(device)
        by_problem.setdefault(place, []).append({"config": entry, **outcome})
    for (problem, model), candidates in by_problem.items():
        yield {
            "tool": "inductor", "kernel": _op(problem), "attrs": {"key": problem},
            "device_model": model, "target": targets[model], "measured_at": time.time(), "candidates": candidates,
            "version": _VERSION, "environment": {"torch": _VERSION},
        }


def _op(problem: str) -> str:
    """The operation at the end of a key."""
    return problem.rpartition("+")[2]


def model_of(device: torch.device) -> str:
    """The device model that a device is."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return cpu_model() if device.type == "cpu" else device.type


def _target(device: torch.device) -> dict[str, str] | None:
    """The target of a device; None leaves it to the service, by the device model."""
    model = model_of(device)
    if device.type == "cpu":
        return {"kind": "llvm", "mcpu": cpu_arch(), "model": model}
    if device.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return {"kind": "rocm", "arch": about.gcnArchName.partition(":")[0], "model": model}
    return {"kind": "cuda", "arch": f"sm_{about.major}{about.minor}", "model": model}
