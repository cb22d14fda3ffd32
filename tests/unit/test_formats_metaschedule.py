"""MetaSchedule's pair of files: kept whole, joined by structural hash."""

from __future__ import annotations

import hashlib
import io
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.formats import (
    Attachment,
    ImportedRecord,
    Reason,
    Rejected,
    Source,
    metaschedule,
    native,
)
from service.formats.admission import admitted
from strategy.record import ErrorKind

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
WORKLOADS = (SAMPLES / "database_workload.json").read_bytes()
RECORDS = (SAMPLES / "database_tuning_record.json").read_bytes()
LINES = RECORDS.splitlines(keepends=True)
HASH, MODULE = json.loads(WORKLOADS)


def read(data: bytes) -> list[Any]:
    return list(metaschedule.read(Source(io.BytesIO(data))))


def written(items: list[Any]) -> tuple[bytes, bytes]:
    files = {"workload": b"", "tuning_record": b""}
    for which, line in metaschedule.write(i for i in items if not isinstance(i, Rejected)):
        files[which] += line
    return files["workload"], files["tuning_record"]


def test_the_pair_comes_back_byte_for_byte() -> None:
    items = read(WORKLOADS + RECORDS)
    assert [type(i) for i in items] == [Attachment] + [ImportedRecord] * len(LINES)
    assert written(items) == (WORKLOADS, RECORDS)
    ours = b"".join(native.write(items))
    back = list(native.read(Source(io.BytesIO(ours))))
    assert back == items
    assert written(back) == (WORKLOADS, RECORDS)


def test_a_file_of_an_earlier_release_does_not_lend_its_module_to_the_next() -> None:
    """Its records have only the structural hash, of a module that precedes them."""
    items = read(WORKLOADS + LINES[0])
    header, _, record = b"".join(native.write(items)).splitlines(keepends=True)
    key = hashlib.sha256(WORKLOADS.rstrip(b"\n")).hexdigest()
    record = record.replace(b',"module":"%s"' % key.encode(), b"")
    module = native._encode(Attachment(what="module", key=HASH, text=json.dumps(MODULE))) + b"\n"
    for lines in ([header, record], [header, module, record], [header, record]):
        *rest, last = native.read(Source(io.BytesIO(b"".join(lines))))
        attrs = last.task.workload.attrs
        assert (attrs["structural_hash"], attrs.get("module")) == (HASH, rest[0].key if rest else None)


def test_what_a_record_says() -> None:
    module, first, *_, failed = read(WORKLOADS + RECORDS)
    key = hashlib.sha256(WORKLOADS.rstrip(b"\n")).hexdigest()
    assert (module.what, module.key, json.loads(module.text)) == ("module", key, [HASH, MODULE])
    assert first.task.workload.attrs == {"structural_hash": HASH, "module": key}
    assert [i.type for i in first.task.workload.inputs] == ["float32[512,512]"] * 3
    assert first.task.target.key == "llvm/znver4/threads=2"
    _, (trace, run_secs, _, _) = json.loads(LINES[0])
    assert list(first.samples_s) == run_secs
    assert first.config["decision_4"] == tuple(trace[1][0][1])
    # 1e10 seconds is how a candidate that did not run is stored.
    assert failed.error is ErrorKind.RUNTIME
    assert failed.samples_s == ()


def test_several_pairs_may_follow_each_other() -> None:
    other = WORKLOADS.replace(HASH.encode(), b"-42")
    items = read(WORKLOADS + LINES[0] + other + LINES[0])
    hashes = [
        i.task.workload.attrs["structural_hash"] for i in items if isinstance(i, ImportedRecord)
    ]
    assert hashes == [HASH, "-42"]
    assert written(items)[1] == LINES[0] + LINES[0].replace(b"[0,", b"[1,", 1)


def test_two_modules_under_one_hash_stay_apart() -> None:
    other = json.dumps([HASH, "dGhlaXJz"], separators=(",", ":")).encode() + b"\n"
    items = read(WORKLOADS + other + LINES[0] + b"[1," + LINES[0][3:])
    first, second = (i for i in items if isinstance(i, ImportedRecord))
    assert first.task.key != second.task.key
    assert first.identity != second.identity
    assert written(items) == (WORKLOADS + other, LINES[0] + b"[1," + LINES[0][3:])


def test_a_module_under_a_key_that_is_not_its_own_is_put_aside() -> None:
    own, *_ = read(WORKLOADS)
    line = "[1]"
    for bad in (
        msgspec.structs.replace(own, key="0" * 64),
        msgspec.structs.replace(own, key=HASH),
        msgspec.structs.replace(own, text=own.text.replace(MODULE, "dGhlaXJz")),
        Attachment(what="module", key=metaschedule.content_key(line), text=line),
    ):
        (aside,) = admitted([bad])
        assert isinstance(aside, Rejected)
    assert list(admitted([own])) == [own]


