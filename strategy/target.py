"""Targets of code generation: kind, architecture, features, threads, and how code is timed.

`Target.parse` reads `cpu` (this host), TVM's dicts, and TVM's legacy strings (`llvm -mcpu=znver4 -num-cores=2`,
`cuda -arch=sm_90`), which TVM itself no longer reads.
"""
# Over 300 lines: one value, with all its forms and what follows from them.

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Self

import msgspec

from strategy import host
from strategy.extern import find_library
from strategy.processor import (
    has_instructions,
    multiply_adds,
    required,
    vector_bytes,
    vector_features,
)
from strategy.suggestion import suggest
from strategy.target_text import (
    SWITCHES,
    TargetError,
    read_count,
    read_name,
    read_options,
    read_words,
)

__all__ = ["BUILT", "KINDS", "Target", "TargetError", "are_like", "cpu_target"]

KINDS: dict[str, tuple[str, ...]] = {
    "llvm": ("cpu",),
    "c": ("cpu",),
    "cuda": ("cuda", "gpu"),
    "rocm": ("rocm", "gpu"),
    "metal": ("metal", "gpu"),
    "vulkan": ("vulkan", "gpu"),
    "opencl": ("opencl", "gpu"),
}
# The kinds that code can be built for, with the keys of their implementations.
BUILT: dict[str, tuple[str, ...]] = {"llvm": ("cpu",), "cuda": ("cuda", "gpu")}
_CAPABILITIES = frozenset(
    "vector_bytes vector_registers l1d_bytes l2_bytes l3_bytes max_threads_per_block "
    "max_shared_memory_per_block registers_per_block multi_processors thread_warp_size "
    "bandwidth_bytes_per_s".split()
)
# Other names, of older TVM versions and other tools.
_ALIASES = {
    "target": "mtriple",
    "num_cores": "num-cores",
    "threads": "num-cores",
    "thread_pool": "thread-pool",
    "max_num_threads": "max_threads_per_block",
    "shared_memory_per_block": "max_shared_memory_per_block",
    "l2_cache_size_bytes": "l2_bytes",
}
# TVM's options that do not affect the code.
_IGNORED = SWITCHES | frozenset("tag host mfloat-abi runtime executor".split())
POOLS = ("tvm", "openmp")  # that may run the parallel loops of code for processors
CONSTANTS = ("warm", "cold")  # in the caches at a call, or as far as possible in memory
# Options of timing: a key ends with them, in this order, unless they have their first value.
_TIMED = {"pool": ("thread-pool", POOLS), "constants": ("constants", CONSTANTS)}
_BY_DEFAULT = {name: values[0] for name, (_, values) in _TIMED.items()}
_READ = frozenset("keys device mcpu arch mattr mtriple num-cores thread-pool constants libs model".split())


