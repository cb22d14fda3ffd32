"""AutoTVM's logs: what a line means, that nothing in one spoils another, and the way back."""

from __future__ import annotations

import io
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.formats import ImportedRecord, Reason, Rejected, Source, autotvm, native
from service.formats.template import family, workload_of
from strategy.op_strategy import Candidate
from strategy.record import ErrorKind, decode, encode
from strategy.select import History, choose_as_tvm
from strategy.space import Config, ConfigSpace, Knob
from strategy.target import Target, TargetError
from strategy.workload import Workload

SAMPLES = Path(__file__).parents[1] / "data" / "formats"
LOG = (SAMPLES / "autotvm_0_2.log").read_bytes()
OLD_LOG = (SAMPLES / "autotvm_0_1.log").read_bytes()
LINES = [line for line in LOG.splitlines(keepends=True) if line.startswith(b"{")]
OLD_LINES = [line for line in OLD_LOG.splitlines(keepends=True) if line.startswith(b"{")]
LINE: dict[str, Any] = json.loads(LINES[0])


def read(data: bytes) -> list[Any]:
    return list(autotvm.read(Source(io.BytesIO(data))))


def identities(items: list[Any]) -> Counter[str]:
    return Counter(i.identity for i in items if isinstance(i, ImportedRecord))


ALL = identities(read(LOG))


def changed(**parts: Any) -> bytes:
    return json.dumps({**LINE, **parts}).encode() + b"\n"


def test_every_line_of_the_samples_is_a_record() -> None:
    assert [type(i) for i in read(LOG)] == [ImportedRecord] * len(LINES)
    assert [type(i) for i in read(OLD_LOG)] == [ImportedRecord] * len(OLD_LINES)


def test_what_a_line_says_is_in_the_record() -> None:
    record = read(LINES[0])[0]
    target, name, args, _ = LINE["input"]
    assert record.task.implementation == f"autotvm:{name}"
    assert str(record.task.workload.inputs[0]) == "data=float32" + str(args[0][1]).replace(" ", "")
    assert record.task.workload.attrs["strides"] == args[2]
    assert record.task.target.keys == ("cuda", "gpu")
    assert f"cuda -model={record.device_model}" == target
    assert record.config == Config({k: v for k, _, v in LINE["config"]["entity"]})
    assert record.config_digest == record.config.digest
    assert list(record.samples_s) == LINE["result"][0]
    assert record.measured_at == LINE["result"][3]
    assert record.error is None


def test_errors_have_a_kind_and_no_cost() -> None:
    made = [i for i in read(LOG) if i.error is not None]
    assert [i.error for i in made] == list(autotvm.ERRORS.values())
    assert all(i.samples_s == () and i.message for i in made)
    assert made[5].error is ErrorKind.BUILD_TIMEOUT


def test_knobs_of_all_kinds_keep_what_they_are() -> None:
    record = next(i for i in read(LOG) if i.task.implementation == "autotvm:dense_pack.x86")
    assert record.config == Config(
        {
            "tile_y": (-1, 4, 2), "order": (0, 2, 1), "vec": '["none","unroll","vec"]',
            "auto_unroll": "null", "scale": 0.5, "name": "wide",
        }
    )


def test_templates_of_one_computation_share_its_workload() -> None:
    names = {
        "conv2d_nchw.cuda": "conv2d_nchw", "conv2d_nchw_winograd.cuda": "conv2d_nchw",
        "conv2d_nchw_spatial_pack.arm_cpu": "conv2d_nchw", "dense_small_batch.gpu": "dense",
        "conv2d_nchw_winograd_nnpack.arm_cpu": "conv2d_nchw", "dense_pack.x86": "dense",
        "conv2d_NCHWc_int8.x86": "conv2d_NCHWc", "depthwise_conv2d_nchw.cuda": "depthwise_conv2d_nchw",
        "conv2d_transpose_nchw.cuda": "conv2d_transpose_nchw", "batch_matmul_cublas.cuda": "batch_matmul",
    }
    assert {name: family(name) for name in names} == names
    args = LINE["input"][2]
    assert workload_of("conv2d_nchw.cuda", args, {}) == workload_of(
        "conv2d_nchw_winograd.cuda", args, {}
    )
    shared = {}
    for i in read(LOG):
        shared.setdefault(i.task.workload.key, set()).add(i.task.implementation)
    assert sum(len(v) == 2 for v in shared.values()) == 2


