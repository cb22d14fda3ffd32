"""Bytes in: packed or not, in lines of bounded size, and which format they are of."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.formats import (
    Attachment,
    Format,
    FormatError,
    ImportedRecord,
    Joined,
    Reason,
    Rejected,
    Source,
    autotvm,
    detect,
    grouped,
    native,
    read,
)
from service.formats.source import CHUNK, check, load

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
UNNAMED = json.dumps({"results": [{"configuration": {"B": 1}, "times": {"runtimes": [1.0]}, "invalidity": "correct"}],
                      "metadata": {"timeunit": "miliseconds"}}).encode()
LOG = (SAMPLES / "autotvm_0_2.log").read_bytes()


class Stream(io.RawIOBase):
    """Endless or long content, made as it is read."""

    def __init__(self, block: bytes, count: int) -> None:
        self.block = block
        self.left = count

    def read(self, size: int = -1) -> bytes:
        self.left -= 1
        return self.block if self.left >= 0 else b""


def lines(data: bytes, limit: int = 100) -> list[Any]:
    return list(Source(io.BytesIO(data)).lines(limit))


def test_lines_are_numbered_and_keep_what_is_in_them() -> None:
    assert lines(b"a\n\nb\r\nc") == [(1, b"a"), (2, b""), (3, b"b\r"), (4, b"c")]
    assert lines(b"") == []
    assert lines(b"\xef\xbb\xbfa\n") == [(1, b"a")]


@given(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b"")), max_size=20))
def test_lines_are_the_same_however_the_stream_comes(parts: list[bytes]) -> None:
    data = b"\n".join(parts)

    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(3)

    if data[:2] != b"\x1f\x8b":
        assert list(Source(Dripping(data)).lines(40)) == lines(data, 40)


def test_a_long_line_is_put_aside_and_the_next_one_is_read() -> None:
    for size in (101, 5 * CHUNK, CHUNK - 2):
        found = lines(b"a\n" + b"x" * size + b"\nb\n")
        assert (found[0], found[2]) == ((1, b"a"), (3, b"b"))
        aside = found[1]
        assert (aside.line, aside.reason, len(aside.text) <= 2 * CHUNK) == (
            2,
            Reason.TOO_LONG,
            True,
        )
    found = lines(b"x" * (3 * CHUNK))
    assert [i.reason for i in found] == [Reason.TOO_LONG]


def test_memory_is_bounded_whatever_the_length() -> None:
    tracemalloc.start()
    long_line = Source(Stream(b"x" * CHUNK, 400))
    assert [i.reason for i in long_line.lines(1 << 20)] == [Reason.TOO_LONG]
    many = Source(Stream(LOG * 20, 20))
    count = sum(isinstance(i, ImportedRecord) for i in autotvm.read(many))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert count == 20 * 20 * sum(line.startswith(b"{") for line in LOG.splitlines())
    assert peak < 20 * CHUNK


def test_gzip_is_seen_whatever_the_name() -> None:
    plain = list(read(Source(io.BytesIO(LOG))))
    assert list(read(Source(io.BytesIO(gzip.compress(LOG))))) == plain
    # Several members, as `cat a.gz b.gz` gives, and padding.
    half = LOG.index(b"\n", len(LOG) // 2) + 1
    members = gzip.compress(LOG[:half]) + gzip.compress(LOG[half:]) + b"\0" * 100
    assert list(read(Source(io.BytesIO(members)))) == plain


def test_gzip_that_ends_early_or_is_broken_gives_what_came_before() -> None:
    packed = gzip.compress(LOG * 50)
    whole = list(read(Source(io.BytesIO(packed))))
    early = list(read(Source(io.BytesIO(packed[: len(packed) // 2]))))
    assert early[-1].reason is Reason.TRUNCATED
    good = [i for i in early if isinstance(i, ImportedRecord)]
    assert good == whole[: len(good)]
    assert len(good) > len(whole) // 4
    broken = list(read(Source(io.BytesIO(packed[:-8] + b"\0" * 8))))
    assert broken[-1].reason is Reason.GZIP
    good = [i for i in broken if isinstance(i, ImportedRecord)]
    assert good == whole[: len(good)]
    assert [i.reason for i in Source(io.BytesIO(b"\x1f\x8b\x08 nonsense")).lines()] == [Reason.GZIP]


def test_what_unpacks_without_end_is_stopped() -> None:
    packer = zlib.compressobj(9, wbits=31)
    block = (b"#" * 1023 + b"\n") * 1024
    bomb = b"".join(packer.compress(block) for _ in range(64)) + packer.flush()
    assert len(bomb) < 1 << 19
    source = Source(io.BytesIO(bomb))
    found = [i for i in source.lines() if isinstance(i, Rejected)]
    assert [i.reason for i in found] == [Reason.RATIO]


def test_metaschedules_pair_is_read_as_one(tmp_path: Path) -> None:
    names = ("database_workload.json", "database_tuning_record.json")
    for name in names:
        (tmp_path / name).write_bytes((SAMPLES / name).read_bytes().rstrip())
    workloads, records = (tmp_path / name for name in names)
    other = tmp_path / "a.log"
    for given_paths in ([other, records], [other, workloads, records], [other, records, workloads]):
        assert grouped(given_paths) == [[other], [workloads, records]]
    assert grouped([workloads]) == [[workloads]]
    found = list(read(Source(Joined([workloads, records]), workloads.name)))
    assert [type(i) for i in found] == [Attachment] + [ImportedRecord] * 4
    assert list(Source(Joined([])).lines()) == []


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("autotvm_0_1.log", Format.AUTOTVM), ("autotvm_0_2.log", Format.AUTOTVM),
        ("kernel_tuner_cache.json", Format.KERNEL_TUNER), ("kernel_tuner_open.json", Format.KERNEL_TUNER),
        ("kernel_tuner_t4.json", Format.KERNEL_TUNER), ("kernel_tuner_t4_other.json", Format.KERNEL_TUNER),
        ("database_workload.json", Format.METASCHEDULE),
        ("database_tuning_record.json", Format.METASCHEDULE),
    ],
)
def test_the_format_is_seen_in_the_content(name: str, form: Format) -> None:
    data = (SAMPLES / name).read_bytes()
    assert detect(data) is form
    assert detect(b"\xef\xbb\xbf\r\n" + data) is form
    if form is Format.KERNEL_TUNER:
        if "open" not in name:
            assert detect(json.dumps(json.loads(data)).encode()) is form
            assert detect(json.dumps(json.loads(data), sort_keys=True).encode()) is form
        return
    # A damaged first line does not hide the rest, and our own copy of it is ours.
    assert detect(b"\x00\xff{\n" + data) is form
    pair = (SAMPLES / "database_workload.json").read_bytes() + data
    items = read(Source(io.BytesIO(pair if form is Format.METASCHEDULE else data)))
    ours = b"".join(native.write(i for i in items if not isinstance(i, Rejected)))
    assert detect(ours) is Format.PLEVEL
    assert detect(ours.split(b"\n", 1)[1]) is Format.PLEVEL


@pytest.mark.parametrize(
    "data", [b"", b"\n\n", b"hello\n", b"{}", b"[]", b"\0" * 100, b'{"a": 1}\n']
)
def test_what_is_none_of_them_is_said(data: bytes) -> None:
    with pytest.raises(FormatError, match="import one of: plevel, autotvm"):
        detect(data, "x.log")
    with pytest.raises(FormatError, match="is empty" if not data.strip() else "no known format"):
        read(Source(io.BytesIO(data), "x.log"))


def test_pickled_logs_are_known_and_never_unpickled() -> None:
    line = b"cuda -model=1080ti\tgASVDAAAAAAAAACMCGV4cGxvaXRz\tgASV\tgASV\n"
    items = list(read(Source(io.BytesIO(line * 2))))
    assert [(i.line, i.reason) for i in items] == [(1, Reason.PICKLE), (2, Reason.PICKLE)]


@given(st.binary(max_size=3000))
def test_detecting_raises_nothing_else(data: bytes) -> None:
    try:
        form = detect(data)
    except FormatError:
        return
    assert list(read(Source(io.BytesIO(data)), form)) is not None


_PIECES = ["\\", "u", "0000", "d83d", "de00", "\ud83d", "\ude00", "\0", "😀", "x"]


def _joined(pieces: list[str]) -> str:
    """One text, where two halves of a pair that meet are a character."""
    return "".join(pieces).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@given(
    st.text(max_size=50) | st.lists(st.sampled_from(_PIECES), max_size=12).map(_joined),
    st.sampled_from(["%s", '{"a": [%s]}']),
)
def test_json_with_broken_characters_is_refused_and_no_other(text: str, form: str) -> None:
    written = (form % json.dumps(text)).encode()
    try:
        whole = "\0" not in text and text.encode() is not None
    except UnicodeEncodeError:
        whole = False
    if whole:
        assert load(written) in (text, {"a": [text]})
    else:
        with pytest.raises(ValueError):
            check(written)


def test_depth_counts_brackets_outside_texts_only() -> None:
    assert load(json.dumps({"a": "[" * 200, "b": [[]] * 100}).encode())["b"][99] == []
    with pytest.raises(ValueError, match="nested deeper"):
        load(b"[" * 65 + b"]" * 65)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (UNNAMED, False),
        (b"".join((SAMPLES / f"database_{part}.json").read_bytes() for part in ("workload", "tuning_record")), False),
        (LOG.splitlines()[2].replace(b" -model=v100", b""), False),
        (LOG.splitlines()[2], True),
        ((SAMPLES / "kernel_tuner_cache.json").read_bytes(), True),
    ],
    ids=["T4", "metaschedule", "autotvm", "autotvm of a model", "a cache"],
)
def test_a_device_model_is_that_of_records_that_name_none(data: bytes, named: bool) -> None:
    found = [
        [i.device_model for i in read(Source(io.BytesIO(data), "x.json"), device_model=model)
         if isinstance(i, ImportedRecord)]
        for model in ("", "NVIDIA A100")
    ]
    assert bool(found[0][0]) == named
    assert found[1] == (found[0] if named else ["NVIDIA A100"] * len(found[0]))