class Target:
    """A target of code generation.

    `key` (kind, architecture, features, threads, thread pool, constants) is its identity in the database; libraries,
    device model and capability (sizes in bytes, counts) are stored and used, but not part of it.

    `with target:` makes it the current target of this thread or task, used as the default.
    """

    kind: str
    keys: tuple[str, ...]
    arch: str
    features: tuple[str, ...]
    threads: int
    pool: str
    constants: str
    libs: tuple[str, ...]
    model: str
    triple: str
    capability: Mapping[str, int]

    # Not a dataclass, whose fields the wire codec would write instead of `to_json`.
    def __init__(
        self,
        kind: str,
        keys: tuple[str, ...] = (),
        arch: str = "",
        features: tuple[str, ...] = (),
        threads: int = 1,
        pool: str = POOLS[0],
        constants: str = CONSTANTS[0],
        libs: tuple[str, ...] = (),
        model: str = "",
        triple: str = "",
        capability: Mapping[str, int] | None = None,
    ) -> None:
        self.__dict__.update(
            kind=kind, keys=keys, arch=arch, features=features, threads=threads, pool=pool,
            constants=constants, libs=libs, model=model, triple=triple,
            capability=MappingProxyType(dict(capability or {})),
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"Target is immutable: parse another instead of setting {name}")

    @classmethod
    def parse(cls, spec: object) -> Target:
        """Parse a target from TVM's dict or legacy string, or `cpu` for this host.

        `cpu` takes options too: `cpu -num-cores=1`.

        Raises:
            TargetError: an unknown kind or option, a missing or duplicate value, or one of the wrong type.
        """
        if isinstance(spec, Target):
            return spec
        if isinstance(spec, Mapping):
            return _recall(spec)
        if not isinstance(spec, str) or not spec.strip():
            raise TargetError(f"target {spec!r:.80}: expected a name such as cpu, a dict, or 'llvm -mcpu=…'")
        return _from_mapping(read_options(spec))

    @staticmethod
    def current() -> Target | None:
        """The target of the innermost `with target:`, None outside."""
        return _entered.get()[-1] if _entered.get() else None

    def __enter__(self) -> Self:
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *error: object) -> None:
        _entered.set(_entered.get()[:-1])

    @cached_property
    def key(self) -> str:
        """The canonical text of kind, architecture, features, threads, and how it is timed unless as by default."""
        parts = [self.kind, self.arch or "generic", *self.features]
        if not self.is_gpu:
            parts.append(f"threads={self.threads}")
        parts += [f"{name}={value}" for name, value in self._timed.items() if value != _BY_DEFAULT[name]]
        return "/".join(parts)

    @cached_property
    def vector_bytes(self) -> int:
        """Bytes of the widest vector register that code for this target should use."""
        if "vector_bytes" in self.capability:
            return self.capability["vector_bytes"]
        named = vector_bytes(self.arch)
        for feature, width in (("avx2", 32), ("avx512f", 64)):
            if f"+{feature}" in self.features:
                named = max(named, width)
            if not self._allows(feature):
                named = min(named, width // 2)
        return named

    @cached_property
    def vector_registers(self) -> int:
        """The number of vector registers of the architecture."""
        if "vector_registers" in self.capability:
            return self.capability["vector_registers"]
        if self.vector_bytes == 64 or self.is_arm:
            return 32
        return 16

    @property
    def multiply_adds(self) -> int:
        """The number of its vectors that the architecture multiplies and adds in a cycle."""
        return multiply_adds(self.arch) if self.vector_bytes == 64 else 2

    def has(self, feature: str) -> bool:
        """Return whether code for this target may use the instructions of LLVM's `feature`."""
        named = has_instructions(self.arch, feature) or f"+{feature}" in self.features
        return named and self._allows(feature)

    @property
    def vector_instructions(self) -> tuple[str, ...]:
        """LLVM's names of the vector instructions of x86-64 that code for this target may use."""
        return tuple(filter(self.has, vector_features()))

    def _allows(self, feature: str) -> bool:
        """Return whether no option turns the feature off, or one that LLVM requires for it."""
        return not any(f"-{name}" in self.features for name in required(feature))

    @property
    def is_gpu(self) -> bool:
        return "gpu" in KINDS.get(self.kind, ())

    @property
    def is_cpu(self) -> bool:
        """Return whether its kind is a processor's, whatever its keys are."""
        return "cpu" in KINDS.get(self.kind, ())

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
        """The same target with another number of threads; raise `TargetError` if it is below 1."""
        if threads < 1:
            raise TargetError(f"threads = {threads}: must be at least 1")
        return Target.parse({**self.to_json(), "num-cores": threads})

    @property
    def _timed(self) -> dict[str, str]:
        return {"pool": self.pool, "constants": self.constants}

    def is_like(self, key: str) -> bool:
        """Return whether a target's key differs from this one's by how code is timed at most."""
        return are_like(key, self.key)

    def otherwise(self, key: str) -> str:
        """The differences in how code is timed for a like target's key: `thread-pool=tvm, constants=warm`."""
        timed = _read_key(key)[1]
        return ", ".join(f"{_TIMED[name][0]}={timed[name]}" for name, own in self._timed.items() if timed[name] != own)

    def in_network(self) -> Target:
        """This target as a network runs kernels: on OpenMP's threads, constants not in the caches, no libraries."""
        return Target.parse({**self.to_json(), "thread-pool": "openmp", "constants": "cold"})

    @property
    def host(self) -> Target:
        """The target of the devices that time its code: this one, however they time it."""
        if self._timed == _BY_DEFAULT:
            return self
        return Target.parse(self.to_json() | {option: values[0] for option, values in _TIMED.values()})

    def to_tvm(self) -> dict[str, Any]:
        """The dict for `tvm.target.Target` of TVM 0.27."""
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
        """TVM's names with `libs`, `model` and the capability; the inverse of `parse`."""
        data = self.to_tvm()
        if self.kind not in KINDS:
            data["foreign"] = True
        data["keys"] = list(self.keys)
        # For kinds with fewer options in TVM.
        if self.threads != 1:
            data["num-cores"] = self.threads
        data |= {_TIMED[name][0]: value for name, value in self._timed.items() if value != _BY_DEFAULT[name]}
        if self.features:
            data["mattr"] = list(self.features)
        if self.triple:
            data["mtriple"] = self.triple
        if self.libs:
            data["libs"] = list(self.libs)
        if self.model:
            data["model"] = self.model
        data.update(sorted(self.capability.items()))
        return data

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Target):
            return self is other
        return self.key == other.key and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return Target.parse, (self.to_json(),)

    def __str__(self) -> str:
        return self.key

    def __repr__(self) -> str:
        return f"Target({self.key})"