def test_tensors_within_lists_become_inputs_of_their_own() -> None:
    record = next(i for i in read(LOG) if i.task.implementation == "autotvm:concatenate.cuda")
    assert [i.name for i in record.task.workload.inputs] == ["arg0.0", "arg0.1"]
    assert record.task.target.model == ""  # TVM's "unknown" is none


def test_imported_lines_are_written_as_they_were_read() -> None:
    assert b"".join(autotvm.write(read(LOG))) == b"".join(LINES)
    # Version 0.1 was written by a Python whose dicts had no order.
    written = [json.loads(line) for line in autotvm.write(read(OLD_LOG))]
    assert written == [json.loads(line) for line in OLD_LINES]


def test_a_detour_through_our_own_format_changes_nothing() -> None:
    ours = b"".join(native.write(read(LOG)))
    back = list(native.read(Source(io.BytesIO(ours))))
    assert back == read(LOG)
    assert b"".join(autotvm.write(back)) == b"".join(LINES)


def test_version_0_1_has_implementations_of_its_own_by_template() -> None:
    found = {i.task.implementation for i in read(OLD_LOG)}
    assert found == {
        "autotvm:topi_nn_conv2d.direct", "autotvm:topi_nn_conv2d.winograd",
        "autotvm:topi_nn_depthwise_conv2d_nchw.direct",
    }
    assert {i.task.workload.op for i in read(OLD_LOG)} == {
        "autotvm.topi_nn_conv2d", "autotvm.topi_nn_depthwise_conv2d_nchw",
    }


def test_keys_that_autotvm_does_not_know_are_kept() -> None:
    line = changed(note={"by": "someone"}, config={**LINE["config"], "seed": 3})
    record = read(line)[0]
    assert record.identity == read(LINES[0])[0].identity
    assert json.loads(b"".join(autotvm.write([record]))) == json.loads(line)


