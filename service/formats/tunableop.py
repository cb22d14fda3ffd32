"""PyTorch's TunableOp results: CSV lines `operator,parameters,solution,milliseconds`, the time optional.

Leading `Validator,NAME,VALUE` lines are the environment; one names the architecture of an AMD device. The extents
of a GEMM are those that BLAS sees, in columns: n, m and k of PyTorch's row-major operands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from service.formats.entry import ImportedRecord, Item, Reason, RejectError
from service.formats.foreign import Place, key_of, make_task
from service.formats.kernel_tuner import seconds
from service.formats.source import Source, check
from strategy.target import Target

# Without steps back, which took quadratic time in a field of blanks.
LINE = re.compile(rb"Validator,[A-Z_]+,|(?=\w*TunableOp_\w)\w++,[^,\n]++,[^,\n]++(?:,[^,\n]*+)?\s*$")
_EXTENTS = re.compile(r"([ntc]{2})_(\d{1,12})_(\d{1,12})_(\d{1,12})(?:_(.+))?")


def read(source: Source, target: Target | None = None, device_model: str = "") -> Iterator[Item]:
    """The solutions of a file: records where there is a time, else advice."""
    environment: dict[str, str] = {}

    def line(text: bytes) -> ImportedRecord | None:
        check(text)
        op, *fields = [f.strip() for f in text.decode().split(",")]
        if op == "Validator":
            if len(fields) < 2:
                raise RejectError(Reason.FIELD, "expected Validator,NAME,VALUE")
            environment[fields[0]] = ",".join(fields[1:])
            return None
        if not 2 <= len(fields) <= 3 or not all(fields[:2]):
            raise RejectError(Reason.FIELD, "expected operator,parameters,solution,time")
        place = Place(target or _target(environment, device_model), device_model)
        try:
            times = [float(fields[2])] if fields[2:] and fields[2] else []
        except ValueError as error:
            raise RejectError(Reason.COST, f"{fields[2]!r:.40} is not a time") from error
        return ImportedRecord(
            source="tunableop", task=make_task("tunableop", op, _attrs(fields[0]), place.target),
            config_key=key_of({"solution": fields[1]}), samples_s=seconds(times, 1e-3),
            device_model=place.model, environment=dict(environment),
        )

    return source.read_lines(line)


def _attrs(parameters: str) -> dict[str, str | int]:
    found = _EXTENTS.fullmatch(parameters)
    if found is None:
        return {"parameters": parameters}
    trans, n, m, k, rest = found.groups()
    attrs: dict[str, str | int] = {"trans": trans, "n": int(n), "m": int(m), "k": int(k)}
    return attrs if rest is None else {**attrs, "rest": rest}


def _target(environment: dict[str, str], device_model: str) -> Target | None:
    """The target that the validators name, None if they are not of AMD's libraries or the model is given."""
    arch = environment.get("GCN_ARCH_NAME", "").partition(":")[0]
    if arch:
        model = {"model": device_model} if device_model else {}
        return Target.parse({"kind": "rocm", "arch": arch, **model})
    if device_model or not any(name.startswith(("ROC", "HIP")) for name in environment):
        return None
    return Target.parse("rocm")