def test_a_file_of_an_earlier_release_gets_the_keys_of_today() -> None:
    """It knew a module by its structural hash, and two under one hash were one."""

    def earlier(module: str) -> bytes:
        line = json.dumps([HASH, module], separators=(",", ":")).encode() + b"\n"
        made = read(line + RECORDS)
        text = b"".join(native.write(made[1:])).replace(b',"module":"' + made[0].key.encode() + b'"', b"")
        head, rest = text.split(b"\n", 1)
        assert b'"module"' not in rest
        given = {"kind": "attachment", "what": "module", "key": HASH, "text": module}
        return head + b"\n" + json.dumps(given, separators=(",", ":")).encode() + b"\n" + rest

    other = json.dumps([HASH, "dGhlaXJz"], separators=(",", ":")).encode() + b"\n"
    given = earlier(MODULE) + earlier("dGhlaXJz")
    expected = [*read(WORKLOADS + RECORDS), *read(other + RECORDS)]
    assert list(native.read(Source(io.BytesIO(given)))) == expected


def test_a_bad_workload_keeps_its_place() -> None:
    items = read(b'["12", "not base64!"]\n' + WORKLOADS + LINES[0] + b"[1," + LINES[0][3:])
    assert [getattr(i, "reason", None) for i in items] == [
        Reason.WORKLOAD,
        None,
        Reason.WORKLOAD,
        None,
    ]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"[0,[[[],[]],[1.0],null,null]]\n", Reason.TARGET),
        (b'[0,[[[],[]],[1.0],{"kind":"a/b"},null]]\n', Reason.TARGET),
        (b'[0,[[[],[]],[-1.0],{"kind":"llvm"},null]]\n', Reason.COST),
        (b'[0,[[[],[]],[NaN],{"kind":"llvm"},null]]\n', Reason.COST),
        (b'[0,[[[],[]],[1.0],{"kind":"llvm"},[["TENSOR","float7",[1]]]]]\n', Reason.TYPE),
        (b'[0,[[[],[]],[1.0],{"kind":"llvm"},[["SCALAR"]]]]\n', Reason.TYPE),
        (b'[0,[[[],[[1,2],[1,3]]],[1.0],{"kind":"llvm"},null]]\n', Reason.DUPLICATE),
        (b'[0,[[[],[]],[1.0],{"kind":"llvm","kind":"cuda"},null]]\n', Reason.DUPLICATE),
        (b"[0,[[[],[]],[1.0]]]\n", Reason.FIELD),
        (b"[9," + LINES[0][3:], Reason.WORKLOAD),
        (b"[-1," + LINES[0][3:], Reason.FIELD),
        (b"{}\n", Reason.FIELD),
        (b'["12"]\n', Reason.FIELD),
        (b'["twelve",""]\n', Reason.WORKLOAD),
        (LINES[0][:300] + b"\n", Reason.JSON),
        (b"[" * 5000 + b"\n", Reason.DEPTH),
    ],
)
def test_bad_lines_are_put_aside_alone(line: bytes, reason: Reason) -> None:
    workload = line.startswith(b'["')
    items = read((line + WORKLOADS + LINES[0]) if workload else (WORKLOADS + line + LINES[0]))
    aside = [i for i in items if isinstance(i, Rejected)]
    expected = [(1 if workload else 2, reason)]
    if workload:  # the record is of workload 0, which is the bad one
        expected.append((3, Reason.WORKLOAD))
    assert [(i.line, i.reason) for i in aside] == expected
    if not workload:
        assert written(items) == (WORKLOADS, LINES[0])


def test_records_alone_say_what_is_missing() -> None:
    items = read(RECORDS)
    assert {i.reason for i in items} == {Reason.WORKLOAD}
    assert "database_workload.json" in items[0].detail


def test_what_is_none_of_metaschedules_is_reported() -> None:
    items = read(WORKLOADS + RECORDS)[1:]
    assert [i.reason for i in metaschedule.write(items)] == [Reason.FORMAT] * len(items)


@given(st.binary(max_size=500))
def test_no_bytes_raise(data: bytes) -> None:
    items = read(WORKLOADS + data + b"\n" + LINES[0])
    assert items


@given(st.integers(0, 2**32))
def test_damage_in_one_record_leaves_its_neighbours(seed: int) -> None:
    rng = random.Random(seed)
    text = bytearray(LINES[1][:-1])
    for _ in range(rng.randint(1, 20)):
        at = rng.randrange(2, len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice(
            [b"", b'"', b"{", b"]", b"\\", b"\xff", b"NaN", b"9" * 30, b"-", rng.randbytes(3)]
        )
    damaged = bytes(text).replace(b"\n", b"") + b"\n"
    items = read(WORKLOADS + LINES[0] + damaged + LINES[2])
    assert [items[1], items[-1]] == read(WORKLOADS + LINES[0] + LINES[2])[1:]
    good = [i for i in items if not isinstance(i, Rejected)]
    assert list(native.read(Source(io.BytesIO(b"".join(native.write(good)))))) == good
