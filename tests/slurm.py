"""A SLURM of one node on loopback, with its own authentication daemon, for one test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.limit import HANG_S
from tests.port import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
CONFIGURATION = """
ClusterName=local
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/controller
SlurmdSpoolDir={folder}/node
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/node.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
KillWait=10
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory=1000 State=UNKNOWN
PartitionName=debug Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


class Slurm:
    """Daemons in a folder; `environment` is that of its commands, and so of its jobs."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        missing = [p for p in PROGRAMS if shutil.which(p) is None]
        if missing or os.geteuid() != 0:
            pytest.skip("no SLURM on this host, or not root")
        self.host = socket.gethostname()
        configuration = folder / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                host=self.host, folder=folder, controller=free_port(), node=free_port(), cores=os.cpu_count()
            )
        )
        self.environment = {**environment, "SLURM_CONF": str(configuration)}
        (folder / "munge.key").write_bytes(os.urandom(128))
        (folder / "munge.key").chmod(0o600)
        own = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        names = [f"--{option}={folder}/munge.{name}" for option, name in own.items()]
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "slurm.log").open("wb")
        try:
            self._begin("munged", "--foreground", "--force", *names)
            self._wait((folder / "munge.socket").exists)
            self._begin("slurmctld", "-D")
            self._begin("slurmd", "-D")
            self._wait(lambda: "idle" in self.run("sinfo", "--noheader", "--format=%T", check=False))
        except BaseException:
            self.close()
            raise

    def _begin(self, *command: str) -> None:
        self._daemons.append(
            subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log
            )
        )

    def _wait(self, holds: Callable[[], bool]) -> None:
        give_up = time.monotonic() + HANG_S
        while not holds():
            died = [d.args for d in self._daemons if d.poll() is not None]
            assert not died and time.monotonic() < give_up, (died, Path(self._log.name).read_text())
            time.sleep(0.05)

    def run(self, *command: str, check: bool = True) -> str:
        """The output of one of its commands."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False, timeout=HANG_S
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout.strip()

    def jobs(self) -> dict[str, str]:
        """The states of the jobs in its queue (`PD`, `R`, …), by id."""
        lines = self.run("squeue", "--noheader", "--array", "--format=%i %t").splitlines()
        return {job: state for job, _, state in (line.partition(" ") for line in lines)}

    def close(self) -> None:
        if (jobs := self.jobs() if len(self._daemons) > 1 else {}):
            self.run("scancel", "--signal=KILL", "--full", *jobs, check=False)
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()
        self._log.close()
