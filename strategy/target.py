"""Targets: what code is generated for, by kind, architecture, features and threads.

`Target.parse` reads the forms that people have: `cpu` (this host), TVM's dicts, and TVM's legacy
strings (`llvm -mcpu=znver4 -num-cores=2`, `cuda -arch=sm_90`), which TVM itself no longer reads.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

KINDS: dict[str, tuple[str, ...]] = {
    "llvm": ("cpu",),
    "c": ("cpu",),
    "cuda": ("cuda", "gpu"),
    "rocm": ("rocm", "gpu"),
    "metal": ("metal", "gpu"),
    "vulkan": ("vulkan", "gpu"),
    "opencl": ("opencl", "gpu"),
}
_AVX512 = frozenset(
    "skylake-avx512 cascadelake cooperlake cannonlake icelake-client icelake-server tigerlake "
    "rocketlake sapphirerapids emeraldrapids graniterapids graniterapids-d knl knm znver4 znver5 "
    "x86-64-v4".split()
)
_AVX2 = frozenset(
    "haswell broadwell skylake core-avx2 znver1 znver2 znver3 bdver4 alderlake raptorlake meteorlake "
    "arrowlake lunarlake pantherlake sierraforest grandridge gracemont x86-64-v3".split()
)
_CAPABILITIES = frozenset(
    "vector_bytes vector_registers l1d_bytes l2_bytes l3_bytes max_threads_per_block "
    "max_shared_memory_per_block registers_per_block multi_processors thread_warp_size "
    "bandwidth_bytes_per_s".split()
)


class TargetError(ValueError):
    """A target that cannot be read; the message names the field and the remedy."""


class Target:
    """What code is generated for.

    `key` (kind, architecture, features, threads) is its identity in the database; libraries, model
    and capability (sizes in bytes, counts) are stored and used, but not part of it.
    """

    # Not a dataclass: the wire codec would then write its fields instead of `to_json`.
    __slots__ = (
        "arch", "capability", "features", "keys", "kind", "libs", "model", "threads", "triple",
    )  # fmt: skip

    def __init__(
        self,
        kind: str,
        keys: tuple[str, ...] = (),
        arch: str = "",
        features: tuple[str, ...] = (),
        threads: int = 1,
        libs: tuple[str, ...] = (),
        model: str = "",
        triple: str = "",
        capability: Mapping[str, int] | None = None,
    ) -> None:
        values = (arch, MappingProxyType(dict(capability or {})), features, keys, kind, libs, model, threads, triple)
        for name, value in zip(self.__slots__, values, strict=True):
            object.__setattr__(self, name, value)

    if TYPE_CHECKING:
        kind: str
        keys: tuple[str, ...]
        arch: str
        features: tuple[str, ...]
        threads: int
        libs: tuple[str, ...]
        model: str
        triple: str
        capability: Mapping[str, int]

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Target is immutable: parse another instead of setting {name}")

    @classmethod
    def parse(cls, spec: str | Mapping[str, Any] | Target) -> Target:
        """Reads a target from TVM's dict or legacy string, or `cpu` for this host.

        `cpu` takes options too: `cpu -num-cores=1`.

        Raises:
            TargetError: an unknown kind or option, or a value of the wrong type.
        """
        if isinstance(spec, Target):
            return spec
        if isinstance(spec, Mapping):
            return _from_mapping(spec)
        if not isinstance(spec, str) or not spec.strip():
            raise TargetError(f"target {spec!r:.80}: expected a name such as cpu, a dict, or 'llvm -mcpu=…'")
        if spec.lstrip().startswith("{"):
            import json

            try:
                return _from_mapping(json.loads(spec))
            except ValueError as error:
                if isinstance(error, TargetError):
                    raise
                raise TargetError(f"target {spec!r:.80} is not valid JSON: {error}") from error
        return _from_string(spec)

    @property
    def key(self) -> str:
        """The canonical text of kind, architecture, features and threads."""
        parts = [self.kind, self.arch or "generic", *self.features]
        if "cpu" in self.keys:
            parts.append(f"threads={self.threads}")
        return "/".join(parts)

    @property
    def vector_bytes(self) -> int:
        """Bytes in the widest vector register that code for this target should use."""
        if "vector_bytes" in self.capability:
            return self.capability["vector_bytes"]
        if self.arch in _AVX512 or "+avx512f" in self.features:
            return 64
        if self.arch in _AVX2 or "+avx2" in self.features:
            return 32
        return 16

    @property
    def vector_registers(self) -> int:
        """How many vector registers the architecture names."""
        if "vector_registers" in self.capability:
            return self.capability["vector_registers"]
        if self.vector_bytes == 64 or self.is_arm:
            return 32
        return 16

    @property
    def is_arm(self) -> bool:
        return self.triple.startswith(("aarch64", "arm64")) or self.arch.startswith(
            ("neoverse", "cortex", "apple", "ampere", "a64fx")
        )

    @property
    def l1d_bytes(self) -> int:
        return self.capability.get("l1d_bytes", 32 * 1024)

    @property
    def l2_bytes(self) -> int:
        return self.capability.get("l2_bytes", 512 * 1024)

    @property
    def l3_bytes(self) -> int:
        return self.capability.get("l3_bytes", 8 * 1024 * 1024)

    def with_threads(self, threads: int) -> Target:
        if threads < 1:
            raise TargetError(f"threads = {threads}: at least 1")
        return Target.parse({**self.to_json(), "threads": threads})

    def to_tvm(self) -> dict[str, Any]:
        """The dict that `tvm.target.Target` of TVM 0.27 takes."""
        data: dict[str, Any] = {"kind": self.kind}
        if self.kind == "llvm":
            data["num-cores"] = self.threads
            if self.arch:
                data["mcpu"] = self.arch
            if self.features:
                data["mattr"] = list(self.features)
            if self.triple:
                data["mtriple"] = self.triple
        elif self.arch:
            data["arch"] = self.arch
        return data

    def to_json(self) -> dict[str, Any]:
        """TVM's names, with `libs`, `model` and the capability beside them; `parse` reads it."""
        data = self.to_tvm()
        data["keys"] = list(self.keys)
        if self.libs:
            data["libs"] = list(self.libs)
        if self.model:
            data["model"] = self.model
        data.update(sorted(self.capability.items()))
        return data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Target) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return Target.parse, (self.to_json(),)

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return f"Target({self.key})"


