"""Targets: reading them in all their forms, and what is their identity."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.record import WireError, decode, encode
from strategy.target import _MOST_READ, KINDS, Target, TargetError, _read_targets, cpu_target

names = st.text("abcdefgh0123456789-_.", min_size=1, max_size=12).filter(
    lambda s: not s.startswith("-")
)
targets = st.builds(
    lambda kind, keys, **given: Target.parse(
        {"kind": kind, **({"keys": [*keys, *KINDS[kind]]} if keys else {}), **given}
    ),
    st.sampled_from(sorted(KINDS)),
    st.lists(names, max_size=2),
    **{"num-cores": st.integers(1, 512)},
    mcpu=names,
    mattr=st.lists(names.map(lambda s: "+" + s), max_size=3),
    libs=st.lists(names, max_size=3),
    model=st.text(max_size=20),
    mtriple=st.none() | names,
    l2_bytes=st.integers(1, 2**40),
)


@given(targets)
def test_a_target_survives_its_json(target: Target) -> None:
    for again in (Target.parse(target.to_json()), decode(encode(target), Target)):
        assert again == target
        assert again.key == target.key
        assert hash(again) == hash(target)
        for field in Target.__annotations__:
            assert getattr(again, field) == getattr(target, field)


@given(targets)
def test_a_target_survives_pickling(target: Target) -> None:
    assert pickle.loads(pickle.dumps(target)) == target


def test_a_target_says_how_its_code_is_timed() -> None:
    alone = Target.parse("llvm -mcpu=znver4 -num-cores=2 -libs=cblas")
    inside = alone.in_network()
    assert inside.key == alone.key + "/pool=openmp/constants=cold"
    assert inside.libs == ()
    assert inside == Target.parse("llvm -mcpu=znver4 -num-cores=2 -thread-pool=openmp -constants=cold")
    assert inside == Target.parse(inside.to_json()) == inside.in_network()
    assert inside.host.key == alone.host.key == alone.key
    warm = alone.key + "/pool=openmp"
    for one, key, otherwise in (
        (alone, alone.key, ""), (alone, inside.key, "thread-pool=openmp, constants=cold"),
        (inside, alone.key, "thread-pool=tvm, constants=warm"), (inside, warm, "constants=warm"),
        (alone, warm, "thread-pool=openmp"),
    ):
        assert one.is_like(key)
        assert one.otherwise(key) == otherwise
    assert not inside.is_like("llvm/znver4/threads=4/pool=openmp/constants=cold")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("cpu -constants=cold", r"target.constants = 'cold': only on OpenMP's threads.*: add -thread-pool=openmp"),
        ("cpu -thread-pool=openmp -constants=hot", "target.constants = 'hot': expected warm or cold"),
        ("cuda -arch=sm_90 -constants=cold", "target.constants = 'cold': only for processors: leave it out"),
        ("cuda -arch=sm_90 -thread-pool=tbb", "target.thread-pool = 'tbb': expected tvm or openmp"),
    ],
)
def test_bad_ways_of_timing(spec: str, said: str) -> None:
    with pytest.raises(TargetError, match=said):
        Target.parse(spec)


@given(targets, st.integers(1, 64))
def test_with_threads_changes_the_threads_only(target: Target, threads: int) -> None:
    other = target.with_threads(threads)
    assert other.threads == threads
    assert other.with_threads(target.threads) == target
    on_cpu = KINDS[target.kind] == ("cpu",)
    assert (other.key != target.key) == (on_cpu and threads != target.threads)


# As they stand in AutoTVM's logs and TVM's tutorials.
@pytest.mark.parametrize(
    ("text", "key", "keys", "model"),
    [
        ("llvm", "llvm/generic/threads=1", ("cpu",), ""),
        ("llvm -mcpu=skylake-avx512", "llvm/skylake-avx512/threads=1", ("cpu",), ""),
        ("cuda -model=1080ti", "cuda/generic", ("cuda", "gpu"), "1080ti"),
        ("cuda -model=titanx", "cuda/generic", ("cuda", "gpu"), "titanx"),
        ("cuda -model=jetson-nano", "cuda/generic", ("cuda", "gpu"), "jetson-nano"),
        (
            "cuda -keys=cuda,gpu -arch=sm_61 -max_num_threads=1024 -model=1080ti -thread_warp_size=32",
            "cuda/sm_61", ("cuda", "gpu"), "1080ti",
        ),
        ("cuda -libs=cudnn,cublas -model v100", "cuda/generic", ("cuda", "gpu"), "v100"),
        (
            "llvm -device=arm_cpu -model=bcm2837 -target=armv7l-linux-gnueabihf -mattr=+neon",
            "llvm/generic/+neon/threads=1", ("arm_cpu", "cpu"), "bcm2837",
        ),
        (
            "llvm -keys=arm_cpu,cpu -link-params -mtriple=aarch64-linux-gnu -mattr=+v8.2a,+dotprod -num-cores=4",
            "llvm/generic/+dotprod/+v8.2a/threads=4", ("arm_cpu", "cpu"), "",
        ),
        # Behind the keys that are given, as TVM 0.27 has it.
        ("llvm -keys=mine,cpu -device=arm_cpu", "llvm/generic/threads=1", ("mine", "cpu", "arm_cpu"), ""),
        ("llvm -keys=arm_cpu,cpu -device=arm_cpu", "llvm/generic/threads=1", ("arm_cpu", "cpu"), ""),
        ("opencl -device=mali -model=rk3399", "opencl/generic", ("mali", "opencl", "gpu"), "rk3399"),
        ("opencl --device=intel_graphics", "opencl/generic", ("intel_graphics", "opencl", "gpu"), ""),
        ("rocm -arch=gfx908 -system-lib", "rocm/gfx908", ("rocm", "gpu"), ""),
        ("metal", "metal/generic", ("metal", "gpu"), ""),
    ],
)
def test_legacy_strings(text: str, key: str, keys: tuple[str, ...], model: str) -> None:
    target = Target.parse(text)
    assert (target.key, target.keys, target.model) == (key, keys, model)
    assert Target.parse(target.to_json()) == target


def test_what_legacy_options_mean() -> None:
    gpu = Target.parse("cuda -max_num_threads=1024 -shared_memory_per_block=49152")
    assert gpu.capability == {"max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
    assert Target.parse("llvm -target=armv7l-linux-gnueabihf").triple == "armv7l-linux-gnueabihf"
    assert Target.parse("llvm -libs=mkl,cblas").libs == ("cblas", "mkl")


def test_tvm_dicts() -> None:
    h200 = Target.parse(
        {
            "kind": "cuda", "tag": "nvidia/nvidia-h200", "keys": ["cuda", "gpu"], "arch": "sm_90a",
            "max_threads_per_block": 1024, "thread_warp_size": 32, "l2_cache_size_bytes": 52428800,
        }
    )
    assert h200.key == "cuda/sm_90a"
    assert h200.l2_bytes == 52428800
    assert h200.to_tvm() == {"kind": "cuda", "arch": "sm_90a"}
    cpu = Target.parse({"kind": "llvm", "mcpu": "znver4", "num-cores": 8, "mattr": "+b,+a"})
    assert cpu.to_tvm() == {
        "kind": "llvm", "mcpu": "znver4", "num-cores": 8, "mattr": ["+a", "+b"],
    }
    assert Target.parse('{"kind": "llvm", "mcpu": "znver4"}').arch == "znver4"


def test_cpu_is_this_host() -> None:
    assert Target.parse("cpu") == cpu_target()
    one = Target.parse("cpu -num-cores=1")
    assert (one.arch, one.threads) == (cpu_target().arch, 1)
    assert one == cpu_target().with_threads(1) == Target.parse({"kind": "cpu", "threads": 1})
    assert Target.parse("cpu -libs=").libs == ()
    assert Target.parse("cpu -l2_bytes=4096").l2_bytes == 4096


def test_what_is_not_part_of_the_key() -> None:
    plain = Target.parse({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    rich = Target.parse(
        {**plain.to_json(), "libs": ["cblas"], "model": "EPYC", "l2_bytes": 1 << 20}
    )
    assert plain.key == rich.key
    assert plain != rich
    for changed in ({"mcpu": "znver5"}, {"num-cores": 3}, {"mattr": ["+x"]}):
        assert Target.parse({**plain.to_json(), **changed}).key != plain.key


def test_the_key_does_not_depend_on_how_features_are_written() -> None:
    assert Target.parse("llvm -mattr=+b,+a").key == Target.parse("llvm -mattr=+a,+b,+a").key


def test_keys_keep_their_order_and_are_walked_in_it() -> None:
    assert Target.parse({"kind": "llvm", "keys": ["mine", "cpu", "mine"]}).keys == ("mine", "cpu")
    # The threads are part of a processor's key whatever its keys are called.
    assert Target.parse({"kind": "llvm", "keys": ["mine"], "num-cores": 2}).key.endswith(
        "threads=2"
    )


@pytest.mark.parametrize(
    ("target", "width", "registers"),
    [
        ("llvm -mcpu=haswell", 32, 16), ("llvm -mcpu=znver3", 32, 16), ("llvm -mcpu=alderlake", 32, 16),
        ("llvm -mcpu=x86-64-v3", 32, 16), ("llvm -mcpu=x86-64-v4", 64, 32),
        ("llvm -mcpu=skylake-avx512", 64, 32), ("llvm -mcpu=sapphirerapids", 64, 32),
        ("llvm -mcpu=znver4", 64, 32), ("llvm -mcpu=znver5", 64, 32), ("llvm -mcpu=x86-64", 16, 16),
        ("llvm", 16, 16), ("llvm -mattr=+avx2,+fma", 32, 16), ("llvm -mattr=+avx2,+avx512f", 64, 32),
        ("llvm -mcpu=znver4 -mattr=-avx512f", 32, 16), ("llvm -mcpu=znver4 -mattr=-avx2", 16, 16),
        ("llvm -mcpu=znver3 -mattr=-avx512f", 32, 16),
        ("llvm -mcpu=neoverse-n1", 16, 32), ("llvm -mcpu=neoverse-v2", 16, 32),
        ("llvm -mcpu=cortex-a72", 16, 32), ("llvm -mtriple=aarch64-linux-gnu -mattr=+neon", 16, 32),
        ("llvm -mcpu=znver4 -vector_bytes=32 -vector_registers=16", 32, 16),
    ],
)
def test_vector_registers(target: str, width: int, registers: int) -> None:
    found = Target.parse(target)
    assert (found.vector_bytes, found.vector_registers) == (width, registers)


@pytest.mark.parametrize(
    ("target", "instructions"),
    [
        ("llvm", ""), ("llvm -mcpu=x86-64", ""), ("llvm -mcpu=neoverse-v2", ""), ("llvm -mcpu=haswell", "avx2 fma"),
        ("llvm -mcpu=znver4 -mattr=-avx512f", "avx2 fma"), ("llvm -mcpu=x86-64 -mattr=+avx2", "avx2"),
        ("llvm -mcpu=knl", "avx2 fma avx512f"),
        ("llvm -mcpu=skylake-avx512", "avx2 fma avx512f avx512bw avx512dq avx512vl"),
        ("llvm -mcpu=cascadelake", "avx2 fma avx512f avx512bw avx512dq avx512vl avx512vnni"),
        (
            "llvm -mcpu=icelake-server",
            "avx2 fma avx512f avx512bw avx512dq avx512vl avx512vnni avx512vbmi avx512ifma",
        ),
        (
            "llvm -mcpu=sapphirerapids",
            "avx2 fma avx512f avx512bw avx512dq avx512vl avx512bf16 avx512vnni avx512vbmi avx512ifma avx512fp16",
        ),
    ],
)
def test_the_vector_instructions_of_a_target(target: str, instructions: str) -> None:
    assert " ".join(Target.parse(target).vector_instructions) == instructions


@pytest.mark.parametrize(
    ("options", "features"),
    [
        ("", ["-amx-tile"]), ("-mattr=+fma", ["+fma", "-amx-tile"]), ("-mattr=", ["-amx-tile"]),
        ("-mattr=+amx-tile", ["+amx-tile"]), ("-mcpu=znver4", []), ("-num-cores=1", ["-amx-tile"]),
    ],
)
def test_what_this_host_lacks_stays_among_the_features(
    monkeypatch: pytest.MonkeyPatch, options: str, features: list[str]
) -> None:
    own = Target("llvm", ("cpu",), "emeraldrapids", ("-amx-tile",))
    monkeypatch.setattr("strategy.target.cpu_target", lambda: own)
    found = Target.parse(f"cpu {options}")
    assert list(found.features) == features
    assert found.has("amx-int8") == (options == "-mattr=+amx-tile")
    assert Target.parse(found.to_json()) == found


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("", "expected a name"), ("   ", "expected a name"), (5, "expected a name"), (None, "expected a name"),
        (["llvm"], "expected a name"), ("fpga", "unknown target 'fpga'"), ({}, "target.kind"),
        ({"kind": 5}, "target.kind"), ({"kind": "llvm", "mcpuu": "x"}, "unknown option 'mcpuu'"),
        ({"kind": "llvm", 5: "x"}, "unknown option '5'"), ("llvm znver4", "'znver4' is no option"),
        ("llvm '-mcpu", "No closing quotation"), ("llvm -num-cores=0", "num-cores"),
        ("llvm -num-cores=two", "num-cores"), ({"kind": "llvm", "num-cores": True}, "num-cores"),
        ({"kind": "llvm", "num-cores": 1.5}, "num-cores"), ({"kind": "llvm", "num-cores": None}, "num-cores"),
        ({"kind": "llvm", "num-cores": float("inf")}, "num-cores"), ({"kind": "cuda", "l2_bytes": -1}, "l2_bytes"),
        ({"kind": "llvm", "num-cores": 10**30}, "num-cores"), ({"kind": "llvm", "mcpu": {"a": 1}}, "target.arch"),
        ({"kind": "llvm", "mcpu": "a/threads=4"}, "target.arch"), ({"kind": "llvm", "mattr": ["+a/+b"]}, "mattr"),
        ({"kind": "llvm", "keys": ["a b"]}, "target.keys"), ({"kind": "llvm", "keys": {"a": 1}}, "target.keys"),
        ({"kind": "llvm", "keys": ["x"] * 65}, "target.keys"), ({"kind": "llvm", "libs": [5]}, "target.libs"),
        ({"kind": "llvm", "model": ["x"]}, "target.model"), ({"kind": "llvm", "model": "x" * 201}, "target.model"),
        ({"kind": "llvm", "mtriple": 7}, "target.mtriple"), ("{not json", "not valid JSON"),
        ("{" * 100_000, "not valid JSON"), ('{"a":' * 100_000, "not valid JSON"), ("x" * 4000, "unknown target"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(spec: Any, named: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target.parse(spec)
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_long_text_is_refused_at_once() -> None:
    with pytest.raises(TargetError, match="longer than 4096"):
        Target.parse("llvm -mattr=" + "+x," * 10**6)


def test_hostile_bytes_are_a_wire_error() -> None:
    for data in (
        b"5",
        b"[]",
        b"{}",
        b'{"kind":"llvm","keys":[[]]}',
        b'{"kind":"llvm","num-cores":1e9}',
    ):
        with pytest.raises(WireError):
            decode(data, Target)


def test_a_mapping_is_read_once_and_never_taken_for_another() -> None:
    data = {"kind": "cuda", "arch": "sm_90", "libs": ["cudnn"]}
    target = Target.parse(data)
    assert Target.parse(dict(data)) is target
    assert Target.parse({**data, "arch": "sm_80"}).arch == "sm_80"
    own = {"kind": "cpu", "num-cores": 1}
    assert Target.parse(own) is not Target.parse(own)
    for wrong in ({**data, "num-cores": 0}, {**data, "arch": object()}, {**data, "model": "x" * 201}):
        for _ in range(2):
            with pytest.raises(TargetError):
                Target.parse(wrong)
    assert {Target.parse({**data, "num-cores": n}).threads for n in range(1, 600)} == {*range(1, 600)}
    assert len(_read_targets) <= _MOST_READ


def test_threads_are_at_least_one() -> None:
    with pytest.raises(TargetError, match="threads = 0"):
        Target.parse("llvm").with_threads(0)


def test_a_target_is_immutable() -> None:
    target = Target.parse("llvm -l2_bytes=1024")
    with pytest.raises(AttributeError, match="immutable"):
        target.threads = 2
    with pytest.raises(TypeError):
        target.capability["l2_bytes"] = 1
    assert Target.parse(target) is target
    assert target != "llvm"


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ("llvm -mcpu", "'-mcpu' has no value: write -mcpu=value"),
        ("llvm -mcpu -num-cores=2", "'-mcpu' has no value"),
        ("llvm -num-cores", "'-num-cores' has no value"),
        ("llvm -mattr", "'-mattr' has no value"), ("cuda -libs", "'-libs' has no value"),
        ("cuda -model", "'-model' has no value"), ("llvm -l2_bytes", "'-l2_bytes' has no value"),
        ("cuda -nonsense", "'-nonsense' has no value"), ("llvm -mcpu ''", "'-mcpu' has no value"),
        ("llvm -mcpu=", "'-mcpu=' has no value"), ("llvm -keys=", "'-keys=' has no value"),
        ("cuda -arch=", "'-arch=' has no value"), ("cuda -model=", "'-model=' has no value"),
        ("llvm -device=", "'-device=' has no value"), ("llvm -mtriple=", "'-mtriple=' has no value"),
        ("llvm -num-cores=", "'-num-cores=' has no value"),
        ("llvm -mcpu=znver4 -mcpu=znver5", "'mcpu' is given twice"),
        ("llvm -mcpu=znver4 -mcpu=znver4", "'mcpu' is given twice"),
        ("llvm -mcpu=znver4 --mcpu znver4", "'mcpu' is given twice"),
        ("llvm -kind=cuda", "'kind' is given twice"),
        ('{"kind": "llvm", "mcpu": "a", "mcpu": "b"}', "'mcpu' is given twice"),
        ("llvm -num-cores=2 -threads=3", "target.num-cores = '2', but its synonym threads is '3'"),
        ("llvm -mcpu=znver4 -arch=znver5", "target.mcpu = 'znver4', but its synonym arch is 'znver5'"),
        ("llvm -target=a -mtriple=b", "target.mtriple = 'b', but its synonym target"),
        ("llvm -", "'-' is no option"), ("llvm --", "'--' is no option"),
        ("llvm -=x", "'-=x' is no option"), ("llvm -mcpu znver4 znver5", "'znver5' is no option"),
        ("lvm", "unknown target 'lvm', did you mean llvm?"), ("Cuda", "unknown target 'Cuda', did you mean cuda?"),
        ("gpu", "unknown target 'gpu', did you mean cuda?"),
        ("znver4", "write it as 'llvm -mcpu=znver4'"), ("cortex-a76", "write it as 'llvm -mcpu=cortex-a76'"),
        ("llvm -mcpuu=x", "unknown option 'mcpuu', did you mean mcpu?"),
        ("cuda -max_shared_memory=1", "unknown option 'max_shared_memory', did you mean"),
    ],
)
def test_an_option_has_one_value(spec: str, named: str) -> None:
    with pytest.raises(TargetError) as caught:
        Target.parse(spec)
    assert named in str(caught.value)


def test_what_needs_no_value() -> None:
    assert Target.parse("llvm -link-params -system-lib").key == "llvm/generic/threads=1"
    assert Target.parse("llvm -mattr= -libs=").features == ()
    # TVM's own dicts say some things in both ways.
    both = {"kind": "cuda", "max_num_threads": 1024, "max_threads_per_block": 1024}
    assert Target.parse(both).capability == {"max_threads_per_block": 1024}


def test_the_innermost_target_entered_is_the_current_one() -> None:
    outer, inner = Target.parse("llvm"), Target.parse("cuda")
    assert Target.current() is None
    with outer as entered:
        assert entered is Target.current() is outer
        with inner, inner:
            assert Target.current() is inner
        assert Target.current() is outer
        with suppress(ZeroDivisionError), inner:
            1 / 0  # noqa: B018
        assert Target.current() is outer
    assert Target.current() is None


def test_each_thread_has_a_current_target_of_its_own() -> None:
    shared, barrier = Target.parse("llvm"), threading.Barrier(2)

    def enter(own: Target) -> list[Target | None]:
        found = [Target.current()]
        for target in (own, shared):
            with target:
                barrier.wait()
                found.append(Target.current())
                barrier.wait()
        return [*found, Target.current()]

    targets = [Target.parse("cuda"), Target.parse("rocm")]
    with ThreadPoolExecutor(2) as pool, Target.parse("metal"):
        found = list(pool.map(enter, targets))
    assert found == [[None, own, shared, None] for own in targets]


@pytest.mark.parametrize(
    "spec",
    [
        "llvm -mcpu=znver4 -num-cores=8", "llvm -num-cores=2", "cuda -arch=sm_90",
        "llvm -mcpu=znver4 -mattr=-avx512f,+fma -num-cores=8 -thread-pool=openmp -constants=cold",
    ],
)
def test_a_key_is_refused_with_the_target_that_it_is_of(spec: str) -> None:
    key = Target.parse(spec).key
    with pytest.raises(TargetError, match=r"is a key: write it as '(.*)'$") as refused:
        Target.parse(key)
    assert Target.parse(str(refused.value).split("'")[-2]).key == key


@pytest.mark.parametrize("key", ["llvm/", "llvm/threads=2", "llvm/znver4" + "/" * 1000])
def test_what_begins_like_a_key_is_refused(key: str) -> None:
    with pytest.raises(TargetError, match="is a key"):
        Target.parse(key)
