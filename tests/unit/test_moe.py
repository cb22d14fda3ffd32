"""vLLM's `fused_moe` files: a row for each usual number of tokens, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plevel.cli.moe import TOKENS, tabulate
from tests.command import run_command

DATA = Path(__file__).parents[1] / "data" / "foreign"
SAMPLE = "E=128,N=384,device_name=NVIDIA_H20-3e.json"
H20, H100, A100 = "NVIDIA H20-3e", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


def kernel(m: Any, block: int, model: str, took: float | None = None, **attrs: Any) -> dict[str, Any]:
    text = json.dumps({"E": 8, "N": 64, "M": m, **attrs}, separators=(",", ":"), sort_keys=True)
    best = {"config": {"BLOCK_SIZE_M": block}, "device_model": model, "median_s": took}
    return {"workload": f"vllm.fused_moe(){text}", "best": best}


def chosen_by_vllm(rows: dict[int, Any], m: int) -> Any:
    """Return the row of vLLM's own look-up."""
    return rows[min(rows, key=lambda k: abs(k - m))]


def test_each_usual_number_is_pinned_and_its_origin_told() -> None:
    known = [
        kernel(1, 16, H20), kernel(64, 32, H20, 1e-3), kernel(64, 99, H20), kernel(64, 98, H100, 1e-9),
        kernel(4096, 128, H100), kernel(4096, 64, H100, 1e-3), kernel(4096, 256, A100, 1e-9),
    ]
    ((name, rows),) = tabulate(known, H20)
    assert name == "E=8,N=64,device_name=NVIDIA_H20-3e.json"
    assert tuple(rows) == TOKENS
    told = {m: (r.origin, r.config["BLOCK_SIZE_M"]) for m, r in rows.items()}
    assert told[1] == ("advised", 16)
    assert told[64] == ("measured", 32)
    assert told[4096] == ("transferred", 64)
    assert told[2] == ("predicted", 16)
    assert told[16] == ("predicted", 32)
    assert (rows[16].tokens, rows[4096].device_model) == (64, H100)
    # By difference 1536 is nearer to 64 than to 4096, by ratio it is not.
    sparse = {m: r for m, r in rows.items() if r.origin != "predicted"}
    assert chosen_by_vllm(sparse, 1536).config["BLOCK_SIZE_M"] == 32
    assert chosen_by_vllm(rows, 1536).config["BLOCK_SIZE_M"] == 64


def test_other_architectures_and_malformed_shapes_give_no_rows() -> None:
    bad = [
        kernel(1, 16, A100), kernel("1", 16, H20), kernel(0, 16, H20), kernel(True, 16, H20),
        *(kernel(1, 16, H20, dtype=name) for name in ("../../x", "a\0b", "x" * 300)),
        kernel(1, 16, H20, down=True), kernel(1, 16, H20, E="x"), {**kernel(1, 1, H20), "best": None},
    ]
    assert list(tabulate(bad, H20)) == []
    # Of a device whose architecture is not known, only its own rows count.
    assert list(tabulate([kernel(1, 16, H20)], "Unknown GPU")) == []
    ((name, _),) = tabulate([kernel(1, 16, H20, dtype="fp8_w8a8", block_shape="[128,128]")], H20)
    assert name == "E=8,N=64,device_name=NVIDIA_H20-3e,dtype=fp8_w8a8,block_shape=[128,128].json"


def test_the_command_writes_what_vllm_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--database", str(tmp_path / "p.db")]
    assert run_command("import", str(DATA / SAMPLE), *place) == 0
    out = tmp_path / "moe"
    export = ["export", "--format", "vllm-moe", "-o", str(out), *place]
    assert run_command(*export, "--device", H20) == 0
    written = {int(m): row for m, row in json.loads((out / SAMPLE).read_text()).items()}
    original = {int(m): row for m, row in json.loads((DATA / SAMPLE).read_text()).items()}
    assert {m: written[m] for m in original} == original
    assert set(written) == set(TOKENS)
    origins = json.loads((out / "provenance.json").read_text())[SAMPLE]
    assert origins["512"] == {"origin": "advised", "device_model": H20}
    assert origins["256"] == {"origin": "predicted", "device_model": H20, "tokens": 512}
    assert "3 advised" in capsys.readouterr().out
    # A sibling has its own file, of transferred rows; what is written can be read again.
    assert run_command(*export, "--device", H100) == 0
    sibling = SAMPLE.replace("NVIDIA_H20-3e", "NVIDIA_H100_80GB_HBM3")
    assert json.loads((out / "provenance.json").read_text())[sibling]["1"]["origin"] == "transferred"
    assert run_command(*export, "--device", A100) == 1
    assert "no fused_moe configuration is known for NVIDIA A100" in capsys.readouterr().err
    assert run_command(*export) == 2
    assert run_command("export", "--device", H20, *place) == 2
