"""The command line as users meet it: its output and its exit codes.

Where the process does not matter, `called` runs the entry point in this one, which is ten times as quick.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from io import FileIO, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import typer
from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from plevel.cli.error import CommandError, UsageError
from plevel.cli.file import whole
from plevel.cli.location import Location, locate
from plevel.cli.main import _assemble, _explain, app
from plevel.cli.output import print_table
from plevel.cli.plain_text import PlainStream
from plevel.cli.select import _find_measured
from plevel.cli.transfer import _write_pair
from plevel.cli.tune_report import again_command, lock_command, target_text
from plevel.cli.tune_run import connection, follow, follow_run, missing_worker
from plevel.client import Client, UnreachableError
from plevel.direct import Direct
from plevel.extra import EmbeddedError
from plevel.pilots.engine import Pilot
from service.__main__ import main as serve
from service.formats import native
from strategy.compile.export import place
from strategy.fault import CompileError
from strategy.installed_code import code_identity
from strategy.op import all_ops
from strategy.record import RunRequest, RunState, RunStatus, RunWorkload, TaskStatus, convert
from strategy.select import Reason
from strategy.target import Target
from strategy.workload import Workload
from strategy.workload_text import EXAMPLE, parse_workload
from tests.command import run_command
from tests.limit import HANG_S
from tests.port import free_port
from tests.unit.test_formats_native import FAILED, FULL
from workers.array_file import write_array
from workers.doctor import Finding
from workers.scratch import ScratchError, temporary_folder

UNQUOTED = r" \w+=[^ ']*\["  # which zsh takes for a pattern
DATA = ("--input", "data=float32[128,768]")
WEIGHT = ("--input", "weight=float32[3072,768]:const")
DENSE = ("dense", *DATA, *WEIGHT)


def plevel(
    *arguments: str, home: Path, env: dict[str, str] | None = None, timeout: float = HANG_S
) -> subprocess.CompletedProcess[str]:
    """`plevel …` with its data and state directories in `home`, and nothing else set."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PLEVEL_")}
    clean |= {"XDG_DATA_HOME": str(home / "data"), "XDG_STATE_HOME": str(home / "state")}
    return subprocess.run(
        [sys.executable, "-m", "plevel", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        env=clean | (env or {}),
    )


Called = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Called:
    """`plevel …` as `plevel()` runs it in `tmp_path`, in this process."""
    for name in [n for n in os.environ if n.startswith("PLEVEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, run_command(*arguments), *capsys.readouterr())

    return call


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Each command with its name, those of groups included."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def app_context(command: Any) -> Any:
    return command.context_class(command)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("op", "ops"),
        ("tune den", "dense"),
        ("ops topk", "topk"),
        ("plot conv2d_backward_d", "conv2d_backward_data"),
        ("records --op den", "dense"),
        ("records --error out", "out_of_bounds"),
        ("records --pha", "--phase"),
        ("tune dense --target l", "llvm"),
        ("tune dense --implementation dense_p", "dense_pack.cpu"),
        ("measure dense -I dense_w", "dense_wgmma.cuda"),
        ("show softmax --implementation dense", ""),
        ("export --format k", "kernel_tuner"),
        ("show dense --as l", "llvm"),
        ("token create a --scope r", "read"),
    ],
)
def test_bash_completes(
    line: str, found: str, monkeypatch: pytest.MonkeyPatch, called: Called
) -> None:
    words = f"plevel {line}"
    monkeypatch.setenv("_PLEVEL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    done = called()
    assert (done.returncode, done.stderr, done.stdout.split()) == (0, "", found.split())


@pytest.mark.sample(33)
@pytest.mark.parametrize("name", all_ops())
def test_ops_shows_a_command_that_is_right(name: str, called: Called) -> None:
    found = json.loads(called("ops", name, "--json").stdout)
    assert (found["name"], found["signature"].partition("(")[0]) == (name, name)
    assert found["examples"]
    for example in found["examples"]:
        assert all(example["implementations"].values())
        plevel, tune, *rest = shlex.split(example["command"])
        assert (plevel, tune) == ("plevel", "tune")
        answer = called("select", *rest, "--json")
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["workload"]["op"] == name
    shown = called("ops", name).stdout
    for word in (found["examples"][0]["command"], *(a["name"] for a in found["attributes"])):
        assert word in shown


def test_a_workload_is_read_as_tables_print_it(called: Called) -> None:
    told = json.loads(called("select", *DENSE, "--json").stdout)
    text = "dense(data=float32[128,768],weight=float32[3072,768]:const)"
    assert json.loads(called("select", text, "--json").stdout) == told
    fused = parse_workload(f"{text}+relu(.)")
    answered = called("select", str(fused), "--json")
    assert convert(json.loads(answered.stdout)["workload"], Workload) == fused
    again = again_command(fused, "cpu", None, Location(database="sqlite:///a.db"))
    assert shlex.split(again)[:3] == ["plevel", "select", str(fused)]


def test_a_command_to_copy_is_taken_by_every_shell() -> None:
    """By zsh, too, which refuses a pattern that no file matches, as bash does with this option."""
    layer = parse_workload('conv2d(data=float32[1,64,56,56],weight=float32[64,64,3,3]:const){"padding":[1,1,1,1]}')
    for workload in (layer, parse_workload(f"{layer}+relu(.)")):
        command = again_command(workload, "llvm -mcpu=znver4", None, Location(database="sqlite:///a.db"))
        subprocess.run(["bash", "-O", "failglob", "-c", f": {command}"], check=True, timeout=HANG_S)


def test_a_kernel_of_another_tool_without_inputs_is_selected(called: Called, tmp_path: Path) -> None:
    line = {
        "kind": "foreign", "tool": "triton", "kernel": "k", "attrs": {"key": ["64"]}, "version": "1",
        "device_model": "NVIDIA H100", "candidates": [{"config": {"B": 1}, "samples_s": [1.0]}],
    }
    (tmp_path / "log").write_text(json.dumps(line) + "\n")
    assert called("import", str(tmp_path / "log")).returncode == 0
    (task,) = json.loads(called("coverage", "--json").stdout)
    for asked in (("triton.k", "-a", 'key=["64"]'), (task["workload"],)):
        answer = called("select", *asked, "--foreign", "-t", "cuda -arch=sm_90", "--json")
        assert json.loads(answer.stdout)["implementation"] == "triton:k", answer.stderr


def test_ops_lists_all(called: Called, tmp_path: Path) -> None:
    listed = json.loads(called("ops", "--json").stdout)
    assert [op["name"] for op in listed] == [*all_ops()]
    shown = called("ops").stdout
    assert all(f" {name}(" in shown for name in all_ops())
    of_dense = json.loads(called("ops", "dense", "-t", "cuda -arch=sm_80", "--json").stdout)
    offered = [e["implementations"]["cuda/sm_80"] for e in of_dense["examples"]]
    assert "dense_mma.cuda" in [c["name"] for found in offered for c in found]
    assert list(tmp_path.iterdir()) == []


def test_ops_needs_no_tvm(tmp_path: Path) -> None:
    without_tvm(tmp_path)
    done = plevel("ops", "dense", home=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert (done.returncode, "dense_pack.cpu" in done.stdout) == (0, True), done.stderr


@pytest.mark.parametrize(
    ("name", "command"),
    [pytest.param(*c, id=c[0]) for c in commands(typer.main.get_command(app))],
)
def test_every_command_has_an_example_and_json(name: str, command: Any) -> None:
    assert f"Example: plevel {name} " in f"{command.help} ".replace("\n", " ")
    assert re.search(UNQUOTED, command.help) is None
    assert "--json" in {option for p in command.params for option in p.opts}
    for p in command.params:
        choices = str(p.metavar).split("|")
        if len(choices) > 1 and str(p.metavar).islower():
            with app_context(command) as context:
                assert [c.value for c in p.shell_complete(context, "")] == choices
        assert not {"--output", "--out", "-o"} & {*p.opts} or p.opts == ["--out", "-o"]
    assert all(p.help or p.metavar for p in command.params), "a parameter without a word on it"
    named = (p for p in command.params if p.opts[0].startswith("-") and not p.is_flag)
    assert all(p.metavar for p in named), "an option whose value has no name"


def assert_one_line(done: subprocess.CompletedProcess[str], code: int, *words: str) -> None:
    """The command ended with `code` and one line on stderr that has all of `words`."""
    assert done.returncode == code, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    for word in ("plevel: ", *words):
        assert word in lines[0]
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["tune", "select"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(
            ("dens", *DATA), ["'dens'", "did you mean dense?", "known: "], id="unknown operator"
        ),
        pytest.param(("MatMul", *DATA), ["did you mean dense or batch_matmul?"], id="another framework's operator"),
        pytest.param(
            ("autotvm.dense", *DATA), ["known: those of 'plevel ops'", "select --foreign"],
            id="another tool's operator",
        ),
        pytest.param(("dense", *DATA), ["'weight' is missing"], id="missing input"),
        pytest.param(
            (*DENSE, "--input", "bias=float32[3]"), ["no input 'bias'"], id="unknown input"
        ),
        pytest.param(
            ("dense", *DATA, "--input", "weight=float32[3072,767]"),
            ["weight", "768"],
            id="wrong shape",
        ),
        pytest.param(
            ("dense", "--input", "data=float32[768]", *WEIGHT),
            ["data is float32[768]"],
            id="wrong rank",
        ),
        pytest.param(
            ("dense", "--input", "data=float33[128,768]", *WEIGHT),
            ["--input data", "'float33'", "float32"],
            id="unknown dtype",
        ),
        pytest.param(
            ("dense", "--input", "data=float32(1,2)", *WEIGHT), ["float32[128,768]"], id="bad type"
        ),
        pytest.param(
            ("dense", "--input", "data", *WEIGHT), ["data=float32[128,768]"], id="no type"
        ),
        pytest.param(
            ("dense", *DATA, "--input", "weight=float32[3072,768]:cons"), [":const"], id="bad mark"
        ),
        pytest.param(
            (*DENSE, "--attr", "units=-1"),
            ["units", "-1", "out of bounds"],
            id="attribute out of range",
        ),
        pytest.param((*DENSE, "--attr", "unit=1"), ["'unit'", "units"], id="unknown attribute"),
        pytest.param((*DENSE, "--attr", "units"), ["name=value"], id="attribute without value"),
        pytest.param(
            (*DENSE, "--attr", "units=1", "--attr", "units=2"), ["--attr units", "given twice"], id="attribute twice"
        ),
        pytest.param(
            (*DENSE, "--target", "cpux"), ["--target", "'cpux'", "llvm"], id="unknown target"
        ),
        pytest.param(
            (*DENSE, "--target", "llvm -mcpu=native"), ["--target", "'native'", "write cpu"], id="native processor"
        ),
        pytest.param((*DENSE, "--target", "cuda -arch=90"), ["--target", "-arch=sm_90"], id="a capability alone"),
        pytest.param(
            (*DENSE, "--target", "llvm -mcpu=znver4 -foo=1"),
            ["--target", "'foo'"],
            id="target option",
        ),
        pytest.param((*DENSE, "--threads", "0"), ["--threads"], id="no threads"),
        pytest.param((*DENSE, "--url", "farm:80"), ["--url", "http://"], id="not a URL"),
        pytest.param(
            (*DENSE, "--url", "http://x", "--database", "y"),
            ["--url", "--database"],
            id="both places",
        ),
        pytest.param((*DENSE, "--nonsense"), ["--nonsense"], id="unknown option"),
    ],
)
def test_usage_errors_name_the_field(
    command: str, arguments: tuple[str, ...], words: list[str], called: Called, tmp_path: Path
) -> None:
    done = called(command, *arguments)
    assert_one_line(done, 2, *words)
    assert list(tmp_path.iterdir()) == []  # nothing half-written


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(("tune", *DENSE, "--trials", "0"), ["--trials"], id="trials"),
        pytest.param(
            ("tune", "--run", "12", "--trials", "128"), ["--run 12", "leave --trials out"],
            id="a run and a budget",
        ),
        pytest.param(("tune", "dense", "--run", "12"), ["--run 12", "leave OP out"], id="a run and an operator"),
        pytest.param(
            ("tune", "--run", "12", "--url", "http://x"), ["--run 12", "plevel runs --url http://x"],
            id="a run of a service",
        ),
        pytest.param(("tune", "dense"), ["dense: its inputs", "--input", "'plevel ops dense'"], id="no inputs"),
        pytest.param(("tune", "model.toml"), ["'model.toml'", "--file"], id="a model file as an operator"),
        pytest.param(("build", "model.toml", "-o", "x"), ["'model.toml'", "--file"], id="a model file to build"),
        pytest.param(("extract", "model.toml"), ["'model.toml'", "file.pt2", "file.onnx"], id="extract a model file"),
        pytest.param(("ops", "con2d"), ["did you mean conv2d?", "'plevel ops'"], id="ops of no operator"),
        pytest.param(("ops", "-t", "cpu"), ["--target: lists the implementations"], id="ops of a target"),
        pytest.param(("ops", "dense", "-t", "cpux"), ["--target", "'cpux'"], id="ops of no target"),
        *(
            pytest.param((*command.split(), str(2**63)), [name, "not within"], id=f"number of {command}")
            for command, name in (
                ("records --run", "--run"), ("records --after", "--after"), ("export --task", "--task"),
                ("why", "JOB"), ("cancel", "RUN"), ("fleet resume", "PAUSE"), ("token revoke", "TOKEN"),
                ("model show", "MODEL"), ("tune --run", "--run"), ("tune --seed", "--seed"),
            )
        ),
        pytest.param(("tune", *DENSE, "--trials", "10000001"), ["--trials", "10000000"], id="many trials"),
        pytest.param(("tune", *DENSE, "--timeout", "0s"), ["--timeout 0s", "longer"], id="timeout"),
        pytest.param(("tune", *DENSE, "--timeout", "300"), ["--timeout '300'", "45s"], id="timeout without a unit"),
        pytest.param(("tune", *DENSE, "--seed", "-1"), ["--seed"], id="seed"),
        pytest.param(("db", "prune", "--older-than", "²d"), ["--older-than", "90d"], id="age"),
        pytest.param(("tune", *DENSE, "--tuner", "magic"), ["--tuner", "model"], id="tuner"),
        pytest.param(
            ("tune", *DENSE, "--webhook", "http://ci.lan/"),
            ["--webhook", "--url", "PLEVEL_WEBHOOK_HOSTS"],
            id="webhook of nobody",
        ),
        pytest.param(
            ("tune", *DENSE, "--implementation", "dense_gpu"),
            ["--implementation", "dense_pack.cpu"],
            id="implementation",
        ),
        pytest.param(
            ("tune", "dense", "--input", "data=float32[m,768]", *WEIGHT),
            ["--input", "m"],
            id="symbolic",
        ),
        pytest.param(("tune", *DENSE, "--wait"), ["--wait", "--url"], id="wait for nobody"),
        pytest.param(
            ("export", "--format", "vllm-moe", "--device", "NVIDIA H100", "-o", "/none", "--op", "dense"),
            ["--op", "vllm-moe", "leave it out"], id="part of a folder for vLLM",
        ),
        *(
            pytest.param(
                ("build", *DENSE, "-t", "cuda -arch=sm_80", "-o", out), [f"--out {out}", "file.cubin"],
                id=f"cubin to {out}",
            )
            for out in ("x.cu", "x.json")
        ),
        pytest.param(("select", *DENSE, "--policy", "best"), ["--policy", "tvm"], id="policy"),
        pytest.param(("records", "--phase", "final"), ["--phase", "confirm"], id="phase"),
        pytest.param(("records", "--error", "bad"), ["--error", "wrong_answer"], id="error kind"),
        pytest.param(("worker",), ["--url", "PLEVEL_URL"], id="worker for nobody"),
        pytest.param(
            ("measure", *DENSE, "-I", "dense_pack.cpu", "-c", "rows=4", "-c", "rows=8"),
            ["--config rows", "given twice"], id="knob twice",
        ),
        pytest.param(
            ("fleet", "scale", "--url", "http://x"), ["--slurm", "--pbs", "--kubernetes", "--local"], id="scale of what"
        ),
        pytest.param(
            ("fleet", "scale", "--slurm", "x", "--min", "3", "--max", "2", "--url", "http://x"),
            ["--min 3", "--max 2"], id="bounds of pilots",
        ),
        pytest.param(
            ("fleet", "scale", "--slurm", __file__, "--url", "http://me:word@x"), ["--url", "PLEVEL_TOKEN_FILE"],
            id="a password in command lines",
        ),
        pytest.param(
            ("fleet", "scale", "--slurm", __file__, "--url", "http://x"), ["test_cli.py: not a profile"],
            id="profile",
        ),
        pytest.param(("serve", "--port", "70000"), ["--port"], id="port"),
        pytest.param(("serve", "--auth", "none"), ["--auth", "token"], id="auth"),
        pytest.param(("serve", "--log", "xml"), ["--log", "json"], id="log of a service"),
        pytest.param(
            ("worker", "--url", "http://x", "--log", "xml"), ["--log", "json"], id="log of a worker"
        ),
        pytest.param(
            ("worker", "--url", "http://x", "--lifetime", "1 hour"), ["--lifetime '1 hour'", "30m"],
            id="lifetime",
        ),
        pytest.param(
            ("worker", "--url", "http://x", "--idle-exit", "0s"), ["--idle-exit 0s", "longer"], id="idle at once"
        ),
        pytest.param(("tune", *DENSE, "--timeout", "inf"), ["--timeout 'inf'", "45s"], id="for ever"),
        *(
            pytest.param((*command.split(), age), [flag, "longer than 30 years"], id=f"{flag} of {len(age)} characters")
            for age in ("12000d", "9" * 400 + "d", "1" * 5000 + "s")
            for command, flag in (
                ("worker --url http://x --lifetime", "--lifetime"), ("db prune --older-than", "--older-than"),
                (f"fleet scale --url http://x --local {__file__} --every", "--every"),
            )
        ),
        *(
            pytest.param(
                ("worker", "--url", "http://x", "--max-temperature", hottest), ["--max-temperature", "Celsius"],
                id=f"{hottest} degrees",
            )
            for hottest in ("nan", "inf", "-1")
        ),
        *(
            pytest.param(
                ("compile", "x.onnx", "-o", "x.so", "--dim", f"n={size}"), ["--dim", "batch=1"],
                id=f"size of {len(size)} digits",
            )
            for size in ("0" * 19 + "1" * 5000, "9" * 19)
        ),
        *(
            pytest.param((*command, "-o", "/dev/null"), ["--out /dev/null: is no file"], id=f"{command[0]} to no file")
            for command in (("build", *DENSE), ("build", *DENSE, "-t", "cuda -arch=sm_80"))
        ),
        pytest.param(("select", *DENSE, "--attr", f"units={5000 * '['}"), ["units"], id="deep attribute"),
        *(
            pytest.param((*command, "x" * 300), ["too long for the name of a file"], id=f"{command[0]} of a long name")
            for command in (("runs", "--database"), ("export", "-o"), ("db", "check", "--database"))
        ),
        *(
            pytest.param((*command.split(), f"--{name}="), [f"'--{name}'", "is empty"], id=f"empty {name}")
            for command, name in (
                ("db prune --older-than 1d --yes", "database"), ("runs", "url"), ("export", "namespace"),
                ("token create a --scope read", "namespace"),
            )
        ),
        *(
            pytest.param(
                (*command, "--namespace", "A B"), ["--namespace", "'A B'", "a-z"], id=f"namespace of {command[0]}"
            )
            for command in (
                ("runs",), ("plot", "dense"), ("show", *DENSE), ("build", *DENSE, "-o", "x.so"),
                ("compile", "x.pt2", "-o", "x.so"),
            )
        ),
        pytest.param(("import", "/"), ["/ is a folder"], id="import of a folder"),
        pytest.param(
            ("import", __file__, "--rejects", "/"), ["--rejects /", "file"], id="rejects to a folder"
        ),
        *(
            pytest.param(
                (*command.split(), "-o", out), [f"--out {out}: cannot be written there"],
                id=f"{command.partition(' -')[0]} to {out}",
            )
            for out in ("/", "/none/x.svg")
            for command in (
                "export", f"build {' '.join(DENSE)}", f"lock {__file__}", "plot 1",
                f"bundle make {' '.join(DENSE)} -t cuda -k /none", "bundle run /none -k /none",
            )
        ),
        *(
            pytest.param(
                (*command, flag, share), [f"{flag} '{share}': not a fraction"], id=f"{flag} {share}"
            )
            for command, flag in (
                (("tune", *DENSE), "--until-gain"), (("check", "--against", __file__), "--tolerance"),
            )
            for share in ("5", "-1%", "inf%", "nan", "a%", "")
        ),
        pytest.param(
            ("db", "purge", "--reason", "x", "--since", "2026-02-02", "--until", "2026-02-01"),
            ["--since", "--until", "earlier"],
            id="purge of no time",
        ),
        *(
            pytest.param(
                ("fleet", "pause", "--reason", "x", "--device", "y", *window), words, id=f"pause of {words[-1]}"
            )
            for window, words in (
                (("--until", "2020-01-01"), ["--until 2020-01-01", "has passed"]),
                (("--from", "2999-02-01", "--until", "2999-01-01"), ["--until", "earlier --from"]),
            )
        ),
        pytest.param(
            ("bundle", "run", "/none", "-k", "/none", "-o", "/none"), ["/none cannot be read"],
            id="no bundle",
        ),
        *(
            pytest.param(
                ("export", "--format", *form, "-o", out), [f"--out {out}", words], id=f"{form[0]} to {words}",
            )
            for form in (("metaschedule",), ("vllm-moe", "--device", "NVIDIA H100"))
            for out, words in ((__file__, "is a file: name a folder"), ("/dev/null/x/y", "cannot be written there"))
        ),
        pytest.param(
            ("compile", "x.onnx", "-o", "x.so", "--dim", "n=1", "--dim", "n=2"), ["--dim n", "given twice"],
            id="size twice",
        ),
        pytest.param(("nonsense",), ["nonsense", "'plevel --help'"], id="unknown command"),
        pytest.param(
            ("--url", "http://x", "runs"),
            ["No such option: --url", "options of a command follow its name", "'plevel --help'"],
            id="option before its command",
        ),
        pytest.param(
            ("measure", *DENSE), ["--implementation", "see 'plevel measure --help'"], id="missing option"
        ),
        *(
            pytest.param(command, ["inputs are missing", "'plevel ops dense'"], id=f"{command[0]} of no inputs")
            for command in (("select", "dense"), ("measure", "dense", "-I", "dense_pack.cpu"))
        ),
        pytest.param(
            ("select", "dense(data=float32[8,4],weight=float32[6,4])", *DATA), ["whole workload", "leave --input"],
            id="a workload in both forms",
        ),
    ],
)
def test_usage_errors_of_single_commands(
    arguments: tuple[str, ...], words: list[str], called: Called
) -> None:
    assert_one_line(called(*arguments), 2, *words)


