"""plevel's own NDJSON: complete, versioned, and every line by itself."""

from __future__ import annotations

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
    Format,
    ImportedRecord,
    Reason,
    Rejected,
    Source,
    Summary,
    Task,
    autotvm,
    detect,
    native,
)
from service.formats.entry import config_key
from strategy.condition import SpecializedCondition
from strategy.record import CONFIRM_POLICY, Device, ErrorKind, Phase
from strategy.space import Config, ConfigSpace, Knob, SpaceError
from strategy.target import Target
from strategy.workload import Input, Workload

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
TARGET = Target.parse({"kind": "llvm", "mcpu": "znver4", "num-cores": 2, "libs": ["cblas"]})
SPACE = ConfigSpace([Knob("tile", [(4, 8), (8, 4)]), Knob("unroll", [True, False])])
TASK = Task(
    workload=Workload("dense", (Input("data", "float32[4,8]"), Input("weight", "float32[2,8]", True)), {"units": 2}),
    target=TARGET, implementation="dense_pack.cpu", version=f"2.{SPACE.digest}", space=SPACE.digest,
    plevel=12, library="cblas", condition=SpecializedCondition.from_json(["and", [">", "data.shape[0]", 1]]),
)
FULL = ImportedRecord(
    source="plevel", task=TASK, config_key=config_key({"tile": (4, 8), "unroll": True}),
    samples_s=(1e-3, 1.25e-3), measured_at=1.7e9 + 0.25, device_model="EPYC",
    device=Device(identity="m/cpu:0-1", slot="cpu:0-1", model="EPYC", target=TARGET,
                  fingerprint={"cores": 2, "features": ["avx2"]}),
    phase=Phase.CONFIRM, session="s1", worker="w1", run=4, seed=7, policy=CONFIRM_POLICY,
    environment={"llvm": "20.1", "governor": None}, prepare_s=0.5, build_s=0.1, check_s=0.2,
    run_s=0.3, code_digest="abc", extra=b'{"b":1, "a":[2]}',
)
FAILED = ImportedRecord(
    source="plevel", task=TASK, config_key=config_key({"tile": (8, 4), "unroll": False}),
    error=ErrorKind.WRONG_ANSWER, message="off by 3 \N{SNOWMAN}", measured_at=1.7e9,
)
ATTACHMENT = Attachment(what="space", key=SPACE.digest, text=json.dumps(SPACE.to_json()))
ITEMS = [ATTACHMENT, FULL, FAILED]
DATA = b"".join(native.write(ITEMS))
HEADER, SPACE_LINE, FULL_LINE, FAILED_LINE = DATA.splitlines(keepends=True)


def read(data: bytes) -> list[Any]:
    return list(native.read(Source(io.BytesIO(data))))


def test_everything_comes_back() -> None:
    assert read(DATA) == ITEMS
    assert b"".join(native.write(read(DATA))) == DATA
    assert json.loads(HEADER) == {"kind": "plevel-records", "version": 1}


def test_files_may_be_joined_and_lines_may_stand_alone() -> None:
    assert read(DATA + DATA) == ITEMS + ITEMS
    assert read(FULL_LINE) == [FULL]
    assert read(FULL_LINE.rstrip(b"\n")) == [FULL]
    assert read(b"\n \n" + FULL_LINE.replace(b"\n", b"\r\n")) == [FULL]


def test_any_json_writer_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for sort_keys in (False, True):
        lines = [json.dumps(json.loads(line), sort_keys=sort_keys).encode() for line in DATA.splitlines()]
        attachment, full, failed = read(b"\n".join(lines))
        assert [attachment, msgspec.structs.replace(full, extra=FULL.extra), failed] == ITEMS
        assert {detect(line) for line in lines} == {Format.PLEVEL}
    monkeypatch.setattr(native, "MAX_RECORD", len(SPACE_LINE) - 10)
    assert read(json.dumps(json.loads(SPACE_LINE)).encode()) == ITEMS[:1]


def test_records_of_one_task_share_it() -> None:
    full, failed = read(DATA)[1:]
    assert full.task is failed.task


def edited(line: bytes, **parts: Any) -> bytes:
    return json.dumps({**json.loads(line), **parts}).encode() + b"\n"


