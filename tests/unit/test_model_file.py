"""Model files: what is read, and that a wrong one is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from plevel.cli.error import UsageError
from plevel.cli.model_file import read_model, write_model
from strategy.target import Target, cpu_target

ENTRY = '[[workloads]]\nop = "dense"\ninputs = ["data=float32[16,64]", "weight=float32[8,64]:const"]\n'


def write(folder: Path, text: str, name: str = "model.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    text = ENTRY + "weight = 12\n[workloads.attrs]\nunits = 8\n"
    (one,) = read_model(write(tmp_path, text)).workloads
    assert one.workload.key == 'dense(data=float32[16,64],weight=float32[8,64]:const){"units":8}'
    assert one.weight == 12
    inputs = ["weight=float32[8, 64]:const", "data=float32[16,64]"]
    entry = {"op": "dense", "inputs": inputs, "weight": 12, "attrs": {"units": 8}}
    as_json = json.dumps({"workloads": [entry]})
    assert read_model(write(tmp_path, as_json, "model.json")).workloads == (one,)


def test_a_workload_as_it_is_printed_keeps_its_epilogue(tmp_path: Path) -> None:
    key = (
        "dense(data=float32[16,64],weight=float32[8,64]:const)"
        "+bias_add(.,bias_add0.bias=float32[8]:const)+relu(.)"
    )
    (one,) = read_model(write(tmp_path, f"[[workloads]]\nworkload = '{key}'\nweight = 2\n")).workloads
    assert one.workload.key == key
    assert one.weight == 2
    again = write(tmp_path, write_model([one], "a network\nof two layers", "cpu -thread-pool=openmp -constants=cold"))
    assert again.read_text().startswith("# a network\n# of two layers\n")
    assert read_model(again).workloads == (one,)
    assert read_model(again).read_target(None, 1) == cpu_target().with_threads(1).in_network()


@pytest.mark.parametrize("weight", [1_234_567.0, 0.1])
def test_a_weight_keeps_its_digits(tmp_path: Path, weight: float) -> None:
    (one,) = read_model(write(tmp_path, ENTRY + f"weight = {weight!r}\n")).workloads
    again = write(tmp_path, write_model([one], "", "cpu"))
    assert [w.weight for w in read_model(again).workloads] == [weight]


def test_the_target_is_the_options_then_the_files_then_this_host(tmp_path: Path) -> None:
    plain = read_model(write(tmp_path, ENTRY))
    assert plain.read_target(None, None) == cpu_target()
    named = read_model(write(tmp_path, "target = 'llvm -mcpu=znver4 -num-cores=3'\n" + ENTRY))
    assert named.read_target(None, None) == Target.parse("llvm -mcpu=znver4 -num-cores=3")
    assert named.read_target("cpu", None) == cpu_target()
    wrong = read_model(write(tmp_path, "target = 'fpga'\n" + ENTRY))
    with pytest.raises(UsageError, match=r"model.toml: target: .*fpga"):
        wrong.read_target(None, None)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('workload = "relu(data=float32[8])"\nop = "relu"', "leave those out"),
        ('op = "relu"', "op and inputs, or workload"),
        ('workload = "relu"', "relu"),
        ('workload = "relu(data=float32[8])+dense(.)"', "dense"),
    ],
)
def test_an_entry_says_its_workload_once(tmp_path: Path, entry: str, said: str) -> None:
    with pytest.raises(UsageError, match=rf"workloads\[0\].*{said}"):
        read_model(write(tmp_path, f"[[workloads]]\n{entry}\n"))


def test_a_workload_that_is_there_twice_counts_with_both_weights(tmp_path: Path) -> None:
    found = read_model(write(tmp_path, ENTRY + "weight = 3\n" + ENTRY))
    assert [w.weight for w in found.workloads] == [4.0]


def test_an_operator_of_elsewhere_is_left_to_the_service(tmp_path: Path) -> None:
    path = write(tmp_path, ENTRY.replace('"dense"', '"elsewhere.op"'))
    with pytest.raises(UsageError, match=r"workloads\[0\].*'elsewhere.op'"):
        read_model(path)
    assert read_model(path, far=True).workloads[0].workload.op == "elsewhere.op"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "workloads"),
        ("workloads = []", "length >= 1"),
        ("[[workloads]]\nop = 'dense'", "inputs"),
        (ENTRY + "weight = 0", "weight"),
        (ENTRY + "weight = nan", "weight"),
        (ENTRY + "times = 2", "unknown field 'times': expected one of op, inputs, attrs, workload, weight"),
        (ENTRY + "wieght = 2", r"unknown field 'wieght', did you mean weight\?.*at `\$.workloads"),
        ("traget = 'cpu'\n" + ENTRY, r"unknown field 'traget', did you mean target\?"),
        (ENTRY.replace("64]:const", "63]:const"), r"workloads\[0\]: .*weight"),
        (ENTRY.replace("float32[16", "float33[16"), r"workloads\[0\]: --input data"),
        ("[[workloads]", "model.toml"),
        ("\0", "model.toml"),
        ("x = " + 5000 * "[", "model.toml"),
        ("x = " + 5000 * "9", "model.toml"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read_model(write(tmp_path, text))
    assert str(tmp_path / "model.toml") in str(caught.value)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_model(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="binary.toml"):
        read_model(tmp_path / "binary.toml")