def test_a_record_of_ours_is_a_line_that_autotvm_takes() -> None:
    text = encode(
        {
            "kind": "record", "source": "plevel", "config": {"tile": [4, 8], "unroll": True},
            "samples_s": [1e-3, 1.1e-3], "measured_at": 1.7e9,
            "task": {
                "workload": {"op": "dense", "inputs": [{"name": "data", "type": "float32[4,8]"}],
                             "attrs": {"units": 8}},
                "target": "llvm -mcpu=znver4 -num-cores=2", "implementation": "dense_pack.cpu",
                "version": "1.0",
            },
        }
    )
    ours = next(iter(native.read(Source(io.BytesIO(text)))))
    line = json.loads(b"".join(autotvm.write([ours])))
    assert line["input"] == [
        "llvm -keys=cpu -mcpu=znver4", "dense_pack.cpu", [["TENSOR", [4, 8], "float32"]], {"units": 8},
    ]
    assert line["config"]["entity"] == [["tile", "sp", [4, 8]], ["unroll", "ot", True]]
    assert line["result"][:2] == [[1e-3, 1.1e-3], 0]
    back = read(json.dumps(line).encode())[0]
    assert (back.config, back.samples_s) == (ours.config, ours.samples_s)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", Reason.TRUNCATED),
        (b"{\n", Reason.JSON),
        (b"[1, 2]\n", Reason.FIELD),
        (b"\xff\xfe{}\n", Reason.JSON),
        (LINES[0][:200], Reason.TRUNCATED),
        (LINES[0][:200] + b"\n", Reason.JSON),
        (b"cuda\tgASVAAAA\tgASV\tgASV\t0.2\t0.6\n", Reason.PICKLE),
        (changed(version=0.3), Reason.VERSION),
        (changed(result=[[float("nan")], 0, 1.0, 2.0]), Reason.COST),
        (changed(result=[[float("inf")], 0, 1.0, 2.0]), Reason.COST),
        (changed(result=[[-1e-3], 0, 1.0, 2.0]), Reason.COST),
        (changed(result=[[0.0], 0, 1.0, 2.0]), Reason.COST),
        (changed(result=[[], 0, 1.0, 2.0]), Reason.COST),
        (changed(result=[["fast"], 0, 1.0, 2.0]), Reason.COST),
        (changed(result=[[1e-3], 9, 1.0, 2.0]), Reason.FIELD),
        (changed(result=[[1e-3], -1, 1.0, 2.0]), Reason.FIELD),
        (changed(result=[[1e-3], 0, 1.0, -5.0]), Reason.TIME),
        (changed(result=[[1e-3], 0, 1.0, float("nan")]), Reason.TIME),
        (changed(result=[[1e-3], 0]), Reason.FIELD),
        (changed(input=["quantum/x -model=x", *LINE["input"][1:]]), Reason.TARGET),
        (changed(input=["cpu -num-cores=4", *LINE["input"][1:]]), Reason.TARGET),
        (changed(input=["", *LINE["input"][1:]]), Reason.TARGET),
        (changed(input=[LINE["input"][0], "x" * 10**6, [], {}]), Reason.WORKLOAD),
        (changed(input=[LINE["input"][0], "a b", [], {}, 1]), Reason.FIELD),
        (changed(input=[LINE["input"][0], "op.x", [["TENSOR", [1], "float7"]], {}]), Reason.TYPE),
        (changed(input=[LINE["input"][0], "op.x", [["TENSOR", [-1], "int8"]], {}]), Reason.TYPE),
        (changed(input=[LINE["input"][0], "op.x", [{"a": 1}], {}]), Reason.WORKLOAD),
        (changed(input=[LINE["input"][0], "op.x", [float("nan")], {}]), Reason.FIELD),
        (changed(input=[LINE["input"][0], "op.x", [10**30], {}]), Reason.WORKLOAD),
        (changed(config={"index": 1, "code_hash": None, "entity": [["t", "sp", 4]]}), Reason.CONFIG),
        (changed(config={"index": 1, "code_hash": None, "entity": [["t", "sp", ["a"]]]}), Reason.CONFIG),
        (changed(config={"index": 1, "code_hash": None, "entity": [["t", "xx", [4]]]}), Reason.FIELD),
        (changed(config={"index": 1, "code_hash": None, "entity": [["t", "ot", 10**30]]}), Reason.FIELD),
        (
            changed(config={"index": 1, "code_hash": None, "entity": [["t", "ot", 1], ["t", "ot", 2]]}),
            Reason.DUPLICATE,
        ),
        (LINES[0].replace(b'"version"', b'"version": 0.2, "version"'), Reason.DUPLICATE),
        (LINES[0].replace(b'"tvm_version": ', b'"version": '), Reason.DUPLICATE),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n", Reason.DEPTH),
        (changed(input=[LINE["input"][0], "op.\0", [], {}]), Reason.JSON),
        (changed(input=[LINE["input"][0], "op.\ud800", [], {}]), Reason.JSON),
        (b'{"pad": "' + b"x" * 5_000_000 + b'"}\n', Reason.TOO_LONG),
        (OLD_LINES[0].replace(b'"v": 0.1', b'"v": 0.3'), Reason.VERSION),
        (OLD_LINES[0].replace(b"[[", b"[[NaN, ", 1), Reason.COST),
    ],
)
def test_bad_lines_are_put_aside_with_their_number_and_reason(line: bytes, reason: Reason) -> None:
    ended = line if line.endswith(b"\n") else line + b"\n"
    items = (
        read(LINES[1] + line) if reason is Reason.TRUNCATED else read(LINES[1] + ended + LINES[2])
    )
    aside = [i for i in items if isinstance(i, Rejected)]
    assert [(i.line, i.reason) for i in aside] == [(2, reason)]
    assert aside[0].detail
    assert line.startswith(aside[0].text)
    others = LINES[1:2] if reason is Reason.TRUNCATED else LINES[1:3]
    assert identities(items) == identities(read(b"".join(others)))


