"""Targets as text: TVM's legacy string or JSON, as options and their checked values."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

SWITCHES = frozenset("link-params system-lib".split())
# Options whose empty list means none: `cpu -libs=`.
_LISTS = frozenset("libs mattr".split())
# Names make up a target's key, whose parts "/" separates.
_NAME = re.compile(r"[^\s/]{1,128}")
MAX_WORDS = 64
MAX_TEXT = 4096


class TargetError(ValueError):
    """A target is malformed; the message has the field and the remedy."""


def read_options(spec: str) -> Any:
    """The options of a text, `kind` among them; of JSON, whatever it holds."""
    if not spec.lstrip().startswith("{"):
        return _read_words(spec)
    try:
        return json.loads(spec, object_pairs_hook=_once)
    except TargetError:
        raise
    except (ValueError, RecursionError) as error:
        raise TargetError(f"target {spec!r:.80} is not valid JSON: {error}") from error


def _read_words(spec: str) -> dict[str, Any]:
    if len(spec) > MAX_TEXT:  # splitting takes quadratic time
        raise TargetError(f"target {spec!r:.80}: longer than {MAX_TEXT} characters")
    try:
        words = shlex.split(spec)
    except ValueError as error:
        raise TargetError(f"target {spec!r:.80}: {error}") from error
    kind, *words = words
    options: list[tuple[str, Any]] = [("kind", kind)]
    words.reverse()
    while words:
        word = words.pop()
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name:
            raise TargetError(
                f"target {spec!r:.80}: {word!r:.40} is no option: write -name=value"
            )
        if not equals and words and not words[-1].startswith("-"):
            value = words.pop()
        elif not equals and (name in SWITCHES or name == "foreign"):
            value = "1"
        if not value and (not equals or name not in _LISTS):
            raise TargetError(
                f"target {spec!r:.80}: {word!r:.40} has no value: write -{name}=value, or leave it out"
            )
        options.append((name, value))
    return _once(options)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The options as a mapping; raise `TargetError` if one is given twice."""
    options: dict[str, Any] = {}
    for name, value in pairs:
        if name in options:
            raise TargetError(f"target option {name!r:.40} is given twice: leave one out")
        options[name] = value
    return options


def read_words(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [v for v in value.split(",") if v]
    if not isinstance(value, list | tuple) or len(value) > MAX_WORDS:
        raise TargetError(
            f"target.{name} = {value!r:.80}: expected a list of up to {MAX_WORDS} names"
        )
    return tuple([read_name(name, v) for v in value])


def read_name(field: str, value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise TargetError(f"target.{field} = {value!r:.80}: expected a name without spaces or '/'")
    return value


def read_count(name: str, value: Any) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = 0
    if isinstance(value, bool | float) or not 1 <= count <= 2**53:
        raise TargetError(f"target.{name} = {value!r:.40}: expected an integer of at least 1")
    return count
