"""Text forms of values on the pages: times, ages, ratios, counts."""

from __future__ import annotations

import json
import math
import re
import shlex
import time
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from strategy.record import Estimate
from strategy.space import Config
from strategy.table import show_seconds


def show_time(seconds: float | None) -> str:
    """A measured time with three significant figures; a dash if there is none."""
    return "–" if seconds is None else show_seconds(seconds)


def show_spread(row: Any) -> str:
    """Half the 95 % interval's width relative to the median, or the number of samples if too few."""
    return Estimate(row.median_s, row.low_s, row.high_s, row.samples).show_spread()


def show_duration(seconds: float | None) -> str:
    """A duration in seconds, minutes or hours."""
    if seconds is None:
        return "–"
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f} s"
    # Rounded first: 179.7 s are 3 min 00 s, not 2 min 60 s.
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02} s"
    minutes = round(seconds / 60)
    if minutes < 2880:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{seconds / 86_400:.0f} days"


def show_age(at: float, now: float) -> str:
    """The age of an instant, by the database's clock."""
    age_s = now - at
    return "just now" if age_s < 1 else f"{show_duration(age_s)} ago"


def show_instant(at: float) -> str:
    """An instant in UTC, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at)) + " UTC"


def show_iso(at: float) -> str:
    """An instant in the form of `<time datetime>`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


def show_count(n: float | None) -> str:
    """A count with thin spaces between its thousands."""
    return "–" if n is None else f"{n:,.0f}".replace(",", "\u202f")


def show_ratio(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}×"


def show_factor(sigma_log: float) -> str:
    """A standard deviation of logarithms as a factor."""
    return f"{math.exp(sigma_log):.2f}×"


def show_share(share: float) -> str:
    return f"{share:.1%}" if 0 < share < 0.1 else f"{share:.0%}"


def show_config(config: Mapping[str, Any] | None) -> str:
    """The knobs and their values on one line."""
    return str(Config(config)) if config else "no knobs"


def show_breakable(name: str) -> Markup:
    """A name or a target that may break after an underscore, a slash or a point, rather than within a word."""
    return Markup("<wbr>").join(re.split("(?<=[_/.])", name))


def show_workload(key: str) -> Markup:
    """A workload's key that may break between its parts, on narrow screens also within a shape, but in no number."""
    parts = (re.split(r"(?<=,)(?=[\d-])", part) for part in re.split(r"(?<=,)(?![\d-])|(?<==)|(?=\+)", key))
    return Markup("<wbr>").join(Markup('<wbr class="narrow">').join(part) for part in parts)


def show_signature(key: str, op: str) -> Markup:
    """A workload's key without its operator, for pages of one operator."""
    return show_workload(key.removeprefix(op))


def show_json(value: Any) -> str:
    """Indented JSON for people; Jinja's `tojson` is for scripts."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False)


def show_spec(target: Mapping[str, Any]) -> str:
    """A target as `--target` takes it; its key is not read back."""
    return json.dumps(target, ensure_ascii=False)


def heat_class(ratio: float | None) -> str:
    """The CSS class of a heat map's cell: `heat-0` for the best, up to `heat-7` beyond five times."""
    if ratio is None:
        return "heat-none"
    bounds = (1.0, 1.05, 1.15, 1.35, 1.75, 2.5, 5.0)
    return f"heat-{sum(ratio > b for b in bounds)}"


def show_device(model: str | None, identity: str) -> str:
    """A device by its model, followed by its identity."""
    return f"{model} ({identity})" if model else identity


FILTERS = {
    "time": show_time, "spread": show_spread, "duration": show_duration, "age": show_age,
    "instant": show_instant, "iso": show_iso, "count": show_count, "ratio": show_ratio,
    "share": show_share, "factor": show_factor, "config": show_config, "signature": show_signature,
    "breakable": show_breakable, "workload": show_workload,
    "device": show_device, "heat": heat_class, "pretty": show_json,
    "spec": show_spec, "shell": shlex.quote,
}
