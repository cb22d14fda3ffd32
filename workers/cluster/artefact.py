"""Orders and artefacts: the bytes that a host which times sends to builders, and those that come back.

An artefact names its order by digest, which covers workload, target, implementation, version, configuration and
toolchain, and has a digest of its own: it is accepted only as an answer to what was asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import platform
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import msgspec

from strategy.folder import keep_newest
from strategy.installed import installed
from strategy.record import Job, JobEntry, encode
from strategy.space import Config
from strategy.target import Target
from strategy.workload import Workload
from workers.builder import Built
from workers.cpu import environment

log = logging.getLogger(__name__)
_STORE_BYTES = 2 * 2**30
_SWEEP = 256  # artefacts that are stored between two looks at the folder's size


class RefusedOrderError(Exception):
    """A builder refuses an order, or its answer is not accepted; the message has the reason."""


class Toolchain(msgspec.Struct, frozen=True):
    """The software that an artefact depends on, which must be the same where it is built and where it is timed."""

    tvm: str
    tvm_ffi: str
    libc: str
    machine: str

    def check(self, other: Toolchain, there: str) -> None:
        """Raise `RefusedOrderError` if the other side has another toolchain."""
        for name, shown in _SHOWN.items():
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise RefusedOrderError(
                    f"{there} has {shown} {theirs or 'unknown'}, this one {ours or 'unknown'}: "
                    "install the same on both"
                )


_SHOWN = {"tvm": "TVM", "tvm_ffi": "TVM's ffi", "libc": "libc", "machine": "architecture"}


@cache
def toolchain() -> Toolchain:
    """The toolchain of this host, as it is at the first call; later others may be installed than are loaded."""
    known = environment()
    return Toolchain(known["tvm"], known["tvm_ffi"], " ".join(platform.libc_ver()), platform.machine())


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request: one configuration to build, and the toolchain of the host that times it."""

    workload: Workload
    target: Target
    implementation: str
    version: str
    config: Config
    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=3600)]
    toolchain: Toolchain

    @classmethod
    def of(cls, job: Job, entry: JobEntry) -> Order:
        """The order of a job's entry, for this host's toolchain."""
        return cls(
            workload=job.workload, target=job.target, implementation=entry.implementation,
            version=entry.version, config=entry.config, timeout_s=job.policy.build_timeout_s,
            toolchain=toolchain(),
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(encode(self)).hexdigest()


class Artefact(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: a library with the signature beside it, or the failure of the configuration.

    `refused` is set if the builder does not build such orders at all.
    """

    order: str  # its digest
    toolchain: Toolchain
    built: Built = Built(entry=0)
    library: bytes = b""
    signature: bytes = b""
    refused: str = ""

    def pack(self) -> bytes:
        """The bytes, which begin with their digest."""
        data = msgspec.msgpack.encode(self)
        return hashlib.sha256(data).digest() + data

    @classmethod
    def unpack(cls, data: Any, order: Order) -> Artefact:
        """The artefact of an order.

        Raises:
            RefusedOrderError: the builder refuses the order, or these bytes are damaged or answer another one.
        """
        if not isinstance(data, bytes) or hashlib.sha256(data[32:]).digest() != data[:32]:
            raise RefusedOrderError("an artefact was altered on its way: its digest is another")
        try:
            found = _artefacts.decode(data[32:])
        except msgspec.MsgspecError as error:
            raise RefusedOrderError(f"an answer is no artefact ({error}): install the same plevel on both") from error
        if found.refused:
            raise RefusedOrderError(found.refused)
        order.toolchain.check(found.toolchain, "the builder")
        if found.order != order.digest or (found.built.error is None) != bool(found.library):
            raise RefusedOrderError("an artefact does not belong to its order")
        return found

    def save(self, path: Path) -> None:
        """Write the library, and its signature beside it, as `workers.builder` does."""
        path.write_bytes(self.library)
        if self.signature:
            path.with_name(path.name + ".json").write_bytes(self.signature)

    @classmethod
    def load(cls, order: Order, built: Built) -> Artefact:
        """The artefact of what was built here."""
        library = signature = b""
        if built.error is None:
            path = Path(built.path)
            beside = path.with_name(path.name + ".json")
            library, signature = path.read_bytes(), beside.read_bytes() if beside.exists() else b""
        return cls(
            order=order.digest, toolchain=toolchain(), built=msgspec.structs.replace(built, path=""),
            library=library, signature=signature,
        )


_artefacts = msgspec.msgpack.Decoder(Artefact)


class Store:
    """Artefacts in a folder, which builders may share; the least recently used go first. Thread-safe.

    An artefact is found by its order and the code of plevel that made it. Those of other packages' implementations are
    not stored, as their code is not known here.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stored = 0
        self._problem: int | None = None  # the last attempt's errno
        self._code = _code()  # of the modules that are loaded by now: files may be replaced under a running builder

    def find(self, order: Order) -> Artefact | None:
        """The stored artefact of an order; None if there is none, or it is damaged."""
        path = self._path(order)
        try:
            found = Artefact.unpack(path.read_bytes(), order)
        except (OSError, RefusedOrderError):
            return None
        with contextlib.suppress(OSError):  # of another user, or on a disk that is read-only
            os.utime(path)
        return found

    def put(self, order: Order, artefact: Artefact) -> None:
        """Store an artefact; on a disk that is full or read-only it is not stored, which is said once."""
        if order.implementation not in installed().get(order.workload.op, {}):
            return
        path = self._path(order)
        draft = path.with_suffix(f".{os.getpid()}-{id(artefact)}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._stored % _SWEEP == 0:
                keep_newest(self._folder, _STORE_BYTES)
            self._stored += 1
            try:
                draft.write_bytes(artefact.pack())
                draft.rename(path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            if error.errno != self._problem:
                log.warning("artefacts are not stored in %s (%s): free some space, or name another folder with "
                            "--artefacts", self._folder, error.strerror)
            self._problem = error.errno
        else:
            self._problem = None

    def _path(self, order: Order) -> Path:
        return self._folder / hashlib.sha256(f"{self._code} {order.digest}".encode()).hexdigest()


@cache
def _code() -> str:
    """The digest of plevel's own code that artefacts depend on."""
    found = hashlib.sha256()
    for package in ("strategy", "workers"):
        root = Path(str(files(package)))
        for path in sorted(root.rglob("*.py")):
            found.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return found.hexdigest()
