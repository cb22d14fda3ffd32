"""`python -m workers --url URL`: a worker on this host."""

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
from collections.abc import Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import get_args

from strategy.compile.export import missing_compiler
from strategy.log import Form, configure
from strategy.record import Device, decode
from workers.builder_pool import Elsewhere
from workers.client import Client, ServiceError, StoppedError, UnreachableError
from workers.connection import ConnectionSettingError
from workers.cpu import DeviceError, assign, describe_device, parse_cores
from workers.daemon import Daemon, describe_worker
from workers.sandbox import SandboxError
from workers.several import serve_each
from workers.spool import Spool

_PATIENCE_S = 10.0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "plevel worker", description="Build and time jobs of a plevel service."
    )
    parser.add_argument("--url", required=True, help="the service, such as http://127.0.0.1:8765")
    parser.add_argument(
        "--threads", type=int, help="threads of a kernel, a part of the target; default: all cores"
    )
    parser.add_argument(
        "--device", action="append", dest="devices",
        help="cpu, cores of it (cpu:0-3), or cuda:0; repeatable; default: cpu",
    )  # fmt: skip
    parser.add_argument(
        "--token-file", type=Path, default=os.environ.get("PLEVEL_TOKEN_FILE") or None,
        help="a file with the service's token; default: PLEVEL_TOKEN_FILE, else the token is in PLEVEL_TOKEN",
    )  # fmt: skip
    parser.add_argument("--name", default=socket.gethostname(), help="shown in lists of workers")
    parser.add_argument(
        "--spool", type=Path, default=_state_directory() / "spool",
        help="the folder for unacknowledged results; default: %(default)s",
    )  # fmt: skip
    parser.add_argument(
        "--max-temperature", type=float, metavar="C", help="wait while a sensor is hotter, in °C"
    )
    parser.add_argument(
        "--lifetime", type=float, default=math.inf, metavar="S",
        help="end after so many seconds; no job is leased that takes longer than what is left",
    )  # fmt: skip
    parser.add_argument(
        "--idle-exit", type=float, default=math.inf, metavar="S", help="end after so many seconds without a job"
    )
    parser.add_argument(
        "--grace", type=float, default=90.0, metavar="S",
        help="seconds to finish what is being timed after SIGTERM; default: %(default)g",
    )  # fmt: skip
    parser.add_argument(
        "--build-on", metavar="ADDRESS", help="a Dask scheduler whose workers build, too, such as tls://host:8786"
    )
    for name, what in (("ca", "authority"), ("cert", "certificate"), ("key", "key")):
        parser.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help=f"the {what} for that, in PEM form")
    parser.add_argument("--log", choices=get_args(Form), default="text", help="json has the ids of runs and jobs")
    parser.add_argument("--verbose", action="store_true", help="log debug messages")
    return parser.parse_args(arguments)


def _state_directory() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "plevel"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker for each device until a signal stops it; return the exit status."""
    options = parse(arguments)
    level = logging.DEBUG if options.verbose else logging.INFO
    configure(options.log, "%(asctime)s %(levelname)s %(message)s", level)
    for library in ("httpx", "httpcore"):
        logging.getLogger(library).setLevel(logging.WARNING)
    if not options.url.startswith(("http://", "https://")):
        return _fail(f"--url {options.url}: not a URL: write it as http://host:port", 2)
    devices: list[str] = options.devices or ["cpu"]
    if len(set(devices)) < len(devices):
        return _fail("--device: a device is named twice: name each once", 2)
    if len(devices) == 1:
        return serve(options, devices[0])
    return serve_each(devices, partial(serve, options))


def serve(options: argparse.Namespace, slot: str) -> int:
    """Run the worker of one device; return the exit status."""
    try:
        check_host()
        if slot.startswith("cuda"):
            assigned = assign(parse_cores("cpu"), 1)  # cores of the host that launch kernels
            device = describe_cuda(slot)
        else:
            cores = parse_cores(slot)
            assigned = assign(cores, len(cores) if options.threads is None else options.threads)
            device = describe_device(assigned, len(assigned.timing))
    except DeviceError as error:
        return _fail(str(error), 2)
    if not assigned.overlap:
        # The timing cores are reserved for kernels: this process and its children use others.
        os.sched_setaffinity(0, assigned.building)
    try:
        token = (options.token_file.read_text() if options.token_file else os.environ.get("PLEVEL_TOKEN", "")).strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a text file"
        return _fail(f"--token-file {options.token_file}: {why}", 2)
    if not token.isascii() or not token.isprintable() or len(token.split()) > 1:  # errors of HTTP would show it
        return _fail(f"{'--token-file' if options.token_file else 'PLEVEL_TOKEN'}: no token: give one, on one line", 2)
    try:
        cluster = _cluster(options)
    except ValueError as error:
        return _fail(f"--build-on {error}", 2)
    stop = threading.Event()
    try:
        client = Client(options.url, stop, token or None)
    except ConnectionSettingError as error:
        return _fail(str(error), 2)
    try:
        spool = Spool(options.spool, client.url)
    except OSError as error:
        return _fail(
            f"the spool {options.spool} cannot be written ({error.strerror}): name another folder in XDG_STATE_HOME", 2
        )
    daemon = Daemon(
        client, spool, describe_worker(options.name, device, _version()), assigned, stop,
        hottest_c=options.max_temperature, lifetime_s=options.lifetime,
        idle_exit_s=options.idle_exit, grace_s=options.grace, cluster=cluster,
    )  # fmt: skip
    draining = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        if draining.is_set():
            stop.set()
        draining.set()
        daemon.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        daemon.run(_PATIENCE_S)
    except StoppedError:
        return 0
    except UnreachableError as error:
        return _fail(f"{error}: start it with `plevel serve`, or name another with --url", 1)
    except (DeviceError, SandboxError, ServiceError) as error:
        return _fail(str(error), 1)
    finally:
        spool.close()
        client.close()
    return 0


def _cluster(options: argparse.Namespace) -> Elsewhere | None:
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
    if done.returncode:
        raise DeviceError(done.stderr.strip().rpartition("\n")[2])
    return decode(done.stdout, Device)


def check_host() -> None:
    """Raise `DeviceError` if nothing can be built here."""
    if not sys.platform.startswith("linux"):
        raise DeviceError(f"workers need Linux, this is {sys.platform}: use a Linux host")
    if find_spec("tvm") is None:
        raise DeviceError("TVM is not installed: pip install 'plevel[worker]'")
    if missing := missing_compiler():
        raise DeviceError(missing)


def _version() -> str:
    try:
        return version("plevel")
    except PackageNotFoundError:
        return ""


def _fail(message: str, status: int) -> int:
    print(f"plevel worker: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