def _from_string(spec: str) -> Target:
    try:
        words = shlex.split(spec)
    except ValueError as error:
        raise TargetError(f"target {spec!r:.80}: {error}") from error
    options: dict[str, Any] = {"kind": words[0]}
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            raise TargetError(f"target {spec!r:.80}: {word!r:.40} is not an option; write -name=value")
        name, equals, value = word.lstrip("-").partition("=")
        options[name] = value if equals else next(rest, "")
    return _from_mapping(options)


def _from_mapping(data: Mapping[str, Any]) -> Target:
    options = dict(data)
    kind = options.pop("kind", None)
    if not isinstance(kind, str):
        raise TargetError("target.kind is missing: name one of cpu, " + ", ".join(KINDS))
    if kind == "cpu":
        from strategy.host import cpu_target

        base = cpu_target()
    elif kind in KINDS:
        base = Target(kind, KINDS[kind])
    else:
        raise TargetError(f"unknown target {kind!r:.40}; known: cpu (this host), {', '.join(KINDS)}")
    keys = _words("keys", options.pop("keys", ()))
    device = options.pop("device", None)
    if device and not keys:
        keys = (str(device), *base.keys)
    capability = dict(base.capability)
    for name in _CAPABILITIES & options.keys():
        capability[name] = _count(name, options.pop(name))
    if "max_num_threads" in options:  # TVM's older name
        capability["max_threads_per_block"] = _count("max_num_threads", options.pop("max_num_threads"))
    arch = options.pop("mcpu", None) or options.pop("arch", None) or base.arch
    given = [options.pop(name) for name in ("threads", "num-cores", "num_cores") if name in options]
    threads = given[0] if given else None
    features = _words("mattr", options.pop("mattr", base.features))
    target = Target(
        kind=base.kind,
        keys=tuple(dict.fromkeys(keys or base.keys)),
        arch=str(arch),
        features=tuple(sorted(features)),
        threads=base.threads if threads is None else _count("num-cores", threads),
        libs=tuple(sorted(_words("libs", options.pop("libs", base.libs)))),
        model=str(options.pop("model", base.model)),
        triple=str(options.pop("mtriple", base.triple)),
        capability=capability,
    )
    # TVM's own bookkeeping, which says nothing about the code.
    for ignored in ("tag", "host", "mfloat-abi"):
        options.pop(ignored, None)
    if options:
        raise TargetError(f"target {kind}: unknown option {next(iter(options))!r:.40}")
    return target


def _words(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [v for v in value.split(",") if v]
    if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
        raise TargetError(f"target.{name} = {value!r:.80}: expected a list of names")
    return tuple(value)


def _count(name: str, value: Any) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = 0
    if isinstance(value, bool) or count < 1:
        raise TargetError(f"target.{name} = {value!r:.40}: expected an integer of at least 1")
    return count
