"""Every operator × every kind of target: something that can be built for it, or one clear error."""

from __future__ import annotations

import pytest

from strategy.op import OpError, all_ops
from strategy.op_strategy import candidates, find_implementation
from strategy.select import NO_RECORDS, SelectionError, select
from strategy.select.dispatch import dispatch
from strategy.target import BUILT, KINDS, Target
from strategy.workload import Workload
from tests.command import run_command

# Of targets that are reached by one key alone, too.
BUILT_FOR = {"llvm": "cpu", "cuda -arch=sm_90": "cuda", "cuda -arch=sm_90 -keys=gpu": "cuda"}
NOT_BUILT = [
    *(kind for kind in KINDS if kind not in BUILT),
    *(f"{kind} -keys={key}" for kind in KINDS for key in ("cpu", "cuda", "gpu")
      if key not in BUILT.get(kind, ())),
    "metal -keys=another",
]


def example(name: str) -> Workload:
    first = all_ops()[name].examples[0]
    return Workload.make(name, first.inputs, first.attrs)


@pytest.mark.parametrize("name", all_ops())
def test_what_is_selected_is_for_the_targets_kind(name: str) -> None:
    for text, suffix in BUILT_FOR.items():
        target = Target.parse(text)
        found = select(example(name), target, NO_RECORDS)
        rivals = {r.implementation.rpartition(".")[2] for r in found.rivals}
        assert rivals <= ({suffix, "generic"} if suffix == "cpu" else {suffix})
        assert find_implementation(example(name), target, found.implementation)


@pytest.mark.sample(6)
@pytest.mark.parametrize("text", NOT_BUILT)
def test_where_nothing_can_be_built_one_error_says_what_there_is(text: str) -> None:
    target = Target.parse(text)
    for name in all_ops():
        workload = example(name)
        assert candidates(workload, target) == []
        for policy in ("plevel", "tvm"):
            with pytest.raises(SelectionError) as caught:
                select(workload, target, NO_RECORDS, policy=policy)
            assert str(caught.value) == (
                f"no implementation of {name} can be built for {target}: "
                "it has implementations for targets of kind llvm and cuda"
            )
        with pytest.raises(OpError, match=f"{name} has no implementation 'x' on .*: it has: none"):
            find_implementation(workload, target, "x")


def test_a_table_for_such_a_target_is_the_same_error() -> None:
    symbolic = Workload.make("dense", {"data": "float32[m,8]", "weight": "float32[6,8]"})
    with pytest.raises(SelectionError, match="no implementation of dense can be built for metal/generic"):
        dispatch(symbolic, Target.parse("metal"), NO_RECORDS)


def test_another_packages_key_is_answered_for_by_that_package(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = all_ops()["dense"].get_attr("FTVMStrategy")
    monkeypatch.setattr(strategy, "_by_key", dict(strategy._by_key))
    for key, text in (("metal", "metal"), ("mali", "opencl -device=mali"), ("npu", "c -keys=npu,cpu")):
        strategy.register(key, strategy.default)
        assert candidates(example("dense"), Target.parse(text))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in BUILT])
@pytest.mark.parametrize("op", ["dense", "relu"])
def test_the_command_line_says_it_and_ends_with_1(
    kind: str, op: str, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    inputs = [f"-i{i.name}={i.type}" for i in example(op).inputs]
    for command in (["select", op, *inputs], ["build", op, *inputs, "-o", str(tmp_path / "lib.so")]):
        assert run_command(*command, "--target", kind) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"plevel: no implementation of {op} can be built for {kind}/generic")
        assert said.count("\n") == 1
