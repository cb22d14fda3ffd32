"""Namespaces, which separate projects: each task has one, with its records, best and runs.

The namespace is a part of the identity of tasks and records, so one log may be imported into several.
Workloads, targets, devices and workers are common to all.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from service.errors import InvalidError

DEFAULT = "default"
PATTERN = "^[a-z0-9][a-z0-9._-]{0,63}$"


def check(name: str) -> str:
    """Return `name`; raise `InvalidError` if it is no valid namespace."""
    if re.fullmatch(PATTERN, name) is None:
        raise InvalidError(
            f"namespace {name!r:.80}: invalid: use up to 64 of a-z, 0-9, '.', '_' and '-', first a letter or digit"
        )
    return name


def within(namespace: str, identity: bytes) -> bytes:
    """A record's identity in a namespace; unchanged in the default one."""
    if namespace == DEFAULT:
        return identity
    return blake2b(identity, digest_size=16, key=namespace.encode()).digest()


def key_within(namespace: str, key: str) -> str:
    """An attachment's key in a namespace, as keys of projects must not collide."""
    if namespace == DEFAULT:
        return key
    return blake2b(key.encode(), digest_size=32, key=namespace.encode()).hexdigest()
