"""The table of all compiled variants, and what must hold for each of them."""

from collections.abc import Iterable
from functools import cache

from .assembly import Report, report
from .build import DEVICES, Built
from .translate import translate


@cache
def read(built: Built, device: str) -> Report:
    """What the machine code of a variant says."""
    variant = built.variant
    return report(
        built.assembly(device), built.info(device), variant.block_steps, variant.loop_steps
    )


@cache
def _wanted(built: Built) -> tuple[int, int]:
    """Lanes of fma, and bytes of local memory, that the source asks for."""
    program = translate(built.ir())
    return program.fma_lanes, program.local_bytes


def faults(built: Built, device: str) -> list[str]:
    """What is wrong with a variant's machine code; nothing if all is well."""
    r, variant = read(built, device), built.variant
    fma_lanes, local_bytes = _wanted(built)
    found = []
    if r.registers != variant.registers:
        found.append(f"{r.registers} registers instead of {variant.registers}")
    if r.spill or r.private:
        found.append(f"spills {r.spill} bytes, {r.private} of private memory")
    if variant.dpas and (not r.loop or round(r.loop.dpas * variant.loop_steps) != variant.dpas):
        have = r.loop.dpas * variant.loop_steps if r.loop else 0
        found.append(f"{have:g} dpas in the inner loop instead of {variant.dpas}")
    if not r.denormals:
        found.append("denormals are not kept")
    if r.barriers != variant.barriers:
        found.append(f"{r.barriers} barriers instead of {variant.barriers}")
    if r.fma_lanes != fma_lanes:
        # A product was fused with a sum that is rounded apart on the host, or an fma was split.
        found.append(f"{r.fma_lanes} fused lanes instead of {fma_lanes}")
    wanted = -(-local_bytes // 1024) * 1024  # it is handed out by the KiB
    if r.local != wanted:
        found.append(f"{r.local} bytes of local memory instead of {wanted}")
    return found


def as_data(built: Iterable[Built]) -> list[dict]:
    """One entry a variant and device, for programs."""
    out = []
    for b in built:
        for device in DEVICES:
            r = read(b, device)
            entry = dict(vars(r))
            if r.loop:
                messages = {f"{m} x{w}": n for (m, w), n in r.loop.messages.items()}
                entry["loop"] = vars(r.loop) | {"messages": messages}
            out.append({"kernel": b.variant.name, "device": device} | entry)
            out[-1]["faults"] = faults(b, device)
    return out


HEAD = (
    "kernel                             device  GRF spill   SLM bar dpas instr"
    " | in a step of the inner loop: dpas, instructions per dpas"
)


def line(built: Built, device: str) -> str:
    """A row under HEAD."""
    r = read(built, device)
    text = f"{built.variant.name:34} {device:7} {r.registers:3} {r.spill:5} {r.local:5}"
    text += f" {r.barriers:3} {r.dpas:4} {r.instructions:5}"
    if r.loop:
        text += f" | {r.loop.dpas:2g} {r.loop.instructions / r.loop.dpas:6.1f}"
    return text
