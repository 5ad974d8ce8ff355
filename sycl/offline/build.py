"""Variants compiled to machine code, each kept until its sources or a compiler change."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import CACHE, OfflineError, frontend
from .ocloc import Ocloc, ocloc
from .variants import Variant

DEVICES = ("bmg-g21", "bmg-g31")
# What the SYCL runtime passes on for an ESIMD kernel with the property grf_size<registers>.
OPTIONS = {256: "-vc-codegen -doubleGRF", 128: "-vc-codegen"}
# Intermediate files of the compiler, first and last: of ESIMD kernels, and of others.
DUMPS = {
    True: ("*_after_spirv_reader.ll", "*_final.ll"),
    False: ("*_beforeUnification.ll", "*_codegen.ll"),
}


@dataclass(frozen=True)
class Built:
    """Files of a compiled variant."""

    variant: Variant
    folder: Path

    def assembly(self, device: str) -> str:
        """Disassembly of the binary for a device."""
        return (self.folder / f"{device}.asm").read_text()

    def info(self, device: str) -> str:
        """The binary's .ze_info."""
        return (self.folder / f"{device}.ze_info").read_text()

    def ir(self) -> str:
        """LLVM IR as it was read from SPIR-V."""
        return (self.folder / "kernel.ll").read_text()

    def final_ir(self) -> str:
        """LLVM IR as it goes to code generation."""
        return (self.folder / "final.ll").read_text()


def _only(folder: Path, pattern: str, what: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise OfflineError(f"{what}: {len(found)} files {pattern} instead of one")
    return found[0]


def _compile(variant: Variant, compiler: Ocloc, folder: Path) -> None:
    spirv = folder / "kernel.spv"
    frontend.spirv(variant, spirv)
    for device in DEVICES:
        out = folder / device
        dump = out / "ir"
        log = compiler.run(
            *("compile", "-spirv_input", "-file", spirv, "-device", device),
            *(("-options", OPTIONS[variant.registers]) if variant.esimd else ()),
            *("-out_dir", out),
            dump=dump,
        )
        if "rror" in log or "llback" in log:
            raise OfflineError(f"{variant.name} for {device}: {log[-2000:]}")
        binary = _only(out, "*.bin", variant.name)
        family = device.split("-")[0]
        compiler.run("disasm", "-file", binary, "-device", family, "-dump", out / "dis")
        shutil.move(_only(out / "dis", ".text.*.asm", variant.name), folder / f"{device}.asm")
        shutil.move(out / "dis" / ".ze_info", folder / f"{device}.ze_info")
        if device == DEVICES[0]:
            first, final = DUMPS[variant.esimd]
            shutil.move(_only(dump, first, variant.name), folder / "kernel.ll")
            shutil.move(_only(dump, final, variant.name), folder / "final.ll")
        shutil.rmtree(out)


def build(variant: Variant, compiler: Ocloc | None = None) -> Built:
    """Compiles a variant for all devices, unless that was done before."""
    compiler = compiler or ocloc()
    folder = CACHE / "kernels" / f"{variant.name}-{frontend.key(variant)}-{compiler.key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            work = Path(scratch) / "work"
            work.mkdir()
            _compile(variant, compiler, work)
            try:
                work.rename(folder)
            except OSError:  # another process was faster
                if not folder.exists():
                    raise
    return Built(variant, folder)


def build_all(variants: list[Variant], jobs: int | None = None) -> list[Built]:
    """Compiles variants side by side; the first failure is raised."""
    compiler = ocloc()
    frontend.helper()
    with ThreadPoolExecutor(jobs or os.cpu_count()) as pool:
        return list(pool.map(lambda v: build(v, compiler), variants))
