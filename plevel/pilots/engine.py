"""Batch systems that run pilot jobs, through Parsl's providers.

A provider knows only the jobs that its own process has submitted. Here they are listed by the names that they were
given, so that any process on any host of the cluster sees the same.
"""

from __future__ import annotations

import getpass
import json
import logging
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strategy.folder import keep_newest

_KEPT_BYTES = 64 * 2**20  # scripts and logs of pilots


class EngineError(Exception):
    """The batch system refused or did not answer; the message has its words."""


@dataclass(frozen=True)
class Pilot:
    """A pilot job that has not ended; `waits` if the batch system has not started it."""

    id: str
    name: str
    waits: bool


def _list_slurm(provider: Any) -> Iterator[Pilot]:
    clusters = f" --clusters={provider.clusters}" if provider.clusters else ""
    command = f"squeue --me{clusters} --noheader --format='%i %t %j'"
    status, out, error = provider.execute_wait(command)
    if status:
        raise EngineError(f"squeue failed: {error}")
    for line in out.splitlines():
        number, state, name = line.split(maxsplit=2)
        yield Pilot(number, name, waits=state in ("PD", "CF"))


def _list_pbs(provider: Any) -> Iterator[Pilot]:
    status, out, error = provider.execute_wait("qstat -f -F json")
    if status:
        raise EngineError(f"qstat failed: {error}")
    try:
        jobs = json.loads(out).get("Jobs", {})
    except ValueError as broken:
        raise EngineError(f"qstat gave no JSON ({broken}): needs PBS Pro or OpenPBS of version 19 or newer") from broken
    for number, job in jobs.items():
        if job["Job_Owner"].partition("@")[0] == getpass.getuser() and job["job_state"] not in "FX":
            yield Pilot(number, job["Job_Name"], waits=job["job_state"] in "QHWT")


def _list_local(provider: Any) -> Iterator[Pilot]:
    """The shells that run the provider's scripts; each is the child of the process that gave the id."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:  # it has ended
            continue
        if words[0] == b"bash" and len(words) > 1 and words[1].endswith(b".sh"):
            yield Pilot(parent, Path(words[1].decode(errors="replace")).stem, waits=False)


_KINDS: Mapping[str, tuple[str, Callable[[Any], Iterator[Pilot]]]] = {
    "slurm": ("SlurmProvider", _list_slurm),
    "pbs": ("PBSProProvider", _list_pbs),
    "local": ("LocalProvider", _list_local),
}


class Engine:
    """A batch system's pilot jobs of one name.

    Args:
        kind: `slurm`, `pbs` or `local`.
        options: options of Parsl's provider.
        name: the first part of the names of its jobs.
        folder: for scripts and logs; the hosts of the batch system must share it.

    Raises:
        EngineError: the provider does not take these options.
    """

    def __init__(self, kind: str, options: Mapping[str, Any], name: str, folder: Path) -> None:
        from parsl import providers
        from parsl.launchers import SimpleLauncher

        logging.getLogger("parsl").setLevel(logging.CRITICAL)  # its errors are raised as well
        provider, self._list = _KINDS[kind]
        try:
            self._provider = getattr(providers, provider)(launcher=SimpleLauncher(), **options)
        except Exception as error:  # typeguard's, and whatever else a provider raises
            raise EngineError(f"Parsl's {provider} refused its options: {error}") from error
        self._name = name
        self._folder = folder
        self._provider.script_dir = str(folder)

    def pilots(self) -> tuple[Pilot, ...]:
        """The pilots that have not ended, the oldest first."""
        try:
            found = [p for p in self._list(self._provider) if p.name.startswith(f"{self._name}.")]
        except (OSError, subprocess.SubprocessError) as error:
            raise EngineError(str(error)) from error
        return tuple(sorted(found, key=lambda p: p.name))

    def submit(self, command: str) -> str:
        """Submit a pilot; return its id. `$JOBNAME` is its name in the command."""
        from parsl.errors import ParslError

        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            keep_newest(self._folder, _KEPT_BYTES)
            return str(self._provider.submit(command, 1, self._name))
        except (ParslError, OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", None) or error
            raise EngineError(f"no pilot was submitted: {told}") from error

    def cancel(self, ids: Iterable[str]) -> None:
        """Cancel pilots, also those that another process has submitted."""
        from parsl.errors import ParslError

        listed = list(ids)
        for one in listed:
            self._provider.resources.setdefault(one, {"remote_pid": one})
        try:
            done = all(self._provider.cancel(listed)) if listed else True
        except (ParslError, OSError, subprocess.SubprocessError) as error:
            raise EngineError(f"pilots {', '.join(listed)} were not cancelled: {error}") from error
        if not done:
            raise EngineError(f"pilots {', '.join(listed)} were not cancelled")