def are_like(key: str, other: str) -> bool:
    """Return whether the keys of two targets differ by how code is timed at most."""
    return _read_key(key)[0] == _read_key(other)[0]


@lru_cache
def _read_key(key: str) -> tuple[str, dict[str, str]]:
    """A key without its last parts, and what they say."""
    timed = dict(_BY_DEFAULT)
    for name in reversed(_TIMED):
        key, _, value = key.partition(f"/{name}=")
        timed[name] = value or timed[name]
    return key, timed


def _spell(key: str) -> str:
    """A target's key as `Target.parse` reads it."""
    kind, arch, *rest = [*key.split("/"), ""][:20]
    words = [kind]
    if arch not in ("generic", ""):
        words.append(f"-{'mcpu' if kind == 'llvm' else 'arch'}={arch}")
    if features := ",".join(part for part in rest if part.startswith(("+", "-"))):
        words.append(f"-mattr={features}")
    options = {"threads": "num-cores"} | {name: option for name, (option, _) in _TIMED.items()}
    parts = (part.partition("=") for part in rest)
    return " ".join([*words, *(f"-{options[name]}={value}" for name, _, value in parts if name in options)])


# The last targets that were read from mappings, by their JSON: requests name the same few, and reading one takes a
# twelfth of a selection's time.
_read_targets: dict[bytes, Target] = {}
_MOST_READ, _LONGEST_READ = 256, 2000


def _recall(data: Mapping[str, Any]) -> Target:
    """As `_from_mapping`, which is called once for equal data."""
    try:
        text = msgspec.json.encode(data)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _from_mapping(data)
    target = _read_targets.get(text)
    if target is None:
        target = _from_mapping(data)
        if len(text) <= _LONGEST_READ and data.get("kind") in KINDS:  # `cpu` is this host
            if len(_read_targets) >= _MOST_READ:
                _read_targets.clear()
            _read_targets[text] = target
    return target


# The stack of entered targets, the innermost last, per thread and task.
_entered: ContextVar[tuple[Target, ...]] = ContextVar("entered", default=())


