"""Batch systems that run pilot jobs, through Parsl's providers.

A provider knows only the jobs that its own process has submitted. Here they are listed by the names that they were
given, so that any process on any host of the cluster sees the same.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import logging
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from plevel.pilots.pod import (
    api_errors,
    bury_pods,
    explain_api,
    find_pods,
    has_ended,
    make_provider,
)
from strategy.folder import keep_newest

_KEPT_BYTES = 64 * 2**20  # scripts and logs of pilots
_PENDING = frozenset("PD CF RD RF RH RQ SE".split())  # states of SLURM's jobs that have not started, or have to again
_SUSPENDED = frozenset(("S", "ST"))  # without its processors, and with them
# Reasons for which SLURM, not a person, holds a job: its node's prolog failed, or it was requeued too often.
_GIVEN_UP = frozenset({"launch failed requeued held", "JobHoldMaxRequeue"})


class EngineError(Exception):
    """The batch system refused or did not answer; the message has its words, in one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


@dataclass(frozen=True)
class Pilot:
    """A pilot job that has not ended, nor is ending.

    Attributes:
        waits: the batch system has not started it.
        given_up: why the batch system will not, though it keeps it.
        suspended: the batch system has stopped it, and lets it go on later.
    """

    id: str
    name: str
    waits: bool
    given_up: str = ""
    suspended: bool = False


def _list_slurm(provider: Any) -> Iterator[Pilot]:
    clusters = f" --clusters={provider.clusters}" if provider.clusters else ""
    command = f"squeue --me{clusters} --noheader --format='%i|%t|%r|%j'"
    status, out, error = provider.execute_wait(command)
    if status:
        raise EngineError(f"squeue failed: {error}")
    for line in out.splitlines():
        words = line.split("|", maxsplit=3)
        if len(words) == 4 and words[1] != "CG":  # it takes no job any more, and may be so for hours
            number, state, reason, name = words
            reason = reason.replace("_", " ")  # as some versions write it
            given_up = reason if reason in _GIVEN_UP else ""
            yield Pilot(number, name, state in _PENDING, given_up, state in _SUSPENDED)


def _list_pbs(provider: Any) -> Iterator[Pilot]:
    status, out, error = provider.execute_wait("qstat -f -F json")
    if status:
        raise EngineError(f"qstat failed: {error}")
    try:
        for number, found in msgspec.convert(json.loads(out), _Jobs).jobs.items():
            owner = msgspec.convert(found, _Owned).owner
            if owner.partition("@")[0] == getpass.getuser():
                job = msgspec.convert(found, _Job)
                if job.state not in "EFX":
                    # U: by the user of the workstation that it runs on.
                    yield Pilot(number, str(job.name), waits=job.state in "QHWT", suspended=job.state in "SU")
    except ValueError as broken:
        raise EngineError(
            f"qstat gave no list of jobs ({broken}): needs PBS Pro or OpenPBS of version 19 or newer"
        ) from broken


class _Owned(msgspec.Struct, frozen=True, rename={"owner": "Job_Owner"}):
    """The part of qstat's description of a job that tells whose it is; the rest is of any form if another user's."""

    owner: str


class _Job(msgspec.Struct, frozen=True, rename={"state": "job_state", "name": "Job_Name"}):
    """The parts of an own job that are used."""

    state: str
    name: str | int | float = ""  # as PBS writes a text that looks like a number


class _Jobs(msgspec.Struct, frozen=True, rename={"jobs": "Jobs"}):
    jobs: dict[str, Any] = {}