@given(st.binary(max_size=2000))
def test_no_bytes_raise(data: bytes) -> None:
    for item in read(data):
        assert isinstance(item, Rejected | ImportedRecord)


@given(st.integers(0, 2**32))
def test_damage_in_one_line_leaves_its_neighbours(seed: int) -> None:
    rng = random.Random(seed)
    lines = [*LINES, *OLD_LINES]
    bad = rng.randrange(len(lines))
    text = bytearray(lines[bad][:-1])
    for _ in range(rng.randint(1, 20)):
        at = rng.randrange(len(text))
        text[at : at + rng.randint(0, 3)] = rng.choice(
            [b"", b'"', b"{", b"]", b"\\", b"\xff", b"NaN", b"9" * 30, b"-", rng.randbytes(3)]
        )
    damaged = bytes(text).replace(b"\n", b"")
    kept = identities(read(b"".join(lines[:bad] + lines[bad + 1 :])))
    items = read(b"".join([*lines[:bad], damaged + b"\n", *lines[bad + 1 :]]))
    assert identities(items) >= kept
    # Whatever still was a record can be written and kept.
    good = [i for i in items if isinstance(i, ImportedRecord)]
    assert len(list(autotvm.write(good))) == len(good)
    assert list(native.read(Source(io.BytesIO(b"".join(native.write(good)))))) == good


_names = st.text(
    st.characters(codec="utf-8", min_codepoint=32, exclude_characters='"\\'),
    min_size=1,
    max_size=20,
)
_knobs = st.one_of(
    st.tuples(st.just("sp"), st.lists(st.integers(-1, 2**40), max_size=6)),
    st.tuples(st.just("re"), st.lists(st.integers(0, 9), max_size=6)),
    st.tuples(st.just("an"), st.lists(st.sampled_from(["none", "vec", "unroll"]), max_size=4)),
    st.tuples(
        st.just("ot"),
        st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _names
        | st.floats(allow_nan=False, allow_infinity=False),
    ),
)


@given(
    st.dictionaries(_names, _knobs, max_size=6),
    st.lists(st.floats(1e-9, 1e8), min_size=1, max_size=4),
    st.none() | st.text(max_size=20).filter(lambda t: "\0" not in t),
)
def test_what_autotvm_could_write_comes_back_equal(
    knobs: dict[str, Any], costs: list[float], code_hash: str | None
) -> None:
    entity = [[name, kind, value] for name, (kind, value) in knobs.items()]
    line = changed(
        config={"index": 3, "code_hash": code_hash, "entity": entity},
        result=[costs, 0, 0.5, 1.6e9],
    )
    record = read(line)[0]
    assert isinstance(record, ImportedRecord), record
    assert json.loads(b"".join(autotvm.write([record]))) == json.loads(line)
    # Made without a Config, the key is a Config's all the same.
    assert record.config.key == record.config_key
    assert decode(record.config_key, Config).digest == record.config_digest


def test_a_file_read_twice_is_the_same_records() -> None:
    assert identities(read(LOG)) == ALL
    assert max(ALL.values()) == 1
    assert identities(read(LOG + LOG)) == ALL + ALL
    # However its JSON is laid out.
    laid_out = b"".join(
        json.dumps(json.loads(line), sort_keys=True).encode() + b"\n" for line in LINES
    )
    assert identities(read(laid_out)) == ALL


def as_apply_history_best(rows: list[Any], model: str, keys: tuple[str, ...]) -> dict[str, str]:
    """The template that AutoTVM picks for each workload that has several, straight from the lines.

    Its rule: the best by model, else by the target's keys in order; among templates, the lowest mean.
    """
    best: dict[Any, Any] = {}
    for row in rows:
        spec, name, args, _ = row["input"]
        costs, error_no, *_ = row["result"]
        if error_no:
            continue
        mean = sum(costs) / len(costs)
        own = next(
            (w.partition("=")[2] for w in spec.split() if w.startswith("-model=")), "unknown"
        )
        row_keys = ("cuda", "gpu") if spec.startswith("cuda") else ("cpu",)
        for place in (
            *[("key", k) for k in row_keys],
            *([("model", own)] if own != "unknown" else []),
        ):
            key = (place, name, json.dumps(args))
            best[key] = min(best.get(key, mean), mean)
    choice: dict[str, tuple[float, str]] = {}
    for name, args in {(r["input"][1], json.dumps(r["input"][2])) for r in rows}:
        places = [("model", model), *[("key", k) for k in keys]]
        cost = next((best[p, name, args] for p in places if (p, name, args) in best), None)
        what = name.replace("_winograd", "")
        if cost is not None and (cost, name) < choice.get(what + args, (float("inf"), "")):
            choice[what + args] = (cost, name)
    return {what: name for what, (_, name) in choice.items()}


