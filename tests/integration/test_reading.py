"""Logs are read in processes of their own: the same records, and a service that goes on whatever is in them."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from service.errors import InvalidError, StoppedError
from service.formats import (
    FormatError,
    ImportedRecord,
    Reason,
    Rejected,
    Source,
    Task,
    native,
    read,
)
from service.formats.source import CHUNK
from service.records import reading, reading_child, reading_message
from service.records.reading import Readers, SilentError
from service.records.reading_message import Order
from strategy.record import Device, TimingPolicy, decode
from tests.integration.process import Service, Start
from tests.integration.scene import TARGET
from tests.integration.test_import import DATA, FILES, made
from tests.limit import HANG_S

LOG = (DATA / "autotvm_0_2.log").read_bytes()


def drained(readers: Readers, data: bytes, order: Order = Order()) -> list[Any]:  # noqa: B008
    return list(readers.read(io.BytesIO(data), order))


def here(data: bytes, name: str = "") -> list[Any]:
    return list(read(Source(io.BytesIO(data), name)))


def pid_of(readers: Readers) -> int:
    (child,) = readers._all
    return child._process.pid


def rich(count: int) -> bytes:
    """Lines that say all that there is to say, of more bytes than come in one part."""
    device = Device(identity="d", slot="s", model="m", target=TARGET, fingerprint={"cores": 2})
    rows = [
        made(
            i % 20, (1.0 + i, 2.0), measured_at=float(i), device=device, policy=TimingPolicy(),
            environment={"load": [i % 3]}, message="é", session=f"s{i}", run=i, worker="w", seed=7,
            code_digest="c", prepare_s=0.5, build_s=1.0, extra=b'{"a":1}',
        )
        for i in range(count)
    ]
    return b"".join(native.write(rows))


def test_the_same_items_as_in_this_process(readers: Readers) -> None:
    for name in FILES:
        data = (DATA / name).read_bytes()
        assert drained(readers, data, Order(name)) == here(data, name)
    long = rich(2000)
    assert len(long) > 3 * CHUNK
    assert drained(readers, long) == here(long)
    assert len(readers._all) == 1  # one process for all of them


def test_what_is_not_needed_is_passed_over(readers: Readers) -> None:
    import gzip

    broken = gzip.compress(LOG) + os.urandom(8 * CHUNK)
    for _ in range(2):
        found = drained(readers, broken)
        assert found[-1].reason is Reason.GZIP
        assert found[:-1] == here(LOG)
    with pytest.raises(FormatError, match="has no known format"):
        drained(readers, b"no log" * CHUNK)
    assert drained(readers, LOG) == here(LOG)
    assert len(readers._all) == 1


def test_numbers_begin_anew(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    """More distinct tasks than are kept: they are told again."""
    line = next(x for x in LOG.splitlines(keepends=True) if x.startswith(b'{"input": ["cuda'))
    data = b"".join(line.replace(b"v100", b"m%d" % i, 1) for i in range(300))
    out = io.BytesIO()
    monkeypatch.setattr(reading_child, "MAX_SHARED", 50)
    answers = reading_child.Answers(out)
    for item in here(data):
        answers.add(item)
    answers.flush(reading_message.End())
    shared: list[Any] = []
    found: list[ImportedRecord] = []
    out.seek(0)
    while len(found) < 300:
        for reply in reading._replies.decode(reading_child._read(out)):
            if isinstance(reply, reading_message.Shared):
                shared.append(decode(reply.text, Task))
            elif isinstance(reply, reading_message.Forget):
                shared.clear()
            elif isinstance(reply, reading_message.Row):
                found.append(reading._record_of(reply, shared))
    assert found == here(data)
    assert len(shared) < 60


def test_what_many_logs_share_is_told_once(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = [rich(3), rich(5), LOG, rich(4)]
    assert [drained(readers, log) for log in logs[:2]] == [here(log) for log in logs[:2]]
    (child,) = readers._all
    told = list(child._shared)
    together = readers.read_each([(log, Order()) for log in logs], HANG_S)
    assert together == [here(log) for log in logs]
    assert child._shared[: len(told)] == told
    assert child._shared.count(told[0]) == 1


def test_few_values_are_kept_for_the_next_log(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = reading_child.Answers(io.BytesIO())
    for item in here(rich(20)):
        answers.add(item)
    answers.end()
    assert len(answers._numbers) > 3
    monkeypatch.setattr(reading_child, "KEPT", 3)
    answers.end()
    assert not answers._numbers
    answers.add(here(rich(1))[0])
    monkeypatch.setattr(reading_child, "KEPT_BYTES", 10)
    answers.end()
    assert not answers._numbers
    assert [type(a) for a in answers._held].count(reading_message.Forget) == 2

    decoded = native.Decoded()
    decoded.put((Task, b"abc"), 1)
    decoded.trim()
    assert decoded.get((Task, b"abc")) == 1
    monkeypatch.setattr(native, "KEPT_BYTES", 2)
    decoded.trim()
    assert decoded.get((Task, b"abc")) is None


@pytest.mark.full
def test_what_is_not_kept_for_the_next_log_leaves_the_service_at_once(readers: Readers) -> None:
    """Not when the next log comes, which may be never: a log can share 20,000 values of megabytes."""
    line = next(x for x in LOG.splitlines(keepends=True) if x.startswith(b'{"input": ["cuda'))
    data = b"".join(line.replace(b"v100", b"m%d" % i, 1) for i in range(reading_child.KEPT + 1))
    for read_by in (lambda: drained(readers, data), lambda: readers.read_each([(data, Order())], HANG_S)):
        assert read_by()
        (child,) = readers._all
        assert not child._shared


def test_a_process_that_is_silent_costs_its_import_only(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    drained(readers, LOG)
    monkeypatch.setattr(reading, "STALL_S", 0.2)
    os.kill(pid_of(readers), signal.SIGSTOP)
    with pytest.raises(InvalidError, match=r"silent for 0\.2 s"):
        drained(readers, rich(2000))
    monkeypatch.undo()
    assert drained(readers, LOG) == here(LOG)


def test_a_process_that_dies_costs_its_import_only(readers: Readers) -> None:
    items = readers.read(io.BytesIO(rich(4000)), Order())
    next(items)
    os.kill(pid_of(readers), signal.SIGKILL)
    with pytest.raises(InvalidError, match="cannot be read"):
        list(items)
    assert drained(readers, LOG) == here(LOG)


def test_small_logs_are_read_ahead_and_each_for_itself(readers: Readers) -> None:
    logs = [(LOG, Order()), (b"no log", Order()), (rich(50), Order())]
    first, second, third = readers.read_each(logs, HANG_S)
    assert (first, third) == (here(LOG), here(rich(50)))
    assert isinstance(second, FormatError)
    stopped = pid_of(readers)
    os.kill(stopped, signal.SIGSTOP)
    hung, *others = readers.read_each(logs[::2] * 2, 3.0)
    assert isinstance(hung, SilentError)
    assert others == [third, first, third]
    assert pid_of(readers) != stopped


FATAL = """
import os, sys
from service.records import reading_child

