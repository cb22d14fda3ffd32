"""Parsers of what others send take time in proportion to its length.

Each is given a beginning that leads it into one part of its grammar, and then tokens of that grammar over
and over. A text eight times as long may take some eight times as long; quadratic time is 64 times.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec
import pytest

from service.api.problem import problem_of
from service.api.wire import check_keys
from service.errors import ServiceError
from service.formats import Format, Source, detect, read
from service.formats.foreign_target import foreign_target
from strategy.condition import SpecializedCondition
from strategy.record import WireError
from strategy.space import ConfigSpace
from strategy.target import Target
from strategy.types import TensorType
from strategy.workload_text import parse_workload

SHORT, TIMES = 4000, 8
MOST = 24.0  # times as long: linear is 8, n log n is 11, quadratic is 64
ROUNDS = 6

JSON_TOKENS = (
    *(bytes([c]) for c in b'[]{}":,\\ \t\n0-.e#\x00\xff'),
    b'\\"', b'""', b"[]", b"{}", b'"a":', b'"a":{', b'"a":[', b"null,", b"1e9,", b"\\u0000", b"\\ud800",
    b"\\udc00", b"0.1,", "é".encode(), b'"a', b'\\\\"', b'{"a":"', b'":{"', b"\\\n",
)
OPTIONS = ("-", "=", " ", ",", "-a=b ", "llvm ", '"', "'", "\\", "/", "{", "-keys=", "-keys a,")
TYPES = (" ", "\t", "[", "]", "float32", "float32[", "1,", ",", "m,", "0", "a")
WORKLOADS = (
    *TYPES, "(", ")", "a=float32[1],", "a=", "{", "}", ":const", "\\", '"', '{"a":', "+", "+r(.)", "+r(.){}", ".",
)

SPACE = (
    b'{"knobs":[{"name":"p","values":[1,2],"kind":"schedule"}],"constraints":[],"derived":{},'
    b'"fallback":{"p":1}}'
)
CACHE = b'{"device_name":"d","kernel_name":"k","tune_params_keys":["p"],"tune_params":{"p":[1,2]},"cache":{'
RECORD = (
    b'{"kind":"record","source":"plevel","task":{"workload":{"op":"o","inputs":[]},"target":"llvm",'
    b'"implementation":"i","version":"1"},"config":{"p":1},"samples_s":[1.0]'
)
FOREIGN = b'{"kind":"foreign","tool":"t","kernel":"k","candidates":['
AUTOTUNE = b'{"key":[1],"configs_timings":['
INPUT = b'{"input":["llvm","t",[["TENSOR",[1],"float32"]],{}],"config":{"index":0,"code_hash":null,"entity":['
# Beginnings that lead into the parts of each format.
BEGINS: dict[Format, Sequence[bytes]] = {
    Format.PLEVEL: (
        b"", b'{"kind":"plevel-records","version":1}\n', b'{"kind":"plevel-records","version":1}\n' + b"[]" * 65,
        RECORD + b',"message":"', RECORD + b',"environment":{', RECORD + b',"extra":[', RECORD + b',"x":',
        b'{"kind":"attachment","what":"space","key":"a","text":"',
    ),
    Format.AUTOTVM: (
        b"", b'{"input":', b"[]" * 65, b'{"input":["', b'{"input":["llvm","', b'{"input":["llvm","t",[',
        b'{"input":["llvm","t",[],{', INPUT, b'{"i":["llvm","t",[],{},[],{"e":[', b"conv2d\t",
        b'{"result":[[',
    ),
    Format.KERNEL_TUNER: (
        b"", b"{", b'{"a":"', b'{"cache":{', CACHE, CACHE + b'"1":{"p":1,"time":"', CACHE + b'"1":{"p":[',
        CACHE + b'"1":{"p":1},', CACHE.replace(b'["p"]', b"[]").replace(b"[1,2]", b"[]"),
        b'{"results":[', b'{"results":[{"timestamp":"', b'{"results":[{"configuration":{',
        CACHE + b'"1":{"p":1}},', CACHE[:60],
    ),
    Format.METASCHEDULE: (
        b"", b'["1","', b'["1","AA=="]\n[0,[[', b'["1","AA=="]\n[0,[[[],[]],[1.0],{"kind":"llvm"},[',
        b'["1","AA=="]\n[0,[[[],[]],[', b'["1","AA=="]\n' + b"[]" * 65,
    ),
    Format.FOREIGN: (
        b"", FOREIGN[:-15] + b'"', b'{"kind":"foreign","tool":"t","kernel":"', FOREIGN,
        FOREIGN + b'{"config":{"', FOREIGN + b'{"config":{"a":1},"samples_s":[', FOREIGN + b'{"config":{"a":"',
        FOREIGN + b'],"attrs":{"', FOREIGN + b'],"target":"',
    ),
    Format.TRITON: (
        b"", b'{"key":[', AUTOTUNE, AUTOTUNE + b'[{"kwargs":{"', AUTOTUNE + b'[{"kwargs":{"a":1}},[',
        AUTOTUNE + b'[{"kwargs":{"a":"', AUTOTUNE + b"]}\n",
    ),
    Format.HELION: (b"", b'{"config":"', b'{"config":"{}","key":{"fields":{"', b'{"key":{"fields":{"hardware":"'),
    Format.VLLM: (b"", b'{"1":{"', b'{"1":{"a":1},"', b'{"1":{"a":"', b'{"triton_version":"'),
    Format.TUNABLEOP: (
        b"", b"Validator,A,", b"Validator,A,1\n", b"GemmTunableOp_float_NT,nt_", b"GemmTunableOp_float_NT,nt_1_1_1,",
        b"GemmTunableOp_float_NT,nt_1_1_1,a,",
    ),
    Format.AITER: (
        b"", b"gfx,cu_num,M,us\n", b"gfx,cu_num,M,us\ngfx942,", b"gfx,cu_num,us,kernelName\ngfx942,80,1.0,", b"gfx,",
    ),
    Format.FLASHINFER: (
        b"", b'{"_metadata":{"', b'{"_metadata":{"gpu":"', b"{\"('a', 'b', ", b"{\"('a', 'b', ())\":[\"a\",",
    ),
}
# Names of files that readers take something from.
NAMES = {Format.HELION: f"{'a' * 32}.best_config", Format.VLLM: "E=1,N=1,device_name=NVIDIA_H100.json"}


def growth(act: Callable[[], object], longer: Callable[[], object]) -> float:
    """Ratio of the second's time to the first's: the least of some rounds, as noise only adds."""

    def best(once: Callable[[], object]) -> float:
        began = time.thread_time_ns()
        once()
        return time.thread_time_ns() - began

    short = long = ratio = float("inf")
    for _ in range(ROUNDS):
        short, long = min(short, best(act)), min(long, best(longer))
        ratio = long / max(short, 1)
        if ratio <= MOST:
            break
    return ratio


def repeated(begin: bytes, unit: bytes, size: int) -> bytes:
    return begin + unit * (size // len(unit))


def drained(data: bytes, form: Format | None) -> None:
    name = NAMES.get(form, "") if form else ""
    for _ in read(Source(io.BytesIO(data), name), form, device_model="NVIDIA H100"):
        pass


def units(tokens: Sequence[bytes], pairs: int, seed: int) -> Iterator[bytes]:
    """Every token, and pairs and triples of some."""
    yield from tokens
    rng = random.Random(seed)
    for _ in range(pairs):
        yield b"".join(rng.choices(tokens, k=rng.choice((2, 3))))


def quietly(parse: Callable[[bytes], object], data: bytes) -> None:
    """Parse what mostly cannot be read."""
    with contextlib.suppress(ServiceError, ValueError, TypeError, RecursionError):
        parse(data)


def grown(parse: Callable[[bytes], object], cases: Iterable[tuple[bytes, bytes]]) -> list[str]:
    """The beginnings and units of which the time grows faster than the length."""

    def once(begin: bytes, unit: bytes, size: int) -> Callable[[], None]:
        data = repeated(begin, unit, size)

        def act() -> None:
            quietly(parse, data)

        return act

    found = []
    for begin, unit in cases:
        ratio = growth(once(begin, unit, SHORT), once(begin, unit, TIMES * SHORT))
        if ratio > MOST:
            found.append(
                f"{begin[-40:]!r} + {unit!r} × n: {ratio:.0f} times for {TIMES} times as much"
            )
    return found


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", Format)
def test_formats(form: Format, full: bool) -> None:
    cases = list(itertools.product(BEGINS[form], units(JSON_TOKENS, 400 if full else 15, 1)))
    if not full:  # each token somewhere; each beginning with a share of them
        cases = random.Random(form.value).sample(cases, 100)
    assert grown(partial(drained, form=form), cases) == []


def test_the_cases_that_once_were_quadratic() -> None:
    cases = [
        (BEGINS[Format.PLEVEL][2], b'\\"', Format.PLEVEL),
        (b'{"a":"', b'\\"', Format.KERNEL_TUNER),
        (CACHE + b'"1":{"p":1,"time":"', b'\\"', Format.KERNEL_TUNER),
        (CACHE + b'"1":{"p":[', b'"\\"k\\":{"p":,"', Format.KERNEL_TUNER),
    ]
    for begin, unit, form in cases:
        assert grown(partial(drained, form=form), [(begin, unit)]) == []


def test_many_parameters() -> None:
    """A cache of one entry with as many parameters as it is long."""

    def cache(count: int) -> bytes:
        names = [f"p{i}" for i in range(count)]
        return json.dumps({
            "device_name": "d", "kernel_name": "k", "tune_params_keys": names,
            "tune_params": {name: [1] for name in names},
            "cache": {str(i): dict.fromkeys(names, 1) | {"time": 1.0} for i in range(2)},
        }).encode()

    short, long = cache(500), cache(500 * TIMES)
    form = Format.KERNEL_TUNER
    assert growth(lambda: drained(short, form), lambda: drained(long, form)) <= MOST


def test_members_of_gzip() -> None:
    """A packed file of a string without an end, a byte in each of its members."""

    def packed(size: int) -> bytes:
        member = gzip.compress(b"a", mtime=0)
        return gzip.compress(b'{"a":"', mtime=0) + member * (size // len(member))

    short, long = packed(4 * SHORT), packed(4 * TIMES * SHORT)
    form = Format.KERNEL_TUNER
    assert growth(lambda: drained(short, form), lambda: drained(long, form)) <= MOST


def test_detection() -> None:
    tokens = (*JSON_TOKENS, b'"cache"', b'"results":', b'["1"', b"abc", b"a\tb\t", b"{")
    begins = (b"", b"{", b"[", b"a\t", b'{"results":[{')
    cases = itertools.product(begins, units(tokens, 10, 2))
    assert grown(detect, cases) == []
    for end in (b",c,d", b'"', b"\t"):  # by which what was taken for a line is none
        cases = itertools.product((b"TunableOp_a,b,", b"", b"cu_num,", b"a\t"), (b" ", b"TunableOp_", b"a,", b"A"))
        assert grown(lambda data: detect(data + end), cases) == []  # noqa: B023


def texts(begins: Sequence[str], tokens: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
    encoded = [t.encode() for t in tokens]
    return itertools.product([b.encode() for b in begins], units(encoded, 15, 3))


def test_targets() -> None:
    begins = ("", "llvm ", "llvm -mattr=", "llvm -x ", '{"kind":')
    assert grown(lambda data: Target.parse(data.decode()), texts(begins, OPTIONS)) == []
    assert grown(lambda data: foreign_target(data.decode()), texts(begins, OPTIONS)) == []


def test_types_and_workloads() -> None:
    assert grown(
        lambda data: TensorType.parse(data.decode()), texts(("", "float32", "float32[", "float32[1"), TYPES)
    ) == []
    assert grown(
        lambda data: parse_workload(data.decode()),
        texts(("", "o(", "o(a=", "o()", "o(){", "o()+r(.){", "o()+"), WORKLOADS),
    ) == []


def test_spaces_and_conditions() -> None:
    def parse_space(data: bytes) -> None:
        ConfigSpace.from_json(msgspec.json.decode(data))

    def space(values: int) -> bytes:
        knobs = [
            {"name": f"k{i}", "values": list(range(values)), "kind": "schedule"} for i in range(10)
        ]
        constraints = [["<=", ["*", f"k{i}", "k0"], 10**6] for i in range(10)]
        body = {
            "knobs": knobs,
            "constraints": constraints,
            "fallback": {f"k{i}": 0 for i in range(10)},
        }
        return json.dumps(body).encode()

    short, long = space(100), space(100 * TIMES)
    assert growth(lambda: parse_space(short), lambda: parse_space(long)) <= MOST

    def parse_condition(data: bytes) -> None:
        SpecializedCondition.from_json(msgspec.json.decode(data))

    for unit in (b'[">","a",1],', b'["and",[">","a",1]],', b'"a",', b"1,", b"[],"):
        short, long = (b"[" + unit * (n * 40) + b"1]" for n in (1, TIMES))
        assert growth(
            lambda: quietly(parse_condition, short), lambda: quietly(parse_condition, long)  # noqa: B023
        ) <= MOST


def test_what_is_said_of_a_wrong_field() -> None:
    def tell(data: bytes) -> None:
        problem_of(WireError(data.decode(errors="replace")), "POST /")

    tokens = (b" - at `$", b"`", b"$.", b" - ", b"a", b"\n", b" - at `$.a`")
    assert grown(tell, itertools.product((b"", b"x - at `$."), units(tokens, 10, 4))) == []


def test_a_key_that_is_given_twice() -> None:
    def body(keys: int) -> bytes:
        return b"{%s}" % b",".join(b'"%d":0' % i for i in (*range(keys), keys - 1))

    short, long = body(1000), body(1000 * TIMES)
    assert growth(lambda: quietly(check_keys, short), lambda: quietly(check_keys, long)) <= MOST
