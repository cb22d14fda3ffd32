"""Compilation of a lowered function to a cubin, with checks of its launches."""

from __future__ import annotations

from pathlib import Path

from strategy.compile.artefact import MAIN
from strategy.compile.lower import Lowered
from strategy.cuda.compiler import Compiler, compile_cached, find_compiler
from strategy.cuda.limit import code_arch, limits_of, require_arch
from strategy.cuda.program import CudaArtefact, check_launch
from strategy.cuda.source import CudaSource, emit_cuda
from strategy.fault import CompileError


def emit(lowered: Lowered) -> CudaSource:
    """CUDA source and launches of a lowered function, within the limits of its target.

    Raises:
        PlanError: the function does more on the host than launch kernels.
        LimitError: a launch exceeds a limit of the device.
        CompileError: TVM's passes or its code generation failed.
    """
    names = {"main": tuple(a.name for a in lowered.arguments)}
    for argument in lowered.arguments:
        if argument.preparation is not None:
            names[argument.preparation] = ("source", "packed")
    found = CudaSource("", {})
    if lowered.module.functions:
        found = emit_cuda(lowered.module, lowered.target, names)
    template = lowered.template
    if template is not None:
        for launch in template.launches:
            static = (template.shared_bytes or {}).get(launch.kernel, 0)
            check_launch(launch, static, limits_of(lowered.target))
        found = CudaSource(found.code + template.code, found.programs | {MAIN: template.program})
    return found


def compile_cuda(
    lowered: Lowered, compiler: Compiler | None = None, folder: Path | None = None
) -> CudaArtefact:
    """The artefact of a function lowered for a CUDA target; needs no device and no driver.

    Args:
        compiler: default: nvcc or NVRTC of this host.
        folder: the cache of cubins; default: in the user's cache directory.

    Raises:
        PlanError, LimitError, CompileError: see `emit`.
    """
    source = emit(lowered)
    arch = code_arch(require_arch(lowered.target))
    if not source.code:  # library calls only
        return CudaArtefact(
            signature=lowered.signature, programs=source.programs, source="", arch=arch,
            compiler="", cubin=b"", usage={},
        )
    compiler = compiler or find_compiler()
    compiled = compile_cached(source.code, arch, compiler, folder)
    for program in source.programs.values():
        for launch in program.launches:
            taken = compiled.usage[launch.kernel].parameters
            if taken != len(launch.arguments):
                raise CompileError(
                    f"{launch.kernel} takes {taken} parameters, but is launched with "
                    f"{len(launch.arguments)}"
                )
    return CudaArtefact(
        signature=lowered.signature, programs=source.programs, source=source.code, arch=arch,
        compiler=compiler.identity, cubin=compiled.cubin, usage=compiled.usage,
    )
