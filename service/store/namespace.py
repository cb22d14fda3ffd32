"""Namespaces keep projects apart: a task is in one, and with it its records, its best and its runs.

The namespace is a part of what a task is, and of a record's identity: the same log may be read into
several. Workloads, targets, devices and workers are common to all.
"""

from __future__ import annotations

import re
from hashlib import blake2b

from service.errors import InvalidError

DEFAULT = "default"
PATTERN = "^[a-z0-9][a-z0-9._-]{0,63}$"


def check(name: str) -> str:
    """`name` itself; raises `InvalidError` where it cannot be a namespace's."""
    if re.fullmatch(PATTERN, name) is None:
        raise InvalidError(
            f"namespace {name!r:.80}: up to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
        )
    return name


def within(namespace: str, identity: bytes) -> bytes:
    """A record's identity in a namespace; in the default one it is as it was."""
    if namespace == DEFAULT:
        return identity
    return blake2b(identity, digest_size=16, key=namespace.encode()).digest()


def key_within(namespace: str, key: str) -> str:
    """An attachment's key in a namespace: what one project calls by it is not what another does."""
    if namespace == DEFAULT:
        return key
    return blake2b(key.encode(), digest_size=32, key=namespace.encode()).hexdigest()