def task_with(**parts: Any) -> dict[str, Any]:
    return {**json.loads(FULL_LINE)["task"], **parts}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{\n", Reason.JSON),
        (b"\x80\n", Reason.JSON),
        (edited(FULL_LINE, kind="other"), Reason.FIELD),
        (edited(FULL_LINE, unknown=1), Reason.FIELD),
        (edited(FULL_LINE, samples_s=[-1.0]), Reason.COST),
        (edited(FULL_LINE, samples_s=[1e9]), Reason.COST),
        (edited(FULL_LINE, samples_s=[]), Reason.FIELD),
        (edited(FULL_LINE, error="runtime"), Reason.FIELD),
        (edited(FAILED_LINE, error="tired"), Reason.FIELD),
        (edited(FULL_LINE, config={"a": [1, "b"]}), Reason.FIELD),
        (edited(FULL_LINE, config={"a": 2**70}), Reason.FIELD),
        (edited(FULL_LINE, config={"a": "x" * 201}), Reason.FIELD),
        (edited(FULL_LINE, config={"x" * 10**6: 1}), Reason.FIELD),
        (edited(FULL_LINE, task=task_with(target="abacus")), Reason.TARGET),
        (edited(FULL_LINE, task=task_with(workload={"op": "a b", "inputs": []})), Reason.WORKLOAD),
        (edited(FULL_LINE, environment={"a": json.loads("[" * 90 + "]" * 90)}), Reason.DEPTH),
        (edited(FULL_LINE, session="\ud800"), Reason.JSON),
        (edited(FULL_LINE, session="\0"), Reason.JSON),
        (FULL_LINE.replace(b'"session"', b'"session":"s0","session"'), Reason.DUPLICATE),
        (FULL_LINE.replace(b'"op"', b'"op":"conv","op"'), Reason.DUPLICATE),
        (FULL_LINE.replace(b'{"b":1', b'{"b":\xff'), Reason.JSON),
        (edited(SPACE_LINE, text='{"knobs":[{"name":"a","values":[]}]}'), Reason.SPACE),
        (edited(SPACE_LINE, text="{}"), Reason.SPACE),
        (edited(SPACE_LINE, what="weights"), Reason.FIELD),
        (edited(FULL_LINE, source="triton", extra={"a": "X"}).replace(b'"X"', b"1e400"), Reason.FIELD),
    ],
)
def test_bad_lines_are_put_aside_alone(line: bytes, reason: Reason) -> None:
    items = read(HEADER + FAILED_LINE + line + FULL_LINE)
    assert [i for i in items if not isinstance(i, Rejected)] == [FAILED, FULL]
    aside = [i for i in items if isinstance(i, Rejected)]
    assert [(i.line, i.reason, i.text) for i in aside] == [(3, reason, line.rstrip(b"\n"))]


def test_the_last_line_may_be_cut_off() -> None:
    items = read(DATA[:-30])
    assert items[:2] == ITEMS[:2]
    assert [(i.line, i.reason) for i in items[2:]] == [(4, Reason.TRUNCATED)]


def test_what_a_later_release_wrote_is_put_aside_and_says_what_to_do() -> None:
    later = HEADER.replace(b"1", b"2")
    items = read(later + FULL_LINE + DATA)
    assert [i.reason for i in items[:2]] == [Reason.VERSION] * 2
    assert "update plevel" in items[0].detail
    assert items[2:] == ITEMS


def test_a_lost_attachment_loses_no_record() -> None:
    items = read(HEADER + b"{\n" + FULL_LINE)
    assert items[1] == FULL


def test_summary_counts_by_reason() -> None:
    summary = Summary()
    summary.add(new=3, known=2)
    for item in read(b"{\n" + edited(FULL_LINE, samples_s=[-1.0]) + b"}\n"):
        summary.put_aside(item)
    assert summary.to_json() == {
        "read": 8, "new": 3, "known": 2, "rejected": 3, "reasons": {"cost": 1, "json": 2},
    }


def test_identity_is_what_happened_and_nothing_else() -> None:
    import msgspec

    same = msgspec.structs.replace(FULL, extra=b"", message="another", run=5, worker="w2")
    assert same.identity == FULL.identity
    others = [
        msgspec.structs.replace(FULL, **change)
        for change in (
            {"samples_s": (1e-3,)}, {"measured_at": 1.0}, {"session": "s2"}, {"phase": Phase.SEARCH},
            {"config_key": "{}"}, {"device": None}, {"task": msgspec.structs.replace(TASK, version="3")},
        )
    ]
    assert len({r.identity for r in (FULL, *others)}) == 1 + len(others)


@given(
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(
            st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=8),
            st.floats(allow_nan=False, allow_infinity=False),
            st.lists(st.integers(-5, 2**62), max_size=3).map(tuple),
        ),
        max_size=5,
    )
)
def test_a_key_made_quickly_is_the_configs(values: dict[str, Any]) -> None:
    try:
        key = Config(values).key
        key.encode()
    except (SpaceError, UnicodeEncodeError):
        return
    assert config_key(values) == key


@given(st.binary(max_size=500))
def test_no_bytes_raise(data: bytes) -> None:
    # Not as the first bytes: there, two of them would say that the file is packed.
    assert read(b" " + data + b"\n" + DATA)[-3:] == ITEMS


@given(st.integers(0, 2**32))
def test_damage_in_one_line_leaves_its_neighbours(seed: int) -> None:
    rng = random.Random(seed)
    lines = [FAILED_LINE, *native.write(autotvm.read(
        Source(io.BytesIO((SAMPLES / "autotvm_0_1.log").read_bytes()))))]
    bad = rng.randrange(len(lines))
    text = bytearray(FULL_LINE[:-1])
    for _ in range(rng.randint(1, 20)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice(
            [b"", b'"', b"{", b"]", b"\\", b"\xff", b"NaN", b"9" * 30, b"-", rng.randbytes(3)]
        )
    damaged = bytes(text).replace(b"\n", b"") + b"\n"
    items = read(b"".join([*lines[:bad], damaged, *lines[bad:]]))
    kept = [i for i in items if i in read(b"".join(lines))]
    assert kept == read(b"".join(lines))
