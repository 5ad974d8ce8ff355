"""Every variant of every kernel, as sycl/kernels/launch.h lists them."""

from dataclasses import dataclass, replace
from pathlib import Path

from . import KERNELS, PLAIN

# By their numbers in launch.h: those of octet_product, and those of octet_dequantize alone.
FORMATS = ("iq3_s", "iq3_xxs", "iq2_s", "iq4_nl", "q2_0", "q8_0", "q8_0_128", "q8_0_row")
FLOAT_FORMATS = ("iq2_xs", "iq2_xxs", "iq4_xs", "q4_0", "mxfp4")
DEQUANTIZED = (*FORMATS[:6], *FLOAT_FORMATS)
GLUS = ("none", "swiglu", "geglu", "reglu")


@dataclass(frozen=True)
class Variant:
    """One program: a source file and its options.

    `dpas` counts the dpas instructions of one pass of its inner loop; 0 for kernels without.
    """

    name: str
    file: str
    choices: tuple[str, ...]  # options of its own
    dpas: int = 0
    block_steps: int = 1  # steps of 32 columns in a block of weights
    loop_steps: int = 1  # in one pass of the inner loop
    registers: int = 256  # of a thread; or 128
    folder: Path = KERNELS  # of the file
    esimd: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """All options, as the host gives them (sycl/host/gpu.cpp)."""
        registers = self.registers if self.esimd else 256  # which it does not look at
        return ("-ffp-contract=off", f"-DOCTET_GRF={registers}", *self.choices)

    @property
    def barriers(self) -> int:
        """Of work-groups that share tiles, or make a codebook."""
        return int("-wg" in self.name or any(f in self.name for f in ("iq4_", "mxfp4")))

    @property
    def kernel(self) -> str:
        """Name of the function."""
        return "octet_" + self.file.removesuffix(".cpp")


def product(format: str, mt: int, wg: int) -> Variant:
    """int8 products of a format with mt tiles a thread, with or without work-groups."""
    per_tile = {"iq2_s": 2, "q8_0_128": 4}.get(format, 1)
    return Variant(
        f"product-{format}-mt{mt}-{'wg' if wg else 'plain'}",
        "product.cpp",
        (f"-DOCTET_FORMAT={FORMATS.index(format)}", f"-DOCTET_MT={mt}", f"-DOCTET_WG={wg}"),
        per_tile * mt,
        block_steps={"iq3_s": 8, "iq3_xxs": 8, "iq2_s": 8, "q2_0": 2}.get(format, 1),
        loop_steps=4 if format == "q8_0_128" else 1,
    )


def rows(glu: str, chunk: int, half: int) -> Variant:
    """Float rows to tiles."""
    return Variant(
        f"rows-{glu}-{chunk}-{'half' if half else 'int8'}",
        "rows.cpp",
        (f"-DOCTET_GLU={GLUS.index(glu)}", f"-DOCTET_CHUNK={chunk}", f"-DOCTET_HALF={half}"),
    )


def dequantize(format: str) -> Variant:
    """Blocks to fp16 panels."""
    number = (FORMATS + FLOAT_FORMATS).index(format)
    return Variant(f"dequantize-{format}", "dequantize.cpp", (f"-DOCTET_FORMAT={number}",))


def product_half(mt: int) -> Variant:
    """fp16 products."""
    return Variant(f"product_half-mt{mt}", "product_half.cpp", (f"-DOCTET_MT={mt}",), mt)


def total() -> Variant:
    """Sums of a token's experts: plain SYCL, not ESIMD, which takes other registers."""
    return Variant("sum", "sum.cpp", (), registers=128, folder=PLAIN, esimd=False)


def with_128_registers(variant: Variant) -> Variant:
    """The same for twice the threads on a vector engine."""
    return replace(variant, name=variant.name + "-grf128", registers=128)


def all_variants() -> list[Variant]:
    """All of them, the slow ones to compile first."""
    return [
        *(product(f, mt, wg) for mt in (8, 4, 2) for f in FORMATS for wg in (1, 0)),
        *(product_half(mt) for mt in (8, 4, 2)),
        *(dequantize(f) for f in DEQUANTIZED),
        *(rows(g, c, h) for g in GLUS for c in (128, 64, 32) for h in (0, 1)),
        total(),
    ]