def _list_local(provider: Any) -> Iterator[Pilot]:
    """The shells that run the provider's scripts; each is the child of the process that gave the id."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            parent = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if words[0] == b"bash" and len(words) > 1 and words[1].endswith(b".sh"):
            yield Pilot(parent, Path(words[1].decode(errors="replace")).stem, waits=False)


def _list_pods(provider: Any) -> Iterator[Pilot]:
    """The pods that have not ended; one that is being deleted may run on for its grace period."""
    for pod in find_pods(provider):
        if not has_ended(pod) and pod.metadata.deletion_timestamp is None:
            yield Pilot(pod.metadata.name, pod.metadata.name, waits=pod.status.phase == "Pending")


_KINDS: Mapping[str, tuple[str, Callable[[Any], Iterator[Pilot]]]] = {
    "slurm": ("SlurmProvider", _list_slurm),
    "pbs": ("PBSProProvider", _list_pbs),
    "kubernetes": ("KubernetesProvider", _list_pods),
    "local": ("LocalProvider", _list_local),
}


class Engine:
    """A batch system's pilot jobs of one name.

    Args:
        kind: `slurm`, `pbs`, `kubernetes` or `local`.
        options: options of Parsl's provider.
        name: the first part of the names of its jobs.
        folder: for scripts and logs; the hosts of the batch system must share it, but for those of Kubernetes.

    Raises:
        EngineError: the provider does not take these options.
    """

    def __init__(self, kind: str, options: Mapping[str, Any], name: str, folder: Path) -> None:
        from parsl import providers
        from parsl.launchers import SimpleLauncher

        logging.getLogger("parsl").setLevel(logging.CRITICAL)  # its errors are raised as well
        provider, self._list = _KINDS[kind]
        self._kind = kind
        try:
            if kind == "kubernetes":
                name = re.sub("[^a-z0-9-]", "-", name.lower())  # of what a pod may be called
                self._provider = make_provider(options, name)
            else:
                self._provider = getattr(providers, provider)(launcher=SimpleLauncher(), **options)
        except Exception as error:  # typeguard's, and whatever else a provider raises
            raise EngineError(f"Parsl's {provider} refused its options: {error}") from error
        self._name = name
        self._folder = folder
        self._provider.script_dir = str(folder)

    def pilots(self) -> tuple[Pilot, ...]:
        """The pilots that have not ended, nor were given up, the oldest first."""
        return tuple(sorted((p for p in self._listed() if not p.given_up), key=lambda p: p.name))

    def _listed(self) -> list[Pilot]:
        with _told("the pilots were not listed"):
            return [p for p in self._list(self._provider) if p.name.startswith(f"{self._name}.")]

    def clean(self) -> tuple[Pilot, ...]:
        """Cancel pilots that the batch system has given up; return them.

        Delete pods that have ended, whose logs become files, and the oldest scripts and logs.
        """
        given_up = tuple(p for p in self._listed() if p.given_up)
        self.cancel(p.id for p in given_up)
        with _told("what ended pilots have left was not deleted"):
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._kind == "kubernetes":
                bury_pods(self._provider, self._folder)
            keep_newest(self._folder, _KEPT_BYTES)
        return given_up

    def submit(self, command: str) -> str:
        """Submit a pilot; return its id. `$JOBNAME` is its name in the command."""
        with _told("no pilot was submitted"):
            self._folder.mkdir(parents=True, exist_ok=True)
            if self._kind != "local":  # else the shell, which a signal reaches too, would end before its worker
                command = f"exec {command}"
            found = self._provider.submit(command, 1, self._name)
            if found is None:
                raise OSError("the batch system gave it no number")
            return str(self._provider.resources[found].get("pod_name", found))

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel pilots, also those that another process has submitted."""
        listed = list(ids)
        for one in listed:
            self._provider.resources.setdefault(one, {"remote_pid": one, "pod_name": one})
        with _told(f"pilots {', '.join(listed)} were not cancelled"):
            if listed and not all(self._provider.cancel(listed)):
                raise OSError("the batch system refused")


@contextlib.contextmanager
def _told(problem: str) -> Iterator[None]:
    """Raise an error of a batch system as `EngineError`."""
    from parsl.errors import ParslError

    # A command's words may be no text: names of jobs, of other users, too.
    expected: tuple[type[Exception], ...] = (
        ParslError, OSError, UnicodeDecodeError, subprocess.SubprocessError, *api_errors(),
    )
    try:
        yield
    except expected as error:
        told = getattr(error, "stderr", None) or explain_api(error) or error
        raise EngineError(f"{problem}: {told}") from error