read = reading_child.read

def fall(source, *rest):
    if b"fatal" in source.head:
        os._exit(1)
    return read(source, *rest)

reading_child.read = fall
reading_child._write(sys.stdout.buffer, b"")
reading_child.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def test_a_log_that_ends_its_process_costs_itself_alone_though_the_pipe_does_not_take_them_all(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: object, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", FATAL], **options)

    monkeypatch.setattr(reading, "subprocess", SimpleNamespace(Popen=start, PIPE=subprocess.PIPE))
    long = b"no log" * (CHUNK // 7)
    logs = [LOG, long, b"fatal", *[long] * 8, LOG]
    assert sum(map(len, logs[3:])) > reading._PIPE
    first, second, third, *others, last = readers.read_each([(data, Order()) for data in logs], HANG_S)
    assert first == last == here(LOG)
    assert isinstance(third, InvalidError)
    assert {type(found) for found in (second, *others)} == {FormatError}


def test_a_process_whose_answer_is_none_is_ended(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    drained(readers, LOG)
    monkeypatch.setattr(reading, "_record_of", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        readers.read_each([(LOG, Order())], HANG_S)
    assert not readers._all


def test_whoever_reads_is_told_to_stop(readers: Readers) -> None:
    items = readers.read(io.BytesIO(rich(4000)), Order())
    next(items)
    readers.close()
    with pytest.raises(StoppedError, match="import again"):
        list(items)
    with pytest.raises(StoppedError):
        drained(readers, LOG)


def test_an_import_that_is_given_up_ends_its_process(readers: Readers) -> None:
    with contextlib.closing(readers.read(io.BytesIO(rich(4000)), Order())) as items:
        next(items)
    assert not readers._all


SLOW = """
import sys
from service.records import reading_child
from service.formats import autotvm

reading_child.LINE_S = 0.05
check = autotvm.check

def slow(text):
    while b"slow" in text:
        pass
    check(text)

autotvm.check = slow
reading_child.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


def test_a_line_that_takes_too_long_is_put_aside() -> None:
    lines = LOG.splitlines(keepends=True)[:3]
    lines.insert(1, b'{"input":"slow","result":0}\n')
    asked = io.BytesIO()
    begin = reading_message.Begin(msgspec.json.encode(Order()), b"".join(lines), True)
    reading_child._write(asked, msgspec.msgpack.encode(begin))
    done = subprocess.run(
        [sys.executable, "-c", SLOW], input=asked.getvalue(), stdout=subprocess.PIPE, check=False
    )
    replies = reading._replies.decode(reading_child._read(io.BytesIO(done.stdout)))
    aside = [r for r in replies if isinstance(r, reading_message.Aside)]
    assert [(a.item.line, a.item.reason) for a in aside] == [(2, Reason.SLOW)]
    rows = [r for r in replies if isinstance(r, reading_message.Row)]
    assert len(rows) == len([i for i in here(b"".join(lines)) if isinstance(i, ImportedRecord)])


def test_lines_have_the_length_that_a_record_needs() -> None:
    line = next(native.write([made(1)])) + b""
    long = b'{"kind":"record","extra":"' + b"a" * native.MAX_RECORD + b'"}\n'
    found = here(line + long + b"".join(native.write([made(1)])))
    assert [(f.line, f.reason) for f in found if isinstance(f, Rejected)] == [(2, Reason.TOO_LONG)]
    found = here(b'{"input":1,"result":2}\n' + b'{"a":' + b" " * (1 << 20) + b"}\n")
    assert [f.reason for f in found] == [Reason.FIELD, Reason.TOO_LONG]


def readers_of(pid: int) -> list[int]:
    """The processes in which a service reads logs."""
    children = [
        child
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    names = {int(c): Path(f"/proc/{c}/cmdline").read_bytes() for c in children}
    return [c for c, name in names.items() if b"service.records.reading_child" in name]


def test_the_service_goes_on_and_stops_while_an_import_is_read(start: Start, sqlite_copy: str) -> None:
    service: Service = start(sqlite_copy)
    address = urlsplit(service.url)
    with socket.create_connection((address.hostname, address.port)) as upload:
        head = f"POST /v1/records:import HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-length: 900000\r\n\r\n"
        upload.sendall(head.encode() + b'{"kind":"plevel-records","version":1}\n' + b"[]" * CHUNK)
        while not (readers := readers_of(service.process.pid)):
            assert service.raw("GET", "/v1/records").is_success
        for pid in readers:
            os.kill(pid, signal.SIGSTOP)
        upload.sendall(b'\\"' * 150_000)
        assert service.raw("GET", "/v1/records").json()["records"] == []
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(HANG_S) == 0
        assert not [pid for pid in readers if Path(f"/proc/{pid}/status").exists()]
