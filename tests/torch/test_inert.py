"""Files of exported programs that hold code: none of it runs."""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the torch extra is not installed")

from torch import nn

from plevel.torch.exported import import_program, run_program
from plevel.torch.program import load_program
from strategy.network.graph import NetworkError

pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec:FutureWarning")  # PyTorch's, of itself


class Sized(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(3, 3)

    def forward(self, x):
        return self.function(self.linear(x))


class Code:
    """An object that makes a folder where it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def saved(path: Path, function=lambda x: x * 2) -> None:
    sizes = ({0: torch.export.Dim.AUTO},)
    torch.export.save(torch.export.export(Sized(function), (torch.ones(8, 3),), dynamic_shapes=sizes), path)


def changed(path: Path, change, **more: bytes) -> Path:
    """A copy, of whose members some are others; and more members of the folder of constants."""
    found = path.with_name("changed.pt2")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(found, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
        root = old.namelist()[0].partition("/")[0]
        for name, data in more.items():
            new.writestr(f"{root}/data/constants/{name}", data)
    return found


def test_code_among_the_example_inputs_does_not_run(tmp_path: Path) -> None:
    saved(tmp_path / "model.pt2")
    code = pickle.dumps((Code(tmp_path / "made"),), 2)
    program = load_program(changed(tmp_path / "model.pt2", lambda n, data: code if "sample_inputs" in n else data))
    assert not (tmp_path / "made").exists()
    _, plain = import_program(program)
    found = run_program(program, plain, (), (8,))  # of random numbers
    (given,), (made,) = found.inputs, found.outputs
    assert given.shape == (8, 3)
    torch.testing.assert_close(torch.from_numpy(made), program.module()(torch.from_numpy(given)))


def test_code_in_place_of_a_weight_does_not_run(tmp_path: Path) -> None:
    saved(tmp_path / "model.pt2")

    def change(name: str, data: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            return data.replace(b'"use_pickle":false', b'"use_pickle":true').replace(
                b'"use_pickle": false', b'"use_pickle": true'
            )
        return pickle.dumps(Code(tmp_path / "made"), 2) if "/weights/weight_" in name else data

    with pytest.raises(NetworkError, match="Weights only load failed"):
        load_program(changed(tmp_path / "model.pt2", change))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["opaque_obj_0", "custom_obj_0"])
def test_objects_among_the_constants_are_not_unpickled(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "model.pt2")
    entry = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}

    def change(member: str, data: bytes) -> bytes:
        return json.dumps({"config": {"it": entry}}).encode() if member.endswith("constants_config.json") else data

    with pytest.raises(NetworkError, match="holds code or Python objects"):
        load_program(changed(tmp_path / "model.pt2", change, **{name: pickle.dumps(Code(tmp_path / "made"))}))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "size", ["__import__('os').mkdir('made')", "s0.func.mro()", "1 .real", "preview(s0)", "0" * 60 + "!?"]
)
def test_sizes_are_expressions_of_sizes_alone(size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "model.pt2")

    def change(name: str, data: bytes) -> bytes:
        text = re.sub(r'("expr_str": *")[^"]*"', lambda found: f'{found[1]}{size}"', data.decode("latin1"))
        return text.encode("latin1") if name.endswith("model.json") else data

    with pytest.raises(NetworkError, match="no expression of sizes"):
        load_program(changed(tmp_path / "model.pt2", change))
    assert not (tmp_path / "made").exists()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[::3].sum(1), lambda x: nn.functional.max_pool2d(x[None], 3, 2, 1, ceil_mode=True),
        lambda x: x[: min(x.shape[0], 40)], lambda x: x.unfold(0, 2, 2), lambda x: x * (x.shape[0] / 3.5),
        lambda x: torch.cat([x, x]).reshape(-1)[:-1], lambda x: torch.chunk(x, 3)[1], lambda x: x[x > 0],
        lambda x: nn.functional.interpolate(x[None, None], scale_factor=1.5),
        lambda x: x.view(-1, 6) if x.shape[0] % 2 == 0 else x,
    ],
)
def test_programs_of_symbolic_sizes_are_read(function, tmp_path: Path) -> None:
    saved(tmp_path / "model.pt2", function)
    assert load_program(tmp_path / "model.pt2").example_inputs is not None


def test_a_type_whose_name_python_cannot_have_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "model.pt2")

    def change(name: str, data: bytes) -> bytes:
        return data.replace(b"builtins.tuple", rb"a.b\\u0000c") if name.endswith("model.json") else data

    with pytest.raises(NetworkError, match="not an exported program"):
        load_program(changed(tmp_path / "model.pt2", change))