def _from_mapping(data: Mapping[str, Any]) -> Target:
    options = _under_one_name(data)
    kind = options.pop("kind", None)
    if not isinstance(kind, str):
        raise TargetError("target.kind is missing: name one of cpu, " + ", ".join(KINDS))
    base = _pop_base(kind, options)
    keys = read_words("keys", options.pop("keys", ()))
    if device := options.pop("device", None):
        name = read_name("device", device)
        # As in TVM: behind given keys, before those of the kind. Old logs of other kinds have it first.
        keys = (*keys, name) if keys and kind in ("cpu", *KINDS) else (name, *(keys or base.keys))
    capability = dict(base.capability)
    for name in _CAPABILITIES & options.keys():
        capability[name] = read_count(name, options.pop(name))
    arch = options.pop("mcpu", None) or base.arch
    triple = options.pop("mtriple", base.triple)
    model = options.pop("model", base.model)
    if not isinstance(model, str) or len(model) > 200:
        raise TargetError(f"target.model = {model!r:.80}: expected a text of up to 200 characters")
    timed = _pop_timed(options, base)
    libs = read_words("libs", options.pop("libs", base.libs))
    target = Target(
        kind=base.kind,
        keys=tuple(dict.fromkeys(keys or base.keys)),
        arch=read_name("arch", arch) if arch else "",
        features=_features(read_words("mattr", options.pop("mattr", ())), base.features if arch == base.arch else ()),
        threads=read_count("num-cores", options.pop("num-cores", base.threads)),
        **timed,
        # OpenBLAS has threads of its own, which would take the cores from OpenMP's.
        libs=tuple(sorted(set(libs))) if timed["pool"] == POOLS[0] else (),
        model=model,
        triple=read_name("mtriple", triple) if triple else "",
        capability=capability,
    )
    unknown = sorted(options.keys() - _IGNORED)
    if unknown:
        meant = suggest(unknown[0], _READ | _ALIASES.keys() | _CAPABILITIES | SWITCHES)
        raise TargetError(f"target {kind}: unknown option {unknown[0]!r:.40}{meant or ': leave it out'}")
    return target


def _under_one_name(data: Mapping[str, Any]) -> dict[str, Any]:
    """The options under the names that are read here; raise `TargetError` if two names of one have other values."""
    options = {str(name): value for name, value in data.items()}
    for other, name in (*_ALIASES.items(), ("arch", "mcpu")):
        if other in options:
            value = options.pop(other)
            # TVM writes some options in both forms, with equal values.
            if str(options.setdefault(name, value)) != str(value):
                raise TargetError(
                    f"target.{name} = {options[name]!r:.40}, but its synonym {other} "
                    f"is {value!r:.40}: leave one out"
                )
    return options


def _pop_base(kind: str, options: dict[str, Any]) -> Target:
    """The target of a kind without options; another kind needs the option `foreign`, which is removed."""
    if kind == "cpu":
        return cpu_target()
    if kind in KINDS:
        return Target(kind, KINDS[kind])
    if options.pop("foreign", None) in (True, "1"):  # of another tool's logs only
        return Target(read_name("kind", kind))
    if kind.partition("/")[0] in KINDS:  # as tables have it
        raise TargetError(f"target {kind!r:.200} is a key: write it as '{_spell(kind)[:200]}'")
    if kind in host.PROCESSORS:
        raise TargetError(f"unknown target {kind!r}: a processor: write it as 'llvm -mcpu={kind}'")
    # cpu looks more alike.
    meant = ", did you mean cuda?" if kind == "gpu" else suggest(kind, ("cpu", *KINDS))
    raise TargetError(f"unknown target {kind!r:.40}{meant}: expected cpu (this host), {', '.join(KINDS)}")


def _pop_timed(options: dict[str, Any], base: Target) -> dict[str, str]:
    """Remove the options of timing, and return their values, by their names here."""
    timed = {}
    for name, (option, values) in _TIMED.items():
        timed[name] = options.pop(option, getattr(base, name))
        if timed[name] not in values:
            raise TargetError(f"target.{option} = {timed[name]!r:.40}: expected {' or '.join(values)}")
        if timed[name] != values[0] and "cpu" not in base.keys:
            raise TargetError(f"target.{option} = {timed[name]!r}: only for processors: leave it out")
    if timed["constants"] == "cold" and timed["pool"] != "openmp":
        raise TargetError("target.constants = 'cold': only on OpenMP's threads: add -thread-pool=openmp")
    return timed


def _features(given: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """The features that are given, and those of this host that are not given otherwise."""
    named = {feature.lstrip("+-") for feature in given}
    return tuple(sorted({*given, *(feature for feature in own if feature.lstrip("+-") not in named)}))


@cache
def cpu_target() -> Target:
    """The target `cpu`: this host with all usable cores, and its libraries."""
    return Target(
        "llvm", ("cpu",), host.cpu_arch(), host.cpu_features(), threads=host.usable_cores(), model=host.cpu_model(),
        libs=("cblas",) if find_library("cblas") else (), capability=host.cache_sizes(),
    )
