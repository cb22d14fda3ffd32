"""Bundles: jobs with their cubins in one signed file, for a device whose host cannot reach a service.

The host that runs a bundle needs no TVM and no compiler: it verifies the signature, times the jobs as a
worker does, and writes plevel's own NDJSON, which `plevel import` reads. A bundle contains code, so it is
opened only if it is signed (HMAC-SHA256) with the key that the host's owner has installed.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import io
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from strategy.cuda.program import CudaArtefact
from strategy.op_strategy import Candidate
from strategy.record import Device, Job, Result, WireError, decode, encode, to_json
from workers.builder import Built

_MAGIC = b"plevel-bundle 1\n"
_SIGNATURE = hashlib.sha256().digest_size
_KEY_BYTES = 32
_MOST_DIGITS = 1 << 16  # of a key, as a device has no end
MOST_BYTES = 1 << 30  # of a bundle, and of its content unpacked


class BundleError(ValueError):
    """A bundle or key cannot be read or trusted; the message has the remedy."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A job, the implementations that its entries name, and the built artefacts by entry."""

    job: Job
    candidates: tuple[Candidate, ...]
    built: tuple[Built, ...]
    artefacts: dict[str, CudaArtefact]  # by the entry's number


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a bundle file: jobs with their artefacts."""

    parts: tuple[Part, ...]
    made_at: float
    version: str = ""


def make_key(path: Path) -> None:
    """Write a new key that only its owner may read.

    Raises:
        BundleError: the file exists.
        OSError: it cannot be written; there is none then.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BundleError(f"{path} exists, and a new key would invalidate its bundles: name another file") from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(_KEY_BYTES) + "\n")
    except BaseException:
        path.unlink()
        raise


def read_key(path: Path) -> bytes:
    """The key in a file that `make_key` wrote."""
    try:
        with path.open() as file:
            key = bytes.fromhex(file.read(_MOST_DIGITS).strip())
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{path} is no key ({error}): write one with plevel bundle key FILE"
        ) from error
    if len(key) < _KEY_BYTES:
        raise BundleError(
            f"{path} holds {len(key)} bytes, a key has {_KEY_BYTES}: "
            "write one with plevel bundle key FILE"
        )
    return key


def seal(bundle: Bundle, key: bytes) -> bytes:
    """Encode a bundle: name and version, signature, compressed content."""
    content = gzip.compress(encode(bundle), mtime=0)
    return _MAGIC + _sign(content, key) + content


def unseal(data: bytes, key: bytes) -> Bundle:
    """Decode a bundle after verifying its signature.

    Raises:
        BundleError: it is no bundle, not signed with this key, or altered.
    """
    if not data.startswith(_MAGIC):
        raise BundleError(
            "not a bundle that this version can read: write it with the same version of plevel"
        )
    signature = data[len(_MAGIC) : len(_MAGIC) + _SIGNATURE]
    content = data[len(_MAGIC) + _SIGNATURE :]
    if not hmac.compare_digest(signature, _sign(content, key)):
        raise BundleError(
            "the bundle was refused, it is not signed with this key or was altered: "
            "name the key that it was written with, or copy it again"
        )
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            text = packed.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise BundleError(f"the bundle unpacks to more than {MOST_BYTES} bytes: make it with fewer trials")
        return decode(text, Bundle)
    except (OSError, EOFError, WireError) as error:
        raise BundleError(
            f"the bundle cannot be read ({error}): write it with the same version of plevel"
        ) from error


def _sign(content: bytes, key: bytes) -> bytes:
    return hmac.digest(key, _MAGIC + content, "sha256")


# Times the built entries of a job, reporting each; returns the environment.
TimeJob = Callable[[Job, Sequence[Built], Callable[[Result], None]], dict[str, Any]]


def run_bundle(
    bundle: Bundle, time_job: TimeJob, device: Device, session: str, worker: str
) -> Iterator[bytes]:
    """Time all parts of a bundle on a device; yield plevel's NDJSON, a part at a time.

    Entries that failed to build are reported with their error.

    Args:
        time_job: checks and times the built entries, as `TimingRunner.run`.
        session: identifies the records of this run.
    """
    yield msgspec.json.encode({"kind": "plevel-records", "version": 1}) + b"\n"
    with tempfile.TemporaryDirectory(prefix="plevel-bundle-") as folder:
        for number, part in enumerate(bundle.parts):
            yield from _spaces(part)
            results = [b.failure() for b in part.built if b.error is not None]
            built = []
            for entry in part.built:
                if entry.error is None:
                    path = Path(folder, f"{number}-{entry.entry}.json")
                    part.artefacts[str(entry.entry)].save(path)
                    built.append(msgspec.structs.replace(entry, path=str(path)))
            environment = time_job(part.job, built, results.append) if built else {}
            for result in results:
                line = _record(part, result, device, environment)
                line |= {"session": f"{session}-{number}", "worker": worker}
                yield msgspec.json.encode(line) + b"\n"


def _spaces(part: Part) -> Iterator[bytes]:
    for candidate in part.candidates:
        if candidate.space is not None:
            text = encode(candidate.space).decode()
            attachment = {"what": "space", "key": candidate.space.digest, "text": text}
            yield msgspec.json.encode({"kind": "attachment", **attachment}) + b"\n"


def _record(
    part: Part, result: Result, device: Device, environment: dict[str, Any]
) -> dict[str, Any]:
    """A result as a line of plevel's NDJSON, without fields at their defaults."""
    job = part.job
    entry = next(e for e in job.entries if e.index == result.entry)
    candidate = next(c for c in part.candidates if c.implementation == entry.implementation)
    task: dict[str, Any] = {
        "workload": to_json(job.workload),
        "target": job.target.to_json(),
        "implementation": entry.implementation,
        "version": entry.version,
        "plevel": candidate.plevel,
    }
    if candidate.space is not None:
        task["space"] = candidate.space.digest
    if candidate.condition is not None:
        task["condition"] = candidate.condition.to_json()
    if candidate.library is not None:
        task["library"] = candidate.library
    outcome = to_json(result)
    del outcome["entry"]
    kept = {name: value for name, value in outcome.items() if value not in (None, "", [], ())}
    return {
        "kind": "record", "source": "plevel", "task": task, "config": entry.config.to_json(),
        "phase": job.phase.value, "seed": job.seed, "device_model": device.model,
        "device": to_json(device), "policy": to_json(job.policy), "environment": environment, **kept,
    }