@pytest.mark.parametrize("group", [(), ("db",)])
def test_a_group_without_a_command_lists_its_commands(group: tuple[str, ...], called: Called) -> None:
    done = called(*group)
    assert done.returncode == 2
    usage, *lines = done.stderr.splitlines()
    assert usage.startswith(" ".join(("Usage: plevel", *group)))
    assert any(line.strip().startswith("current " if group else "select ") for line in lines)


@pytest.mark.parametrize("group", [(), ("db",), ("fleet",)])
def test_the_line_on_a_command_is_whole(group: tuple[str, ...], called: Called) -> None:
    assert "..." not in called(*group, "-h").stdout.partition("\n")[2]


@pytest.mark.parametrize("command", ["measure", "db purge"])
def test_an_example_is_one_line_that_can_be_copied(command: str, called: Called) -> None:
    (example,) = (line for line in called(*command.split(), "-h").stdout.splitlines() if "Example:" in line)
    assert len(example) > 80


def test_a_run_that_is_not_there(called: Called, tmp_path: Path) -> None:
    assert_one_line(called("tune", "--run", "99"), 1, "run 99 does not exist")
    assert list(tmp_path.iterdir()) == []


def status(run_id: int, *workloads: str, interrupted: bool) -> RunStatus:
    tasks = tuple(
        TaskStatus(task_id=i, workload=w, implementation=name, version="1", plevel=10, tunable=True)
        for i, w in enumerate(workloads) for name in ("a", "b")
    )
    return RunStatus(
        id=run_id, state=RunState.RUNNING, target=Target.parse("llvm -mcpu=znver4"), trials=1,
        trials_done=0, created_at=0.0, interrupted=interrupted, message="told", tasks=tasks,
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["runs", "status"])
@pytest.mark.parametrize("fits", [True, False])
def test_runs_have_a_title_and_an_interrupted_one_a_command(
    command: str, fits: bool, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strategy.installed.can_measure", lambda run: fits)
    known = (status(2, "dense(x)", interrupted=False), status(1, *"abc", interrupted=True))
    monkeypatch.setattr(Direct, "runs", lambda self, limit, **wanted: known)
    monkeypatch.setenv("PLEVEL_NAMESPACE", "vision")
    database = tmp_path / "a b.db"
    place = ("--database", str(database))
    assert called("db", "upgrade", *place).returncode == 0
    shown = called(command, *place)
    assert shown.returncode == 0, shown.stderr
    for text in ("3 workloads", "dense(x)", "told", "interrupted"):
        assert text in shown.stdout
    (line,) = [line for line in shown.stdout.splitlines() if "was interrupted" in line]
    resume = f"  plevel tune --run 1 --database 'sqlite:///{database}'"
    assert line == (
        f"run 1 was interrupted; continue it with{resume}" if fits
        else "run 1 was interrupted, and needs other versions of implementations than are installed: repeat its "
        f"request with{resume}  and end it with  plevel cancel 1 --database 'sqlite:///{database}'"
    )


def test_status_names_live_runs_that_are_older_than_the_latest(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = (status(1, "dense(x)", interrupted=False),)
    monkeypatch.setattr(Direct, "runs", lambda self, limit, state=None: live if state == "live" else ())
    place = ("--database", str(tmp_path / "plevel.db"))
    assert called("db", "upgrade", *place).returncode == 0
    assert json.loads(called("status", *place, "--json").stdout)["running"] == [1]


def test_a_narrow_terminal_has_no_column_of_runs_messages(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = "dense(data=float32[16,64],weight=float32[32,64]:const)"
    known = (status(2, "relu(x)", interrupted=False), status(1, workload, interrupted=True))
    monkeypatch.setattr(Direct, "runs", lambda self, limit, **wanted: known)
    said = io.StringIO()
    narrow = Console(file=said, width=80, force_terminal=True, no_color=True, highlight=False)
    monkeypatch.setattr("plevel.cli.output.make_console", lambda **_: narrow)
    assert called("runs").returncode == 0
    shown = said.getvalue()
    assert shown.startswith("llvm/znver4/threads=1\n")
    assert " interrupted " in shown
    assert "without message: widen the terminal" in shown


@pytest.mark.parametrize("command", ["runs", "status"])
def test_an_interrupted_run_of_a_service_goes_on_by_itself(
    command: str, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "runs", lambda self, limit, **wanted: (status(1, "dense(x)", interrupted=True),))
    monkeypatch.setattr(Client, "workers", lambda self: [])
    shown = called(command, "--url", "http://farm:8765")
    assert shown.stdout.splitlines()[-1] == "run 1 waits for a service that tunes; it goes on by itself"
    assert "plevel tune --run" not in shown.stdout


def test_the_command_that_stops_a_run_that_is_no_longer_followed_is_right(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, said = status(12, "dense(x)", interrupted=False), io.StringIO()

    class Stopped:
        create_run = staticmethod(lambda request: run)

        def follow(self, run_id: int) -> Any:
            raise KeyboardInterrupt

    place = Location(url="http://farm:8765", namespace="team")
    client: Any = Stopped()
    request: Any = None
    with pytest.raises(KeyboardInterrupt):
        follow_run(client, None, request, Console(file=said, width=1000), place)
    (command,) = re.findall("'plevel (cancel.*)'", said.getvalue())
    monkeypatch.setattr(Client, "cancel", lambda self, run_id: run)
    stopped = called(*shlex.split(command))
    assert stopped.returncode == 0, stopped.stderr
    assert "run 12" in stopped.stdout


@pytest.mark.parametrize(
    ("words", "told"), [("the database does not answer: database or disk is full (log: x)", 1), ("ready (log: x)", 0)]
)
def test_a_run_that_stands_still_says_why(words: str, told: int, tmp_path: Path) -> None:
    """Not one that was interrupted before, and that its new service has yet to take."""
    runs = [replace(status(12, "dense(x)", interrupted=b), trials_done=n) for n, b in enumerate((False, True, True))]
    said = io.StringIO()
    client: Any = SimpleNamespace(create_run=lambda r: runs[0], follow=lambda run_id: iter(runs), runs=lambda n: [])
    log = tmp_path / "worker.log"
    log.write_text(
        "2026 INFO job 1\n2026 WARNING job 2 was released, and the worker waits for room on the disk: /tmp is full\n"
        "2026 WARNING the worker goes on: there is room on the disk again\n"
    )
    embedded: Any = SimpleNamespace(
        start_worker=lambda: None, check=lambda patience_s: None, last_words=lambda: words, worker_log=log
    )
    request: Any = SimpleNamespace(target=Target.parse("cpu"))
    console, place = Console(file=said, width=1000), Location(database="sqlite:////x.db")
    assert follow_run(client, embedded, request, console, place) == runs[-1]
    assert said.getvalue().count(f"goes on once its service can write again: {words}") == told
    assert [line for line in said.getvalue().splitlines() if "disk" in line and words not in line] == [
        "job 2 was released, and the worker waits for room on the disk: /tmp is full",
        "the worker goes on: there is room on the disk again",
    ]


@pytest.mark.parametrize("lives", [True, False])
def test_a_slow_service_of_the_command_itself_is_waited_for_while_it_lives(
    lives: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plevel.cli.tune_run.PAUSE_S", 0.0)
    done, said = replace(status(12, "dense(x)", interrupted=False), state=RunState.DONE), io.StringIO()
    answers: Iterator[Any] = iter([UnreachableError("no service answers (timed out)"), done])

    def answer(run_id: int) -> Iterator[RunStatus]:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        yield found

    def check() -> None:
        if not lives:
            raise EmbeddedError("the service ended (SIGKILL)")

    client: Any = SimpleNamespace(follow=answer)
    embedded: Any = SimpleNamespace(check=check)
    followed = follow(client, 12, Location(database="sqlite:////x.db"), Console(file=said, width=200), embedded)
    with nullcontext() if lives else pytest.raises(EmbeddedError, match="SIGKILL"):
        assert list(followed) == [done]
    assert ("sqlite:////x.db does not answer; trying again" in said.getvalue()) is lives


def test_a_run_whose_budget_is_on_record_is_reported() -> None:
    run, seen = replace(status(12, "dense(x)", interrupted=False), state=RunState.DONE), []
    client: Any = SimpleNamespace(create_run=lambda request: run)
    anything: Any = None
    assert follow_run(client, None, anything, Console(), Location(url="http://x:1"), seen.append) == run
    assert seen == [run]


def test_a_run_whose_output_nobody_reads_any_more_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    run = status(12, "dense(x)", interrupted=False)
    client: Any = SimpleNamespace(create_run=lambda request: run, follow=lambda run_id: iter([run]))
    anything: Any = None

    def end(run: RunStatus) -> NoReturn:
        raise SystemExit(1)  # as rich does for a closed pipe

    with pytest.raises(SystemExit):
        follow_run(client, None, anything, Console(), Location(url="http://x:1"), end)
    assert "Run 12 continues at http://x:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spec",
    [
        "cpu", "cpu -num-cores=1", "cpu -libs=", "cpu -thread-pool=openmp -constants=cold", "cuda -arch=sm_90",
        "llvm -mcpu=znver4 -mattr=-avx512f,+fma -num-cores=8 -model=\"Epyc's\"",
    ],
)
def test_the_next_command_of_a_resumed_run_has_a_target_that_is_read(spec: str) -> None:
    target = Target.parse(spec)
    workload = parse_workload(EXAMPLE)
    words = shlex.split(again_command(workload, target_text(target), None, Location(database="sqlite:///a.db")))
    assert Target.parse(words[words.index("--target") + 1]) == target


@pytest.mark.parametrize(
    ("target", "threads", "given"),
    [(None, None, []), ("llvm -mcpu=znver4", 2, ["--target", "llvm -mcpu=znver4", "--threads", "2"])],
)
def test_the_next_command_of_a_tuned_model_file_locks_its_answers(
    target: str | None, threads: int | None, given: list[str]
) -> None:
    told = shlex.split(lock_command(Path("a b.toml"), target, threads, Location(database="sqlite:///a.db")))
    assert told == ["plevel", "lock", "a b.toml", "-o", "plevel.lock", *given, "--database", "sqlite:///a.db"]


@pytest.mark.parametrize(
    ("command", "what"), [("cancel 9", "run"), ("fleet resume 9", "pause"), ("token revoke 9", "token")]
)
def test_without_a_database_there_is_nothing_to_change(command: str, what: str, called: Called) -> None:
    assert_one_line(called(*command.split()), 1, f"{what} 9 does not exist: the database does not exist yet")


@pytest.mark.parametrize(
    ("asked", "measured", "named"),
    [
        ("dense(data=float32[8,4],weight=float32[6,4])", True, "dense(data=float32[8,4],weight=float32[6,4]:const)"),
        ("dense(data=float32[8,4],weight=float32[6,4]:const)", False, "dense(data=float32[8,4],weight=float32[6,4])"),
        ("dense(data=float32[8,4],weight=float32[6,4]:const)", True, ""),
        ("softmax(data=float32[8,4])", True, ""),
    ],
)
def test_an_answer_without_measurements_names_the_workload_of_another_mark(
    asked: str, measured: bool, named: str
) -> None:
    def select(workload: Workload, target: Target) -> Any:
        constant = all(i.constant for i in workload.inputs[1:])
        return SimpleNamespace(reason=Reason.MEASURED if constant == measured else Reason.PLEVEL)

    records: Any = SimpleNamespace(select=select)
    assert _find_measured(records, parse_workload(asked), Target.parse("llvm")) == named


def test_a_task_that_is_not_there(called: Called) -> None:
    assert_one_line(called("plot", "99"), 1, "task 99 does not exist", "'plevel coverage'")


def test_a_curve_has_no_target_to_choose(called: Called) -> None:
    assert_one_line(called("plot", "12", "--target", "cpu"), 2, "--target: of an operator's heat map only")


def test_certificates_without_a_scheduler_are_refused(called: Called, tmp_path: Path) -> None:
    for flag in ("--tls-ca", "--tls-cert", "--tls-key"):
        given = ("model", "train", "dense", flag, str(tmp_path / "a.pem"))
        assert_one_line(called(*given), 2, "--dask: missing", flag)


def test_a_scaler_prints_a_json_document_on_each_line(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "a.toml"
    profile.write_text('target = "llvm -mcpu=znver4 -num-cores=2"\n')
    monkeypatch.setattr("plevel.extra.require", lambda extra, *modules: None)
    monkeypatch.setattr("plevel.pilots.engine.Engine", lambda *given: SimpleNamespace(pilots=tuple))
    monkeypatch.setattr(Client, "backlog", lambda self: {"llvm/znver4/threads=2": 3})
    monkeypatch.setattr(Client, "workers", lambda self: [])
    given = ("--local", str(profile), "--url", "http://farm:8765", "--dry-run", "--json")
    shown = called("fleet", "scale", *given)
    (line,) = shown.stdout.splitlines()
    assert (json.loads(line)["queued"], json.loads(line)["submit"]) == (3, 2)


def test_a_wrong_field_of_a_profile_is_told_the_right_one(called: Called, tmp_path: Path) -> None:
    profile = tmp_path / "a.toml"
    profile.write_text('target = "llvm -mcpu=znver4 -num-cores=2"\njob_per_pilot = 3\n')
    done = called("fleet", "scale", "--slurm", str(profile), "--url", "http://farm:8765")
    assert_one_line(done, 2, str(profile), "'job_per_pilot', did you mean jobs_per_pilot?")


def test_a_scaler_needs_a_folder_without_spaces(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "a.toml"
    profile.write_text('target = "llvm -mcpu=znver4 -num-cores=2"\n')
    monkeypatch.setattr("plevel.extra.require", lambda extra, *modules: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "my state"))
    done = called("fleet", "scale", "--slurm", str(profile), "--url", "http://farm:8765", "--dry-run")
    assert_one_line(done, 2, "my state/plevel/pilots", "without spaces in XDG_STATE_HOME")


def test_a_scaler_s_dry_run_cancels_only_what_stays_too_many(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = tmp_path / "a.toml"
    profile.write_text('target = "llvm -mcpu=znver4 -num-cores=2"\nidle_exit = "3m"\n')
    waiting = tuple(Pilot(str(n), f"p.{n}", waits=True) for n in range(2))
    monkeypatch.setattr("plevel.extra.require", lambda extra, *modules: None)
    monkeypatch.setattr("plevel.pilots.engine.Engine", lambda *given: SimpleNamespace(pilots=lambda: waiting))
    monkeypatch.setattr(Client, "backlog", lambda self: {})
    monkeypatch.setattr(Client, "workers", lambda self: [])
    shown = called("fleet", "scale", "--local", str(profile), "--url", "http://farm:8765", "--dry-run").stdout
    assert "would cancel 2 that have not started, if they are still too many in 3m\n" in shown
    assert "would submit 0, each with no options" in shown


def test_a_scaler_reads_a_token_that_is_replaced(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile, token = tmp_path / "a.toml", tmp_path / "token"
    profile.write_text('target = "llvm -mcpu=znver4 -num-cores=2"\n')
    token.write_text("first")
    monkeypatch.setenv("PLEVEL_TOKEN_FILE", str(token))
    asked: list[str] = []

    def backlog(self: Client) -> dict[str, int]:
        asked.append(self._http.headers["authorization"])
        token.write_text("second")
        if len(asked) == 2:
            raise KeyboardInterrupt
        return {}

    batch = SimpleNamespace(pilots=tuple, clean=tuple)
    monkeypatch.setattr("plevel.extra.require", lambda extra, *modules: None)
    monkeypatch.setattr("plevel.pilots.engine.Engine", lambda *given: batch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    monkeypatch.setattr(Client, "backlog", backlog)
    monkeypatch.setattr(Client, "workers", lambda self: [])
    given = ("fleet", "scale", "--local", str(profile), "--url", "http://farm:8765")
    assert called(*given).returncode == 130
    assert asked == ["Bearer first", "Bearer second"]
    token.write_text("no token")
    assert_one_line(called(*given), 1, f"PLEVEL_TOKEN_FILE {token}: no token file")


@pytest.mark.parametrize("command", ["tune", "select"])
def test_a_service_that_is_not_there(
    command: str, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    defaults = Client.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "patience_s", defaults["patience_s"] / 10)
    url = f"http://127.0.0.1:{free_port()}"
    done = called(command, *DENSE, "--url", url)
    assert_one_line(done, 1, url, "plevel serve", "correct its URL")


def test_no_worker_for_the_target_on_this_machine(called: Called, tmp_path: Path) -> None:
    done = called("tune", *DENSE, "--target", "llvm -mcpu=core2")
    assert_one_line(done, 1, "--target", "llvm/core2", "--url")
    assert_one_line(called("tune", *DENSE, "--target", "cuda -arch=sm_53"), 1, "--target", "cuda/sm_53", "--url")
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_that_this_machine_lacks_is_named(called: Called) -> None:
    for command in ("tune", "select"):
        assert_one_line(called(command, *DENSE, "--target", "cuda:99"), 1, "--target: cuda:99")
        assert_one_line(called(command, *DENSE, "--target", "cuda:99", "--threads", "2"), 2, "--threads")


def test_the_gpu_that_was_named_is_tuned_on(
    called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target, slots = Target.parse("cuda -arch=sm_90"), []

    def embedded(database: str, *, slot: str, threads: Any, early: Any) -> Any:
        slots.append(slot)
        return nullcontext(SimpleNamespace(url="http://127.0.0.1:9"))

    def stopped(*given: Any) -> NoReturn:
        raise CommandError("stopped")

    monkeypatch.setattr("plevel.embedded.Embedded", embedded)
    monkeypatch.setattr("workers.__main__.describe_cuda", lambda slot: SimpleNamespace(target=target))
    place: Any = SimpleNamespace(url=None, namespace=None, database="sqlite://")
    for asked in ("cuda:1", "cuda:", "cuda -arch=sm_90"):
        with connection(place, target, asked):
            pass
    assert slots == ["cuda:1", "cuda:0", "cuda:0"]
    slots.clear()
    monkeypatch.setattr("plevel.cli.tune.follow_run", stopped)
    file = tmp_path / "model.toml"
    file.write_text('target = "cuda:1"\n[[workloads]]\nop = "relu"\ninputs = ["data=float32[8]"]\n')
    assert_one_line(called("tune", "-f", str(file)), 1, "stopped")
    kept = RunRequest(workloads=(RunWorkload(workload=parse_workload("relu(data=float32[8])")),), target=target)
    monkeypatch.setattr(Location, "connect", lambda self: nullcontext(Direct(None)))
    monkeypatch.setattr(Direct, "request", lambda self, run: kept)
    assert_one_line(called("tune", "--run", "3", "-t", "cuda:2"), 1, "stopped")
    assert slots == ["cuda:1", "cuda:2"]
    assert_one_line(called("tune", "--run", "3", "-t", "cuda"), 2, "leave --target out")
    kept = replace(kept, target=Target.parse("cuda -arch=sm_80"))
    assert_one_line(called("tune", "--run", "3", "-t", "cuda:1"), 2, "--target cuda:1", "sm_80")
    nobody: Any = SimpleNamespace(url="http://farm", workers=list)
    assert "plevel worker --url http://farm --device cuda:0'" in missing_worker(nobody, target)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PLEVEL_NAMESPACE", "A B", ["PLEVEL_NAMESPACE", "a-z"]),
        ("PLEVEL_URL", "farm", ["PLEVEL_URL 'farm'", "http://"]),
    ],
)
def test_the_environment_is_named_where_it_is_wrong(
    variable: str, value: str, words: list[str], called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert_one_line(called("runs"), 2, *words)


def test_a_setting_that_is_no_number(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ("--database", str(tmp_path / "plevel.db"))
    assert called("db", "upgrade", *place).returncode == 0
    monkeypatch.setenv("PLEVEL_LEASE_S", "soon")
    assert_one_line(called("runs", *place), 2, "PLEVEL_LEASE_S", "number")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PLEVEL_PROXIES", "127.0.0.1, nonsense", "'nonsense' is no address or network"),
        ("PLEVEL_PORT", "x", "integer"),
        ("PLEVEL_WEBHOOK_SECRET", "x", "expected whsec_"),
    ],
)
def test_a_setting_of_the_service_is_named_where_it_is_wrong(
    variable: str, value: str, words: str, called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, value)
    done = called("serve", "--database", str(tmp_path / "plevel.db"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"plevel service: {variable}: ") and words in line


def test_a_misspelled_setting_of_the_service_is_named(
    called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLEVEL_LEASES_S", "3")
    monkeypatch.setenv("PLEVEL_TOKEN_FILE", "token")  # no setting of the service, nor like one
    monkeypatch.setenv("Plevel_Poll_S", "2")  # read in either case
    monkeypatch.setenv("PLEVEL_PORT", "x")  # ends it
    assert called("serve", "--database", str(tmp_path / "plevel.db")).returncode == 2
    (warning,) = caplog.messages
    assert "PLEVEL_LEASES_S is ignored" in warning and "did you mean PLEVEL_LEASE_S?" in warning


def test_postgresql_without_its_driver(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # importing it finds nothing
    done = called("runs", "--database", "postgresql://h/n")
    assert_one_line(done, 1, "psycopg", "pip install 'plevel[postgres]'")


def test_a_parameter_that_postgresql_lacks(called: Called) -> None:
    done = called("runs", "--database", "postgresql://127.0.0.1:1/x?nonsense=1")
    assert_one_line(done, 1, 'invalid connection option "nonsense"', "correct its URL")


def test_a_database_that_does_not_answer_is_named(called: Called) -> None:
    done = called("runs", "--database", "postgresql://me:geheim@127.0.0.1:1/x")
    assert_one_line(done, 1, "does not answer", "start the server of postgresql", "me:***@127.0.0.1:1/x")


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        (("--database", "postgresql://me:geheim@db/x"), ("database", "postgresql://me:***@db/x")),
        (("--url", "http://me:geheim@farm"), ("url", "http://me:***@farm")),
    ],
)
def test_the_status_has_no_password(
    place: tuple[str, str], shown: tuple[str, str], called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Location, "connect", lambda self: nullcontext(Direct(None)))
    for as_json in ((), ("--json",)):
        done = called("status", *place, *as_json)
        assert (done.returncode, "geheim" in done.stdout, shown[1] in done.stdout) == (0, False, True)
    told = json.loads(done.stdout)
    assert told[shown[0]] == shown[1]
    assert told[{"url": "database", "database": "url"}[shown[0]]] is None


def test_a_database_whose_port_is_no_number(called: Called) -> None:
    assert_one_line(called("runs", "--database", "postgresql://h:p/n"), 1, "postgresql://user@host")


@pytest.mark.parametrize("content", [b"", b"two words", b"\xff\xfe"])
def test_a_token_file_without_a_token(
    content: bytes, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    monkeypatch.setenv("PLEVEL_TOKEN_FILE", str(path))
    done = called("runs", "--url", f"http://127.0.0.1:{free_port()}")
    assert_one_line(done, 1, f"PLEVEL_TOKEN_FILE {path}")


@pytest.mark.parametrize("token", ["two words", "pl\u00e4vel", "plv_\x01"])
def test_a_token_that_is_none(token: str, called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLEVEL_TOKEN", token)
    assert_one_line(called("runs", "--url", f"http://127.0.0.1:{free_port()}"), 1, "PLEVEL_TOKEN: not a token")


@pytest.mark.sample(1)
@pytest.mark.parametrize("content", [b"two\nlines", b"\xff\xfe"])
def test_a_worker_does_not_show_what_is_no_token(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    done = plevel("worker", "--url", "http://127.0.0.1:1", "--token-file", str(path), home=tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "--token-file" in done.stderr and "lines" not in done.stderr


def test_serve_listens_where_the_environment_says_unless_an_option_does(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.2", 0)) as taken, socket.create_server(("127.0.0.3", 0)) as other:
        port, second = (str(listening.getsockname()[1]) for listening in (taken, other))
        monkeypatch.setenv("PLEVEL_HOST", "127.0.0.2")
        monkeypatch.setenv("PLEVEL_PORT", port)
        # Without the key it ends before it serves, whatever port it has.
        assert f"port {port} on 127.0.0.2 cannot be used" in called("serve", "--tls-cert", "x").stderr
        given = called("serve", "--tls-cert", "x", "--host", "127.0.0.3", "--port", second)
        assert f"port {second} on 127.0.0.3 cannot be used" in given.stderr


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("host", "a..b", "host a..b: no name of a host: name an address"),
        ("host", "a" * 5000, "no name of a host: name an address"),
        ("host", "a\nb", "host a b: "),
        ("host", "-x", "host -x: "),
        ("fd", "-1", "fd -1: no descriptor: pass a TCP socket"),
        ("fd", str(10**30), "no descriptor: pass a TCP socket"),
        ("fd", "9999", "fd 9999: Bad file descriptor: pass a TCP socket"),
    ],
)
def test_a_service_says_in_one_line_that_it_cannot_listen(
    option: str, value: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve([f"--{option}={value}", "--database", f"sqlite:///{tmp_path / 'x.db'}"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("plevel service: ") and said in line and len(line) < 200


def test_serve_takes_hyphens_for_a_host(called: Called, tmp_path: Path) -> None:
    done = called("serve", "--host", "--", "--database", f"sqlite:///{tmp_path / 'x.db'}")
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("plevel service: host --: ")


def test_logs_that_cannot_be_written(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(file))
    assert_one_line(called("tune", *DENSE), 1, f"log {file}", "XDG_STATE_HOME")


@pytest.mark.sample(1)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_what_an_encoding_lacks_is_a_question_mark(encoding: str, tmp_path: Path) -> None:
    done = plevel("select", *DENSE, home=tmp_path, env={"PYTHONIOENCODING": encoding})
    assert done.returncode == 0, done.stderr
    assert "? dense_" in done.stdout  # the arrow


_INTERRUPTED = """
import sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "plevel.cli.tune":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupt())
from plevel.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("command", "code"), [(("tune", "serve"), 130), (("--debug", "serve", "--port", "0"), 0)], ids=["tune", "serve"]
)
def test_ctrl_c_while_the_command_line_is_loaded_prints_no_traceback(command: tuple[str, ...], code: int) -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED, *command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"plevel": "plevel.__main__:main"}


def test_a_closed_output_is_no_defect(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "plevel", "runs"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False,
        env={**os.environ, "XDG_DATA_HOME": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_no_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """The socket of `plevel serve` did, and that of `plevel tune` was replaced in its service by this one's log."""
    found = tmp_path / "found"
    program = (
        "import os, sys\nfrom plevel.cli.main import _open_streams\n_open_streams()\n"
        "streams = [(os.readlink(f'/proc/self/fd/{n}'), os.get_inheritable(n)) for n in range(3)]\n"
        "open(sys.argv[1], 'w').write(repr(streams))\n"
    )
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", program, str(found)], check=True)
    assert found.read_text() == repr([("/dev/null", True)] * 3)


def test_a_full_output_is_an_error_of_one_line(tmp_path: Path) -> None:
    buffered = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "PYTHONUNBUFFERED": ""}
    for command in (("ops", "--json"), ("runs", "--json")):  # more than a buffer, and less
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "plevel", *command], stdout=full, stderr=subprocess.PIPE, text=True,
                check=False, env=buffered,
            )
        done.stdout = ""
        assert_one_line(done, 1, "the output cannot be written: No space left", "free some space")


@pytest.mark.parametrize(("command", "status"), [("runs", 1), ("nonsense", 2)])
def test_output_and_errors_that_cannot_be_written_leave_the_status(tmp_path: Path, command: str, status: int) -> None:
    """Python's own would be 120."""
    buffered = {**os.environ, "XDG_DATA_HOME": str(tmp_path), "PYTHONUNBUFFERED": ""}
    with Path("/dev/full").open("w") as full:
        words = [sys.executable, "-m", "plevel", command]
        assert subprocess.run(words, stdout=full, stderr=full, check=False, env=buffered).returncode == status


def test_what_is_written_to_a_pipe_or_a_link_leaves_it_one(called: Called, tmp_path: Path) -> None:
    log, file, link, pipe = (tmp_path / name for name in ("x.ndjson", "file", "link", "pipe"))
    log.write_bytes(b"".join(native.write([FULL])))
    assert called("import", str(log)).returncode == 0
    link.symlink_to(file)
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        for out in (link, pipe):
            done = called("export", "-o", str(out))
            assert done.returncode == 0, done.stderr
        assert file.read_bytes() == os.read(reads, 1 << 20) != b""
    finally:
        os.close(reads)
    assert link.is_symlink() and pipe.is_fifo()


def test_a_lock_answers_whatever_database_the_environment_names(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lock = tmp_path / "model.json", tmp_path / "plevel.lock"
    model.write_text(json.dumps({"workloads": [{"op": "dense", "inputs": [DATA[1], WEIGHT[1]]}]}))
    assert called("lock", str(model), "-o", str(lock)).returncode == 0
    monkeypatch.setenv("PLEVEL_DATABASE", str(tmp_path / "none.db"))
    assert_one_line(called("select", *DENSE), 1, "PLEVEL_DATABASE", "no such file")
    done = called("select", *DENSE, "--lock", str(lock))
    assert done.returncode == 0, done.stderr


def test_a_lock_s_answer_is_for_the_target_asked_for_and_names_the_entry(called: Called, tmp_path: Path) -> None:
    model, lock = tmp_path / "model.json", tmp_path / "plevel.lock"
    model.write_text(json.dumps({"workloads": [{"op": "dense", "inputs": [DATA[1], WEIGHT[1]]}]}))
    target = "llvm -mcpu=znver4 -num-cores=2"
    assert called("lock", str(model), "-o", str(lock), "--target", target).returncode == 0
    done = called("select", *DENSE, "--lock", str(lock), "--target", f"{target} -thread-pool=openmp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].endswith("  on llvm/znver4/threads=2/pool=openmp")
    assert "from the lock's entry for llvm/znver4/threads=2\n" in done.stdout


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://u:s3/c@h/n", "postgresql://u:***@h/n"),
        ("postgresql://:s3c@h:5432/n", "postgresql://:***@h:5432/n"),
        (
            "postgresql://h/n?user=u&password=s3c&sslpassword=s3c&sslmode=require",
            "postgresql://h/n?user=u&password=***&sslpassword=***&sslmode=require",
        ),
        ("postgresql://u@h/n", "postgresql://u@h/n"),
        ("sqlite:////home/u/a:b.db", "sqlite:////home/u/a:b.db"),
    ],
)
def test_no_password_is_shown(given: str, shown: str) -> None:
    assert Location(database=given).shown == shown


@pytest.mark.parametrize("flags", [("--target", "cpu"), ("--threads", "1"), ("--device", "a")])
def test_a_lock_is_compared_on_its_own_targets_and_devices(
    called: Called, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    model, lock = tmp_path / "model.json", tmp_path / "plevel.lock"
    model.write_text(json.dumps({"workloads": [{"op": "dense", "inputs": [DATA[1], WEIGHT[1]]}]}))
    assert called("lock", str(model), "-o", str(lock)).returncode == 0
    assert called("lock", str(lock), "--check").returncode == 0
    assert_one_line(called("lock", str(lock), "--check", *flags), 2, "--check", f"leave {flags[0]} out")


def test_an_import_says_why_an_entry_was_rejected(called: Called, tmp_path: Path) -> None:
    log, rejects = tmp_path / "tunableop.csv", tmp_path / "rejects"
    log.write_text("Validator,PT_VERSION,2.4.0\nGemmTunableOp_float_NT,nt_1_2_3,Default,0.1\n")
    done = called("import", str(log))
    assert (done.returncode, "0 new, 0 known, 1 rejected" in done.stdout) == (0, True)
    (line,) = done.stderr.splitlines()
    assert f"{log}: line 2: " in line and "--device-model" in line and "--rejects" in line
    assert called("import", str(log), "--rejects", str(rejects)).stderr == ""
    assert rejects.exists()
    # A log from elsewhere writes nothing else on a terminal; what no reader found has no line.
    header = next(native.write([FULL])).split(b"\n")[0]
    log.write_bytes(header + b'\n{"kind": "record", "\\u001b[31mred": 1}\n')
    assert r"line 2: Object contains unknown field `\x1b[31mred`" in called("import", str(log)).stderr
    log.write_bytes(b"".join(native.write([replace(FULL, measured_at=1e300)])))
    assert called("import", str(log)).stderr.startswith(f"{log}: measured_at: 1e+300 is no instant")


def test_a_log_is_not_emptied_as_its_own_rejects(called: Called, tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("no log\n")
    done = called("import", str(log), "--rejects", str(tmp_path / "." / "a.log"), "--database", str(tmp_path / "x.db"))
    assert_one_line(done, 2, "is one of the files to read: name another file")
    assert log.read_text() == "no log\n"


@pytest.mark.parametrize(
    "command", ["lock {}", "extract {}", "bundle run {} -k key", "bundle run bundle -k {}",
                f"bundle make {' '.join(DENSE)} -t cuda -k {{}}"],
)
def test_what_is_read_is_not_written_over(command: str, called: Called, tmp_path: Path) -> None:
    path, link = tmp_path / "model.onnx", tmp_path / "link"
    path.write_text("kept")
    link.symlink_to(path)
    for out in (path, link):
        done = called(*command.format(path).split(), "-o", str(out))
        assert_one_line(done, 2, f"--out {out}: is one of the files to read: name another file")
    assert path.read_text() == "kept"


def test_rejects_of_an_import_that_failed_are_kept(called: Called, tmp_path: Path) -> None:
    log, rejects = tmp_path / "a.log", tmp_path / "rejects"
    log.write_text("no log\n")
    rejects.write_text("of before\n")
    done = called("import", str(log), "--rejects", str(rejects), "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert rejects.read_text() == "of before\n"


def test_a_disk_that_is_full_names_the_file(tmp_path: Path) -> None:
    def write(error: OSError) -> None:
        with whole(tmp_path / "x.json") as file:
            file.write(b"{")
            raise error

    with pytest.raises(CommandError, match=r"x\.json cannot be written: No space .*: free some"):
        write(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(UnreachableError):  # an OSError, too: what is written could not be had
        write(UnreachableError("no service answers"))
    with pytest.raises(CommandError, match=r"none/x cannot be written: No such file"), whole(tmp_path / "none" / "x"):
        pass
    assert list(tmp_path.iterdir()) == []
    copied = OSError(errno.ENOSPC, "No space left on device", "/tmp/x/library.so", None, "out/m.so")
    assert _explain(copied) == (
        1, "out/m.so cannot be written: No space left on device: free some space, or write to another disk"
    )
    (tmp_path / "x.npy").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space") as array:
        write_array(tmp_path / "x.npy", np.zeros(1 << 16))
    assert array.value.errno == errno.ENOSPC


def test_a_file_that_is_no_log_keeps_the_others_from_nothing(called: Called, tmp_path: Path) -> None:
    line = {
        "kind": "foreign", "tool": "triton", "kernel": "k", "version": "1", "device_model": "H100",
        "candidates": [{"config": {"B": 1}, "samples_s": [1.0]}],
    }
    for name, text in (("a.txt", "no log"), ("b.json", json.dumps(line) + "\n")):
        (tmp_path / name).write_text(text)
    done = called("import", str(tmp_path / "a.txt"), str(tmp_path / "b.json"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "total: 1 read, 1 new, 0 known, 0 rejected")
    assert "a.txt has no known format" in done.stderr
    assert done.stderr.splitlines()[-1] == "plevel: 1 of 2 logs could not be read: see the lines above"


def test_an_import_goes_on_where_one_was_interrupted_before_its_database_had_a_schema(
    called: Called, tmp_path: Path
) -> None:
    log, empty = tmp_path / "good.ndjson", tmp_path / "x.db"
    log.write_bytes(b"".join(native.write([FULL])))
    empty.touch()
    done = called("import", str(log), "--database", str(empty))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 new" in done.stdout


def test_a_log_that_cannot_be_read_keeps_the_others_from_nothing(called: Called, tmp_path: Path) -> None:
    good = tmp_path / "good.ndjson"
    good.write_bytes(b"".join(native.write([FULL])))
    done = called("import", "/proc/self/mem", str(good))
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first == "plevel: /proc/self/mem cannot be read: Input/output error: name another file"
    assert "1 of 2 logs could not be read" in last
    assert f"{good}: 1 read, 1 new" in done.stdout


def test_names_of_others_command_no_terminal(called: Called, tmp_path: Path) -> None:
    line = {
        "kind": "foreign", "tool": "triton", "kernel": "k\x1b]52;c;eA==\x07", "version": "1", "device_model": "H\x9b2J",
        "candidates": [{"config": {"B": "\x1b[31m"}, "samples_s": [1.0]}, {"config": {"B": 1}, "error": "compile",
                        "message": "\x1b[2J"}],
    }
    (tmp_path / "log").write_text(json.dumps(line) + "\n")
    assert called("import", str(tmp_path / "log")).returncode == 0
    for command in (("coverage",), ("records",), ("plot", "1")):
        shown = called(*command).stdout
        assert r"k\x1b" in shown and not set(shown) & {"\x1b", "\x9b", "\x07"}
    written = StringIO()
    print("a\x1b]0;b\x07\n\tc\u202e", file=PlainStream(written))
    assert written.getvalue() == "a\\x1b]0;b\\x07\n\tc\\u202e\n"


def test_a_pipe_is_written_by_its_link() -> None:
    """Such as /dev/stdout, whose link names no file."""
    reader, writer = os.pipe()
    with whole(Path(f"/proc/self/fd/{writer}")) as file:
        file.write(b"all")
    os.close(writer)
    with os.fdopen(reader, "rb") as read:
        assert read.read() == b"all"


def test_a_build_without_room_says_so_first(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # of C compilers; Python looked for its folder before

    def full(dir: Path) -> FileIO:
        return FileIO("/dev/full" if dir == tmp_path else "/dev/null", "w")

    monkeypatch.setattr("workers.scratch.tempfile.TemporaryFile", full)
    for command in (("build", *DENSE, "-o", "x.so"), ("measure", *DENSE, "-I", "dense_pack.cpu"), ("tune", *DENSE)):
        done = called(*command)
        assert_one_line(done, 1, f"{tmp_path} cannot be written (No space left", "free some space", "TMPDIR")
    with pytest.raises(ScratchError, match=rf"^{tmp_path} cannot be written \(No space"), temporary_folder():
        raise CompileError("cc failed: No space left on device")
    (tmp_path / "none").touch()
    monkeypatch.setattr("shutil.copyfileobj", lambda *_: Path("/dev/full").write_text("x"))
    with pytest.raises(OSError, match="No space") as refused:
        place(tmp_path / "none", tmp_path / "x.so")
    assert _explain(refused.value)[1].startswith(f"{tmp_path}/x.so cannot be written: No space left")
    assert list(tmp_path.iterdir()) == [tmp_path / "none"]


def test_a_file_may_have_the_longest_name(tmp_path: Path) -> None:
    for name in ("x" * 255, "\N{SNOWMAN}" * 85):
        with whole(tmp_path / name) as file:
            file.write(b"all")
        assert (tmp_path / name).read_bytes() == b"all"
    (tmp_path / "made").touch()
    place(tmp_path / "made", tmp_path / f"{'x' * 252}.so")
    assert len(list(tmp_path.iterdir())) == 4


def test_a_bundle_that_is_not_timed_to_its_end_keeps_the_log_of_before(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lines(*given: object) -> Iterator[bytes]:
        yield b"{}\n"
        raise KeyboardInterrupt

    bundle, out = tmp_path / "round.bundle", tmp_path / "round.ndjson"
    bundle.touch()
    out.write_text("of before")
    for name, found in {
        "workers.bundle.read_key": None, "workers.bundle.unseal": None, "workers.sandbox.ForkServer": nullcontext(),
        "workers.__main__.describe_cuda": SimpleNamespace(slot="cuda:0"),
        "workers.cuda.runner.runner_on": SimpleNamespace(close=lambda: None),
    }.items():
        monkeypatch.setattr(name, lambda *_, found=found: found)
    monkeypatch.setattr("workers.bundle.run_bundle", lines)
    assert called("bundle", "run", str(bundle), "-k", "key", "-o", str(out)).returncode == 130
    assert sorted(tmp_path.iterdir()) == [bundle, out] and out.read_text() == "of before"


def test_a_key_that_cannot_be_written_leaves_no_file(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(size: int) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "bundle.key"
    with monkeypatch.context() as patched:
        patched.setattr("secrets.token_hex", fill)
        assert_one_line(called("bundle", "key", str(path)), 1, f"{path} cannot be written: No space left", "free some")
    assert not path.exists()
    assert_one_line(called("bundle", "key", str(tmp_path / "none" / "key")), 1, "none/key cannot be written: No such")


@pytest.mark.parametrize("columns", [40, 52])
def test_help_is_no_wider_than_the_terminal(columns: int, called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("", "fleet", "fleet pause", "tune", "extract", "export"):
        done = called(*name.split(), "--help")
        assert "Show this" in done.stdout
        for line in done.stdout.splitlines():
            is_whole = "Example: " in line or "|" in line  # to be copied, or choices, which are one word
            assert len(line) <= columns or is_whole


@pytest.mark.parametrize("command", ["rename", "move"])
def test_the_help_of_devices_says_where_their_identities_are(called: Called, command: str) -> None:
    assert "plevel workers --json" in " ".join(called("fleet", command, "--help").stdout.split())


def test_what_cannot_be_written_is_said_before_any_work(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that is read-only, for the administrator, too."""
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path and may(path, mode))
    model = tmp_path / "model.json"
    model.write_text(json.dumps({"workloads": [{"op": "dense", "inputs": [DATA[1], WEIGHT[1]]}]}))
    for command in (("lock", str(model)), ("build", *DENSE), ("export",), ("plot", "1")):
        out = str(tmp_path / "x.svg")
        assert_one_line(called(*command, "-o", out), 2, f"--out {out}: cannot be written there", "may write")
    assert called("lock", str(model), "-o", "/dev/null").returncode == 0


def test_a_pair_of_files_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    workload, tuned = b'["' + b"x" * 5000 + b'"]\n', b"[0, []]\n"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with pytest.raises(CommandError, match=r"database_workload\.json cannot be written: File too large"):
            _write_pair(tmp_path, iter([workload, tuned]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_links_that_lead_to_each_other_are_no_defect() -> None:
    code, line = _explain(RuntimeError("Symlink loop from '/tmp/x.json'"))
    assert code == 2 and line == "Symlink loop from '/tmp/x.json': name another file"


def test_a_file_that_no_command_expects_to_fail_is_named_with_a_remedy() -> None:
    code, line = _explain(PermissionError(errno.EACCES, "Permission denied", "/x/y"))
    assert (code, line) == (1, "/x/y: Permission denied: name another, or let this user use it")


def test_the_error_of_a_read_only_disk_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(tmp_path / f".x.{os.getpid()}.part"))

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(CommandError, match="x cannot be written: Read-only file system"), whole(tmp_path / "x"):
        pass


def test_a_library_is_not_written_over_by_its_header(called: Called, tmp_path: Path) -> None:
    done = called("build", *DENSE, "-o", str(tmp_path / "libdense.h"))
    assert_one_line(done, 2, "name a file.so: its header stands beside it")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_cannot_be_written_leaves_the_old_one(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, lock = tmp_path / "model.json", tmp_path / "plevel.lock"
    model.write_text(json.dumps({"workloads": [{"op": "dense", "inputs": [DATA[1], WEIGHT[1]]}]}))
    assert called("lock", str(model), "-o", str(lock)).returncode == 0
    before = lock.read_bytes()

    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    done = called("lock", str(model), "-o", str(lock), "--target", "llvm -mcpu=znver4")
    assert_one_line(done, 1, f"{lock} cannot be written: No space left")
    assert lock.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == [model, lock]


def test_more_threads_than_cores(called: Called) -> None:
    done = called("tune", *DENSE, "--threads", "4096")
    assert_one_line(done, 1, "4096 threads", "cores")


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", [("tune", *DENSE), ("worker", "--url", "http://127.0.0.1:1")])
def test_no_compiler(command: tuple[str, ...], tmp_path: Path) -> None:
    nothing = tmp_path / "bin"
    nothing.mkdir()
    done = plevel(*command, home=tmp_path, env={"PATH": str(nothing), "CC": "", "CXX": ""})
    assert_one_line(done, 1, "compiler", "install gcc")
    done = plevel(*command, home=tmp_path, env={"CC": "nonsense -m64"})
    assert_one_line(done, 1, "CC names 'nonsense -m64'", "no program")


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", [("tune", *DENSE), ("worker", "--url", "http://127.0.0.1:1")])
def test_the_worker_extra_is_missing(command: tuple[str, ...], tmp_path: Path) -> None:
    without_tvm(tmp_path)
    done = plevel(*command, home=tmp_path, env={"PYTHONPATH": str(tmp_path)})
    assert_one_line(done, 1, "'worker' extra", "pip install 'plevel[worker]'")


def without_tvm(folder: Path) -> None:
    """A folder for PYTHONPATH with which TVM cannot be found."""
    (folder / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "find = PathFinder.find_spec\n"
        "def find_spec(name, *rest):\n"
        "    return None if name.partition('.')[0] == 'tvm' else find(name, *rest)\n"
        "PathFinder.find_spec = find_spec\n"
    )


@pytest.mark.parametrize("command", ["current", "check"])
def test_asking_about_a_database_does_not_make_it(
    command: str, called: Called, tmp_path: Path
) -> None:
    done = called("db", command, "--database", str(tmp_path / "no.db"))
    assert_one_line(done, 1, "no.db does not exist", "plevel db upgrade")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("select", "dens", *DATA), 2), (("cancel", "99"), 1), (("runs", "--lim", "1"), 2), (("nonsense",), 2),
        (("db", "check", "--database", "no.db"), 1),
        (("import", os.fsdecode(b"\xff.log")), 2),  # no text: a question mark stands for it in both
    ],
)
def test_an_error_is_a_json_document_where_that_is_asked_for(
    command: tuple[str, ...], code: int, called: Called
) -> None:
    done = called(*command, "--json")
    assert done.returncode == code
    told = json.loads(done.stdout)
    assert told == {"error": done.stderr.removeprefix("plevel: ").rstrip("\n"), "exit_code": code}


def test_a_failure_with_a_result_prints_that_alone(called: Called, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Finding(what="load", found="9", remedy="stop other programs")]
    monkeypatch.setattr("workers.doctor.examine", lambda cores: found)
    done = called("doctor", "--json")
    assert done.returncode == 1
    assert [one["what"] for one in json.loads(done.stdout)] == ["load"]
    assert "less reliable because of: load" in done.stderr


def test_debug_shows_where_an_error_came_from(called: Called) -> None:
    done = called("select", "dens", *DATA, "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("plevel: unknown operator")


def test_select_answers_by_plevel_where_nothing_is_measured(
    called: Called, tmp_path: Path
) -> None:
    done = called("select", *DENSE, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["reason"] == "plevel"
    assert answer["level"] is None
    best = max((r for r in answer["rivals"] if r["valid"]), key=lambda r: r["plevel"])
    assert answer["implementation"] == best["implementation"]
    assert list(tmp_path.iterdir()) == []

    shown = called("select", *DENSE).stdout
    assert answer["explanation"] in shown
    assert "dense_gemv.cpu" in shown  # the rivals, with why one is not valid
    assert "data.shape[0] == 1" in shown


def test_a_processor_that_plevel_does_not_know_is_told_where_no_llvm_can_be_asked(
    called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plevel.cli.processor.find_spec", lambda name: None)
    done = called("select", *DENSE, "--target", "llvm -mcpu=znvr5", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["target"]["mcpu"] == "znvr5"
    (line,) = done.stderr.splitlines()
    assert line.startswith("plevel: --target: -mcpu=znvr5: a processor that plevel does not know, did you mean znver")
    assert "vectors of 16 bytes" in line
    for spec in ("llvm -mcpu=znver5", "llvm -mcpu=cortex-a72", "llvm", "cpu", "cuda -arch=sm_90"):
        assert called("select", *DENSE, "--target", spec).stderr == ""


@pytest.mark.parametrize("command", ["ops relu", "import {}"])
def test_a_mistyped_processor_of_what_is_listed_or_stored_is_told(
    command: str, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plevel.cli.processor.find_spec", lambda name: None)
    log = tmp_path / "good.ndjson"
    log.write_bytes(b"".join(native.write([FULL])))
    done = called(*command.format(log).split(), "--target", "llvm -mcpu=znvr5")
    assert done.returncode == 0
    assert "-mcpu=znvr5: a processor that plevel does not know" in done.stderr


def test_select_resolves_cpu_to_this_host(called: Called) -> None:
    done = called("select", *DENSE, "--target", "cpu", "--threads", "1", "--json")
    target = json.loads(done.stdout)["target"]
    assert target["kind"] == "llvm"
    assert target["mcpu"]
    assert target["num-cores"] == 1


@pytest.mark.parametrize("name", ["select", "fleet"])
def test_a_command_that_is_built_alone_is_as_among_all(name: str) -> None:
    alone, among_all = (CliRunner().invoke(one, [name, "--help"]) for one in (_assemble(name), app))
    assert alone.exit_code == 0
    assert alone.stdout == among_all.stdout


def test_completion_is_told_of_without_codes_of_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("shellingham.detect_shell", lambda: ("bash", "/bin/bash"))
    done = CliRunner().invoke(app, ["--install-completion"], color=True)
    assert done.stdout.startswith("bash completion installed in ")


def test_version(called: Called) -> None:
    done = called("--version")
    assert done.stdout == f"plevel {code_identity()}\n"
    assert done.returncode == 0


@pytest.mark.parametrize("command", [("runs",), ("coverage",), ("records",), ("workers",), ("status",)])
def test_an_empty_place_is_no_error(command: tuple[str, ...], called: Called) -> None:
    plain = called(*command)
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout
    json.loads(called(*command, "--json").stdout)


def test_a_narrow_terminal_folds_cells_between_words() -> None:
    said = io.StringIO()
    narrow = Console(file=said, width=60, force_terminal=True, no_color=True, highlight=False)
    columns = ("  implementation", "median", "state")
    rows = [
        (f"{mark} conv2d_nchw_winograd_{n}.cpu", "1.79 ms", "109 samples, compared by its upper end") for mark, n in
        (("→", "4x4"), (" ", "2x2"))
    ]
    print_table(narrow, columns, rows, right=("median",))
    shown = said.getvalue()
    assert all(row[0] in shown for row in rows)
    assert all(word in shown for word in ("implementation", "1.79 ms", *rows[0][2].split()))
    assert max(map(cell_len, re.sub("\x1b\\[[0-9;]*m", "", shown).split("\n"))) <= 60


def test_a_narrow_terminal_names_missing_columns_once() -> None:
    said = io.StringIO()
    narrow = Console(file=said, width=60, force_terminal=True, no_color=True, highlight=False)
    print_table(
        narrow, ("workload", "task", "message"), [(f"dense {i}", str(i), "told " * 20) for i in range(3)],
        above=("workload",), aside=("message",),
    )
    assert said.getvalue().count("widen the terminal") == 1


def test_a_narrow_terminal_has_no_columns_of_single_letters(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "x.ndjson"
    log.write_bytes(b"".join(native.write([FULL, FAILED])))
    assert called("import", str(log)).returncode == 0
    (task, *_) = json.loads(called("coverage", "--json").stdout)
    said = io.StringIO()
    narrow = Console(file=said, width=80, force_terminal=True, no_color=True, highlight=False)
    monkeypatch.setattr("plevel.cli.output.make_console", lambda **_: narrow)
    for command in ("coverage", "records"):
        assert called(command).returncode == 0
        shown = re.sub("\x1b\\[[0-9;]*m", "", said.getvalue())
        assert task["implementation"] in shown
        if command == "coverage":
            assert f"{task['workload']}, {task['target']}" in shown
        else:
            assert "where, message: widen the terminal, or use --json" in shown
        said.seek(said.truncate(0))


_AT = {"created_at": 0.0, "expires_at": None, "revoked_at": None, "starts_at": 0.0, "ends_at": None}


@pytest.mark.parametrize(
    ("command", "method", "row", "first"),
    [
        ("token list", "tokens", {"id": 3, "name": "lab" * 9, "scopes": ["read", "worker"]} | _AT, "token 3"),
        ("fleet pauses", "pauses", {"id": 3, "device": "3f2a/cpu:0-3", "reason": "fan " * 9} | _AT, "pause 3"),
        (
            "model list", "models",
            {"id": 3, "op": "dense", "target": "llvm", "version": 1, "records": 9, "workloads": 2,
             "accuracy": 0.9, "answers": True} | _AT, "model 3",
        ),
        ("ops dense", "", {}, "dense_pack.cpu"),
        ("ops", "", {}, "dense(data, weight, units=None, out_dtype=None)"),
    ],
)
def test_a_terminal_of_40_columns_has_a_line_for_each_cell(
    command: str, method: str, row: dict[str, Any], first: str, called: Called, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    narrow = Console(file=said, width=40, force_terminal=True, no_color=True, highlight=False)
    monkeypatch.setattr("plevel.cli.output.make_console", lambda **_: narrow)
    monkeypatch.setattr(Direct, method or "tokens", lambda self: [row])
    assert called(*command.split()).returncode == 0
    lines = said.getvalue().splitlines()
    assert lines[lines.index(first) + 1].startswith("  ")


def test_an_argument_that_is_no_text_is_no_defect() -> None:
    with pytest.raises(UnicodeEncodeError) as raised:
        "\udcff".encode()
    assert _explain(raised.value) == (2, "an argument is not text in UTF-8: '\\udcff': write it anew")
    with pytest.raises(UnicodeEncodeError) as raised:
        "\u00ef".encode("ascii")
    assert "UTF-8" not in _explain(raised.value)[1]


@pytest.mark.parametrize("command", [("runs",), ("serve",), ("worker", "--url", "http://127.0.0.1:1")])
def test_a_user_without_a_home(
    called: Called, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Such as the arbitrary one of a container."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "PLEVEL_DATABASE", "PLEVEL_URL"):
        monkeypatch.delenv(name, raising=False)

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    done = called(*command)
    assert done.returncode == 1
    assert "has no home folder: set HOME" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("signals_kept")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_no_part_of_a_file(
    kind: signal.Signals, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parts(self: Direct, form: str, **wanted: Any) -> Iterator[bytes]:
        yield b"{}"
        os.kill(os.getpid(), kind)
        yield b"{}"

    unlink = Path.unlink

    def unlink_late(self: Path, **options: Any) -> None:
        os.kill(os.getpid(), kind)  # a supervisor may signal the process and then its group
        unlink(self, **options)

    monkeypatch.setattr(Direct, "export_records", parts)
    monkeypatch.setattr(Path, "unlink", unlink_late)
    assert called("export", "-o", str(tmp_path / "x.ndjson")).returncode == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("signals_kept")
def test_a_service_stopped_while_it_loads_has_not_failed(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plevel.extra.require_service", lambda: os.kill(os.getpid(), signal.SIGTERM))
    done = called("serve", "--database", str(tmp_path / "plevel.db"))
    assert (done.returncode, done.stderr) == (0, "")


def test_coverage_lists_the_tasks(called: Called, tmp_path: Path) -> None:
    log = tmp_path / "vector_add.json"
    log.write_text(json.dumps({
        "device_name": "NVIDIA A100", "kernel_name": "vector_add", "problem_size": [1000],
        "tune_params_keys": ["x"], "tune_params": {"x": [1, 2]}, "objective": "time",
        "cache": {
            "1": {"x": 1, "time": 0.07, "times": [0.07, 0.07, 0.07]},
            "2": {"x": 2, "time": "RuntimeFailedConfig"},
        },
    }))
    assert called("import", str(log)).returncode == 0
    (task,) = json.loads(called("coverage", "--json").stdout)
    assert (task["trials"], task["failed"]) == (2, 1)
    assert task["best"]["median_s"] == pytest.approx(7e-5)
    op = task["workload"].partition("(")[0]
    assert called("plot", op, "--namespace", "other").returncode == 1
    assert called("plot", op, "--namespace", "default").returncode == 0
    assert task["target"] == "cuda/generic"
    for spec in ("cuda/generic", "cuda", "cuda -model=A/B", '{"kind": "cuda", "model": "A/B"}'):
        shown = called("coverage", "--target", spec).stdout
        for word in (task["workload"], task["implementation"], "70.0 µs"):
            assert word in shown
        assert called("plot", op, "--target", spec).returncode == 0
    assert_one_line(called("coverage", "--target", "cpux"), 2, "--target", "did you mean cpu?")
    assert called("coverage", "--op", "dense").stdout == "no task matches\n"
    for words, expected in ((f"{op.upper()} vector", [task]), ("vector_add softmax", [])):
        assert json.loads(called("coverage", "--workload-has", words, "--json").stdout) == expected
        listed = json.loads(called("records", "--workload-has", words, "--json").stdout)["records"]
        assert len(listed) == 2 * len(expected)
    assert called("runs", "--state", "live", "--workload-has", "dense").stdout == "no run matches\n"
    assert_one_line(called("runs", "--state", "ended"), 2, "--state", "expected one of live, running")
    found = json.loads(called("records", "--op", task["workload"].partition("(")[0], "--json").stdout)
    assert len(found["records"]) == 2
    assert called("records", "--op", "dense").stdout == "no record matches\n"


def test_records_are_shown_with_their_interval_or_their_message(called: Called, tmp_path: Path) -> None:
    timed = replace(FULL, samples_s=tuple(1e-3 + 1e-5 * i for i in range(9)))
    failed = replace(FAILED, message="segfault\n" + 1000 * "z")
    log = tmp_path / "x.ndjson"
    log.write_bytes(b"".join(native.write([timed, failed])))
    assert called("import", str(log)).returncode == 0
    shown = called("records").stdout
    assert "1.04 ms" in shown and re.search(r" ±\d\.\d% ", shown), shown
    assert "segfault" in shown and 200 < shown.count("z") < 300


def test_tokens_are_listed_with_their_namespaces(called: Called, tmp_path: Path) -> None:
    place = ("--database", str(tmp_path / "plevel.db"))
    for name, namespace in (("one", ("--namespace", "team")), ("every", ())):
        assert called("token", "create", name, "--scope", "read", *namespace, *place).returncode == 0
    rows = [line.split() for line in called("token", "list", *place).stdout.splitlines()]
    assert {row[1]: row[3] for row in rows if "read" in row} == {"one": "team", "every": "all"}


def test_what_is_done_is_told_as_json(called: Called, tmp_path: Path) -> None:
    def told(*arguments: str) -> Any:
        done = called(*arguments, "--database", str(tmp_path / "plevel.db"), "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    schema = told("db", "upgrade")["schema"]
    assert schema == told("db", "current")["schema"] == told("db", "check")["schema"]
    copy = tmp_path / "copy.db"
    assert told("db", "backup", str(copy))["bytes"] == copy.stat().st_size
    back = {"done": False, "schema": "0006", "cannot": {}, "lost": {}}
    assert told("db", "downgrade", "0006") == back
    assert told("db", "downgrade", "0006", "--yes") == back | {"done": True}
    assert told("db", "current")["schema"] == "0006"
    older = tmp_path / "older.db"  # a copy from before an upgrade, by the plevel that is to upgrade it
    assert told("db", "backup", str(older))["bytes"] == older.stat().st_size
    assert told("db", "upgrade")["schema"] == schema
    nothing = {"done": False, "records": 0}
    assert nothing.items() <= told("db", "prune", "--older-than", "1d").items()
    assert told("db", "purge", "--reason", "x", "--worker", "w") == {
        **nothing, "advice": 0, "networks": 0,
    }
    made = told("token", "create", "a", "--scope", "read")
    assert told("token", "revoke", str(made["id"])) == {"revoked": made["id"]}
    assert [t["id"] for t in told("token", "list")] == [made["id"]]
    model = tmp_path / "model.json"
    inputs = [DATA[1], WEIGHT[1]]
    model.write_text(json.dumps({"workloads": [{"op": "dense", "inputs": inputs}]}))
    lock = str(tmp_path / "plevel.lock")
    assert told("lock", str(model), "-o", lock) == {"lock": lock, "selections": 1, "measured": 0}
    assert told("lock", "--check", lock) == {"selections": 1, "changed": []}
    answered = called("select", *DENSE, "--lock", lock)
    assert (answered.returncode, "reason     plevel" in answered.stdout) == (0, True), answered.stderr


def test_the_default_name_of_a_library_is_one_that_c_leaves_free() -> None:
    from plevel.cli.deploy import default_name

    names = [default_name(Path(file)) for file in ("libmodel.so", "swin_t.so", "a-b.so")]
    assert names == ["plevel_model", "plevel_swin_t_model", "plevel_a_b"]


def test_an_interrupt_while_a_class_is_made_leaves_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text("""
import sys
import plevel.__main__
import plevel.cli.main

def run():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        sys.exit(3)

plevel.cli.main.main = run
plevel.__main__.main()
""")
    assert subprocess.run([sys.executable, "-m", "interrupted"], check=False, cwd=tmp_path).returncode == 3


@pytest.mark.parametrize("url", ["http://", "https:///", "ftp://farm"])
def test_an_address_without_a_host_is_named_as_it_was_given(url: str) -> None:
    with pytest.raises(UsageError, match=f"^--url {url!r}: expected http://host:port"):
        locate(url, None)
