"""The workers of a host, one for each device.

`python -m workers URL SLOT [THREADS] [--verbose]` is the worker of the embedded mode, `plevel worker` that of a farm.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from strategy.log import Form, configure
from strategy.record import Device, decode
from workers.builder_pool import Elsewhere
from workers.cgroup import THROTTLES, cpu_quota
from workers.client import Client, ServiceError, StoppedError, UnreachableError, UntrustedError
from workers.connection import ConnectionSettingError
from workers.cpu import DeviceError, assign, describe_device, parse_cores
from workers.daemon import Daemon, describe_worker
from workers.ending import ended_by_signals
from workers.sandbox import SandboxError
from workers.scratch import ScratchError, check_executable
from workers.several import serve_each
from workers.spool import Spool

log = logging.getLogger(__name__)
_PATIENCE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Options:
    """The settings of a host's workers.

    Args:
        url: the service, such as http://127.0.0.1:8765.
        devices: cpu, cores of it (cpu:0-3), or cuda:0; each has a worker.
        threads: of a kernel, a part of the target; None: all cores.
        token: reads the service's, if it requires one; see `Client`.
        name: shown in lists of workers.
        hottest_c, lifetime_s, idle_exit_s, grace_s: see `Daemon`.
        build_on: a Dask scheduler whose workers build, too, such as tls://host:8786.
        tls_ca, tls_cert, tls_key: files for that, in PEM form.
        log: the form of log lines; JSON has the ids of runs and jobs.
        verbose: log debug messages, too.
    """

    url: str
    devices: Sequence[str] = ("cpu",)
    threads: int | None = None
    token: Callable[[], str | None] | None = None
    name: str = field(default_factory=socket.gethostname)
    hottest_c: float | None = None
    lifetime_s: float = math.inf
    idle_exit_s: float = math.inf
    grace_s: float = 90.0
    build_on: str | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    log: Form = "text"
    verbose: bool = False


def main(options: Options) -> int:
    """Run a worker for each device until a signal stops it; return the exit status."""
    level = logging.DEBUG if options.verbose else logging.INFO
    configure(options.log, "%(asctime)s %(levelname)s %(message)s", level)
    for library in ("httpx", "httpcore"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if len(set(options.devices)) < len(options.devices):
        return _fail("--device: a device is named twice: name each once", 2)
    if len(options.devices) == 1:
        return serve(options, options.devices[0])
    return serve_each(options.devices, partial(serve, options))


def serve(options: Options, slot: str) -> int:
    """Run the worker of one device; return the exit status."""
    try:
        check_host()
        if slot.startswith("cuda"):
            assigned = assign(parse_cores("cpu"), 1)  # cores of the host that launch kernels
            device = describe_cuda(slot)
        else:
            check_executable()
            cores = parse_cores(slot)
            assigned = assign(cores, len(cores) if options.threads is None else options.threads)
            device = describe_device(assigned, len(assigned.timing))
            if (quota := cpu_quota()) < len(assigned.all):
                log.warning(
                    "%s has more than the time of %.3g cores that a quota leaves to this process, and %s: assign whole "
                    "cores instead (cpuset, taskset -c)", device.slot, quota, THROTTLES,
                )
        stop = threading.Event()
        client = Client(options.url, stop, options.token)
    except (DeviceError, ConnectionSettingError, ScratchError) as error:
        return _fail(str(error), 2)
    if not assigned.overlap:
        # The timing cores are reserved for kernels: this process and its children use others.
        os.sched_setaffinity(0, assigned.building)
    try:
        cluster = _cluster(options)
    except ValueError as error:
        return _fail(f"--build-on {error}", 2)
    try:
        kept = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "plevel/spool"
    except RuntimeError:  # of pathlib; containers may run as users that are not listed
        return _fail(f"user {os.getuid()} has no home folder: set HOME to one that it may write to", 1)
    try:
        spool = Spool(kept, client.url)
    except OSError as error:
        return _fail(
            f"the spool {kept} cannot be written ({error.strerror}): name another folder in XDG_STATE_HOME", 2
        )
    daemon = Daemon(
        client, spool, describe_worker(options.name, device), assigned, stop,
        hottest_c=options.hottest_c, lifetime_s=options.lifetime_s,
        idle_exit_s=options.idle_exit_s, grace_s=options.grace_s, cluster=cluster,
    )
    try:
        with ended_by_signals(daemon.drain, stop.set):
            daemon.run(_PATIENCE_S)
    except StoppedError:
        return 0
    except UntrustedError as error:
        return _fail(str(error), 1)
    except UnreachableError as error:
        return _fail(f"{error}: start it with `plevel serve`, or name another with --url", 1)
    except (DeviceError, SandboxError, ServiceError) as error:
        return _fail(str(error), 1)
    finally:
        spool.close()
        client.close()
    return 0


def _cluster(options: Options) -> Elsewhere | None:
    """The builders of `--build-on`; raise ValueError if they cannot be asked."""
    if options.build_on is None:
        if options.tls_ca or options.tls_cert or options.tls_key:
            raise ValueError("is missing: --tls-ca, --tls-cert and --tls-key are for a scheduler")
        return None
    if find_spec("distributed") is None:
        raise ValueError(f"{options.build_on}: Dask is not installed: pip install 'plevel[cluster]'")
    from workers.cluster.client import Cluster, secure

    security = secure(options.build_on, options.tls_ca, options.tls_cert, options.tls_key)
    return Cluster(options.build_on, security)


def describe_cuda(text: str) -> Device:
    """Describe the device `cuda:0`, in a process of its own, as the driver does not survive a fork.

    Raises:
        DeviceError: pycuda, a driver or the device is missing.
    """
    kind, _, slot = text.partition(":")
    if kind != "cuda" or not (slot or "0").isdecimal():
        raise DeviceError(f"device {text!r:.40}: unknown: write cuda:0")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "workers.cuda.driver", slot or "0"], capture_output=True, text=True, check=False
    )
    if done.returncode < 0:  # by the driver: a crash says nothing, or something else last
        raise DeviceError(
            f"{text}: the driver ended the process that asked it, by {signal.Signals(-done.returncode).name}: see what "
            "`nvidia-smi` says"
        )
    if done.returncode:
        raise DeviceError(done.stderr.strip().rpartition("\n")[2])
    return decode(done.stdout, Device)


def check_host() -> None:
    """Raise `DeviceError` if this is another system than Linux."""
    if not sys.platform.startswith("linux"):
        raise DeviceError(f"workers need Linux, this is {sys.platform}: use a Linux host")


def _fail(message: str, status: int) -> int:
    print(f"plevel worker: {' '.join(message.split())}", file=sys.stderr)  # a compiler's words have lines
    return status


if __name__ == "__main__":
    _parser = argparse.ArgumentParser(prog="python -m workers", description="Build and time jobs of a plevel service.")
    _parser.add_argument("url", help="the service, such as http://127.0.0.1:8765")
    _parser.add_argument("slot", help="cpu, cores of it (cpu:0-3), or cuda:0")
    _parser.add_argument("threads", type=int, nargs="?", help="of a kernel; default: all cores")
    _parser.add_argument("--verbose", action="store_true", help="log debug messages")
    _given = _parser.parse_args()
    sys.exit(main(Options(url=_given.url, devices=(_given.slot,), threads=_given.threads, verbose=_given.verbose)))