def selected(items: list[ImportedRecord], target: str) -> dict[str, str]:
    """The selections by `policy="tvm"` from imported records, under the same names."""
    by_workload: dict[Workload, list[ImportedRecord]] = {}
    for i in items:
        by_workload.setdefault(i.task.workload, []).append(i)
    found = {}
    for workload, records in by_workload.items():
        history = [
            History(
                implementation=r.task.implementation, config=r.config,
                mean_s=sum(r.samples_s) / len(r.samples_s), model=r.device_model,
                keys=r.task.target.keys,
            )
            for r in records if r.samples_s
        ]
        known = [
            Candidate(name, "1.0", 10, space=ConfigSpace([Knob("any", [0])]))
            for name in sorted({r.task.implementation for r in records})
        ]
        chosen = choose_as_tvm(workload, Target.parse(target), known, history)
        if chosen.reason.value == "measured":
            args, _ = _arguments(records[0])
            name = chosen.implementation.removeprefix("autotvm:")
            found[name.replace("_winograd", "") + json.dumps(args)] = name
    return found


def _arguments(record: ImportedRecord) -> Any:
    return json.loads(b"".join(autotvm.write([record])))["input"][2:]


# The whole of TopHub's log decides too, where there is one.
LOGS = [SAMPLES / "autotvm_0_2.log"]
if os.environ.get("PLEVEL_TEST_DATA"):
    LOGS.append(Path(os.environ["PLEVEL_TEST_DATA"]) / "tophub" / "cuda_v0.10.log")


@pytest.mark.parametrize("model", ["titanx", "1080ti", "tx2", "v100", "jetson-nano", "other"])
@pytest.mark.parametrize("log", LOGS, ids=lambda path: path.name)
def test_direct_against_winograd_is_decided_as_autotvm_decided_it(log: Path, model: str) -> None:
    data = log.read_bytes()
    ours = selected(read(data), f"cuda -model={model}")
    rows = [json.loads(line) for line in data.splitlines() if line.startswith(b"{")]
    theirs = as_apply_history_best(rows, model, ("cuda", "gpu"))
    assert ours == theirs
    if model == "other":
        picked = {name for what, name in theirs.items() if what.startswith("conv2d_nchw.cuda")}
        assert picked == {"conv2d_nchw.cuda", "conv2d_nchw_winograd.cuda"}


def test_targets_that_are_not_ours_are_kept_as_they_are() -> None:
    """Of TopHub's log for VTA: nothing is built for it here, and its records can be asked for."""
    data = (SAMPLES / "autotvm_vta.log").read_bytes()
    lines = [x for x in data.splitlines(keepends=True) if x.startswith(b"{")]
    items: list[Any] = list(autotvm.read(Source(io.BytesIO(data))))
    assert [type(i) for i in items] == [ImportedRecord] * len(lines)
    targets = {i.task.target.kind: i.task.target for i in items}
    assert targets.keys() == {"ext_dev", "llvm"}
    vta = targets["ext_dev"]
    assert (vta.keys, vta.model.partition("_")[0]) == (("vta", "cpu"), "pynq")
    assert Target.parse(vta.to_json()) == vta
    assert Target.parse(f"ext_dev -device=vta -keys=cpu -model={vta.model} -foreign") == vta
    assert list(autotvm.write(items)) == lines
    with pytest.raises(TargetError, match="unknown target 'ext_dev'"):
        Target.parse("ext_dev -device=vta")
    with pytest.raises(TargetError, match="foreign"):
        Target.parse("llvm -foreign")
