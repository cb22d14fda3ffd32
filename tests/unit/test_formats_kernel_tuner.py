"""Kernel Tuner's files: closed and open caches, T4 in both spellings, and damage in any of them."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.formats import (
    Attachment,
    ImportedRecord,
    Reason,
    Rejected,
    Source,
    kernel_tuner,
    native,
)
from strategy.record import ErrorKind, decode
from strategy.space import ConfigSpace
from strategy.target import Target

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
CACHE = (SAMPLES / "kernel_tuner_cache.json").read_bytes()
OPEN = (SAMPLES / "kernel_tuner_open.json").read_bytes()
T4 = (SAMPLES / "kernel_tuner_t4.json").read_bytes()
T4_OTHER = (SAMPLES / "kernel_tuner_t4_other.json").read_bytes()
DOCUMENT: dict[str, Any] = json.loads(CACHE)
KEYS = list(DOCUMENT["cache"])


class Slow(io.RawIOBase):
    """A stream that gives a few bytes at a time and cannot go back."""

    def __init__(self, data: bytes, step: int = 7) -> None:
        self._data = data
        self._step = step

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        taken, self._data = self._data[: self._step], self._data[self._step :]
        return taken


def read(data: bytes, name: str = "kernel.json", **options: Any) -> list[Any]:
    return list(kernel_tuner.read(Source(io.BytesIO(data), name), **options))


def records(items: list[Any]) -> list[ImportedRecord]:
    return [i for i in items if isinstance(i, ImportedRecord)]


def aside(items: list[Any]) -> list[Rejected]:
    return [i for i in items if isinstance(i, Rejected)]


def identities(items: list[Any]) -> Counter[str]:
    return Counter(i.identity for i in records(items))


ALL = identities(read(CACHE))


def laid_out(document: dict[str, Any], **options: Any) -> bytes:
    return json.dumps(document, **options).encode()


def test_a_cache_is_its_space_and_its_records() -> None:
    items = read(CACHE)
    space, first = items[0], items[1]
    assert isinstance(space, Attachment)
    assert len(records(items)) == len(KEYS)
    parsed = decode(space.text, ConfigSpace)
    assert space.key == parsed.digest == first.task.space
    assert [k.name for k in parsed.knobs] == DOCUMENT["tune_params_keys"]
    assert all(parsed.contains(r.config) for r in records(items))
    entry = DOCUMENT["cache"][KEYS[0]]
    assert first.samples_s == tuple(t * 1e-3 for t in entry["times"])
    assert first.build_s == pytest.approx(entry["compile_time"] / 1e3)
    assert first.measured_at == pytest.approx(1703238845.502007)
    assert first.device_model == "NVIDIA A100-PCIE-40GB"
    assert first.task.target.kind == "cuda"
    assert first.task.implementation == "kernel_tuner:convolution_kernel"
    assert first.task.workload.attrs == {"problem_size": [4096, 4096]}


def test_failures_given_as_texts_have_a_kind() -> None:
    errors = Counter(r.error for r in records(read(CACHE)))
    assert errors == {None: 4, ErrorKind.COMPILE: 1, ErrorKind.RUNTIME: 1}
    failed = next(r for r in records(read(CACHE)) if r.error is ErrorKind.COMPILE)
    assert failed.samples_s == ()
    assert failed.message == "Kernel Tuner: CompilationFailedConfig"


@pytest.mark.parametrize(
    "data",
    [
        OPEN,
        OPEN.rstrip(b","),
        OPEN + b"\n",
        laid_out(DOCUMENT),
        laid_out(DOCUMENT, separators=(",", ":")),
        laid_out(DOCUMENT, indent=4),
        laid_out(DOCUMENT, indent=1, sort_keys=True),  # the entries before what describes them
        laid_out({"cache": DOCUMENT["cache"], **DOCUMENT}),
        CACHE.replace(b"\n", b"\r\n"),
    ],
    ids=["open", "no comma", "line end", "plain", "small", "indented", "sorted", "first", "crlf"],
)
def test_a_cache_reads_the_same_however_it_is_written(data: bytes) -> None:
    items = read(data)
    assert aside(items) == []
    assert identities(items) == ALL
    slowly = list(kernel_tuner.read(Source(Slow(data), "kernel.json")))
    assert identities(slowly) == ALL


def test_t4_says_the_same_in_both_spellings() -> None:
    with_device = read(T4_OTHER)
    assert aside(with_device) == aside(read(T4)) == []
    measured = {r.config_key: (r.samples_s, r.error, r.build_s) for r in records(read(T4))}
    assert {
        r.config_key: (r.samples_s, r.error, r.build_s) for r in records(with_device)
    } == measured
    assert {
        r.config_key: (r.samples_s, r.error, r.build_s) for r in records(read(CACHE))
    } == measured
    assert {r.device_model for r in records(with_device)} == {"NVIDIA A100-PCIE-40GB"}
    # The file's name stands in for a missing name of the kernel.
    assert records(read(T4, "mine_T4.json.gz"))[0].task.implementation == "kernel_tuner:mine_T4"


def test_t4_gets_its_space_from_its_results() -> None:
    from_cache, from_t4 = read(CACHE)[0], read(T4_OTHER)[0]
    assert from_cache == from_t4


def test_a_target_given_holds() -> None:
    target = Target.parse({"kind": "cuda", "arch": "sm_80", "model": "A100"})
    record = records(read(T4, target=target))[0]
    assert record.task.target == target
    assert record.device_model == "A100"


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("NVIDIA A100-PCIE-40GB", "cuda"), ("GeForce GTX 1080 Ti", "cuda"), ("Tesla V100", "cuda"),
        ("AMD Radeon PRO W6600", "rocm"), ("AMD Instinct MI50", "rocm"), ("gfx90a", "rocm"),
        ("Intel(R) Xeon(R) Gold 6148", "llvm"), ("AMD EPYC 7413 24-Core CPU", "rocm"),
        ("Apple M2", "metal"), ("Testing", "opencl"), ("", "opencl"),
    ],
)
def test_a_devices_name_tells_its_target(device: str, kind: str) -> None:
    assert kernel_tuner.target_of(device).kind == kind


def changed(key: str, **parts: Any) -> bytes:
    entries = {k: {**v, **parts} if k == key else v for k, v in DOCUMENT["cache"].items()}
    return laid_out({**DOCUMENT, "cache": entries})


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"times": [float("nan"), 1.0]}, Reason.COST),
        ({"times": [-1.0]}, Reason.COST),
        ({"times": 3}, Reason.COST),
        ({"times": ["fast"]}, Reason.COST),
        ({"times": None, "time": None}, Reason.COST),
        ({"timestamp": "yesterday"}, Reason.TIME),
        ({"timestamp": 5}, Reason.TIME),
        ({"block_size_x": {"a": "x" * 300}}, Reason.CONFIG),
        ({"block_size_x": 10**30}, Reason.SPACE),
        ({"block_size_x": float("inf")}, Reason.SPACE),
        ({"deep": json.loads("[" * 100 + "]" * 100)}, Reason.DEPTH),
    ],
)
def test_a_bad_entry_is_put_aside_alone(parts: dict[str, Any], reason: Reason) -> None:
    items = read(changed(KEYS[1], **parts))
    assert [i.reason for i in aside(items)] == [reason]
    assert sum(identities(items).values()) == len(KEYS) - 1
    assert not identities(items) - ALL


def test_entries_that_are_none_are_put_aside() -> None:
    entries = {"a": None, **DOCUMENT["cache"], "b": 3}
    items = read(laid_out({**DOCUMENT, "cache": entries}))
    assert [i.reason for i in aside(items)] == [Reason.FIELD, Reason.FIELD]
    assert identities(items) == ALL
    missing = {k: v for k, v in DOCUMENT["cache"][KEYS[0]].items() if k != "use_cmem"}
    items = read(laid_out({**DOCUMENT, "cache": {"x": missing}}))
    assert [i.reason for i in aside(items)] == [Reason.FIELD]
    twice = CACHE.replace(b'"time":', b'"time": 1.0, "time":', 1)
    assert [i.reason for i in aside(read(twice))] == [Reason.DUPLICATE]


@pytest.mark.parametrize("compact", [False, True], ids=["lines", "one line"])
@pytest.mark.parametrize(
    ("cut", "put", "lost"),
    [
        (b'"', b"", 1), (b"{", b"", 1), (b"}", b"", 1), (b"}", b"}}", 0), (b"}", b"]", 1),
        (b",", b"", 1), (b":", b"", 1), (b'"', b'"\x00\xff', 1), (b"16", b"[[", 1),
    ],
)
def test_damage_in_one_entry_leaves_the_others(
    cut: bytes, put: bytes, lost: int, compact: bool
) -> None:
    whole = laid_out(DOCUMENT, separators=(",", ":")) if compact else CACHE
    at = whole.index(f'"{KEYS[2]}"'.encode())
    place = whole.index(cut, at + 60)
    if cut == b"{":
        place = whole.index(cut, at)
    damaged = whole[:place] + put + whole[place + len(cut) :]
    items = read(damaged)
    assert aside(items)
    assert not identities(items) - ALL
    assert sum((ALL - identities(items)).values()) == lost


@pytest.mark.parametrize("data", [T4, laid_out(json.loads(T4))], ids=["lines", "one line"])
@pytest.mark.parametrize(("cut", "put"), [(b'"', b""), (b"}", b""), (b"]", b""), (b"{", b"{{")])
def test_damage_in_one_result_leaves_the_others(data: bytes, cut: bytes, put: bytes) -> None:
    whole = identities(read(data))
    starts = [i for i in range(len(data)) if data.startswith(b'"configuration"', i)]
    place = data.index(cut, starts[2] + 20)
    items = read(data[:place] + put + data[place + len(cut) :])
    assert aside(items)
    keys = {r.config_key for r in records(items)}
    assert len({r.config_key for r in records(read(data))} - keys) == 1
    assert sum(whole.values()) == len(KEYS)


def test_a_file_that_ends_early_gives_what_came_before() -> None:
    at = CACHE.index(f'"{KEYS[3]}"'.encode())
    items = read(CACHE[: at + 200])
    assert sum(identities(items).values()) == 3
    assert [(i.reason, i.text) for i in aside(items)] == [(Reason.TRUNCATED, CACHE[at : at + 200])]


def test_a_header_that_cannot_be_read_is_said_once_and_its_entries_are_put_aside() -> None:
    items = read(laid_out({k: v for k, v in DOCUMENT.items() if k != "kernel_name"}))
    assert records(items) == []
    assert Counter(i.reason for i in aside(items)) == {Reason.FIELD: 1, Reason.WORKLOAD: len(KEYS)}
    assert "kernel_name" in aside(items)[0].detail


def test_a_space_that_is_none_of_ours_is_said_and_the_records_are_kept() -> None:
    long = "n" * 65
    entries = {k: {**v, long: 1} for k, v in DOCUMENT["cache"].items()}
    parameters = {**DOCUMENT["tune_params"], long: [1]}
    names = [*DOCUMENT["tune_params_keys"], long]
    items = read(
        laid_out(
            {**DOCUMENT, "tune_params": parameters, "tune_params_keys": names, "cache": entries}
        )
    )
    assert [i.reason for i in aside(items)] == [Reason.SPACE]
    assert len(records(items)) == len(KEYS)
    assert {r.task.space for r in records(items)} == {""}


def test_values_of_other_kinds_become_texts() -> None:
    entries = {k: {**v, "extra": {"a": [1]}} for k, v in DOCUMENT["cache"].items()}
    parameters = {**DOCUMENT["tune_params"], "extra": [{"a": [1]}]}
    names = [*DOCUMENT["tune_params_keys"], "extra"]
    items = read(
        laid_out(
            {**DOCUMENT, "tune_params": parameters, "tune_params_keys": names, "cache": entries}
        )
    )
    assert aside(items) == []
    assert records(items)[0].config["extra"] == '{"a":[1]}'


def test_what_is_written_reads_as_the_same_measurements() -> None:
    written = b"".join(kernel_tuner.write(records(read(CACHE))))
    document = json.loads(written)
    assert {r["invalidity"] for r in document["results"]} == {"correct", "compile", "runtime"}
    back = {r.config_key: r for r in records(read(written))}
    for record in records(read(CACHE)):
        again = back[record.config_key]
        assert again.samples_s == pytest.approx(record.samples_s)
        assert again.error == record.error
        assert again.measured_at == pytest.approx(record.measured_at)


def test_a_detour_through_our_own_format_changes_nothing() -> None:
    ours = b"".join(native.write(read(CACHE)))
    assert list(native.read(Source(io.BytesIO(ours)))) == read(CACHE)


@given(st.binary(max_size=1000))
def test_no_bytes_raise(data: bytes) -> None:
    assert records(read(data)) == []
    for known in (CACHE, T4):
        read(known[:700] + data + known[700:])


@given(
    st.integers(0, 2**32), st.sampled_from([CACHE, OPEN, T4, laid_out(DOCUMENT, sort_keys=True)])
)
@example(380, CACHE)  # its head says no more where a stream gives little at a time
def test_no_damage_raises(seed: int, whole: bytes) -> None:
    rng = random.Random(seed)
    text = bytearray(whole)
    for _ in range(rng.randint(1, 30)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 9)] = rng.choice(
            [b"", b'"', b"{", b"}", b"]", b"[", b"\\", b"\n", b"NaN", b"9" * 400, rng.randbytes(4)]
        )
    items = read(bytes(text))
    assert list(kernel_tuner.read(Source(Slow(bytes(text), 1000), "kernel.json"))) == items
    good = records(items)
    assert list(native.read(Source(io.BytesIO(b"".join(native.write(good)))))) == good
