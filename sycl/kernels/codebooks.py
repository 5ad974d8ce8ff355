"""Writes the codebooks that the kernels look weights up in, from gguf-py: codebooks.py FILE.

Byte j of entry i is the magnitude of value j of grid row i. An entry of IQ3_* has 4 values, one
32-bit word; one of IQ2_* has 8, two words.
"""

import sys

import numpy as np
from gguf import quants

# Format number of launch.h, name of the array, class of gguf-py.
CODEBOOKS = (
    (0, "kCodebookIq3S", quants.IQ3_S),
    (1, "kCodebookIq3Xxs", quants.IQ3_XXS),
    (2, "kCodebookIq2S", quants.IQ2_S),
    (8, "kCodebookIq2Xs", quants.IQ2_XS),
    (9, "kCodebookIq2Xxs", quants.IQ2_XXS),
)


def words(cls: type) -> np.ndarray:
    """The codebook of a gguf-py class as uint32 words."""
    cls.init_grid()
    grid = np.asarray(cls.grid).reshape(cls.grid_shape)
    return np.ascontiguousarray(grid.astype(np.uint8)).view("<u4").reshape(-1)


def source() -> str:
    """All codebooks as C++ arrays."""
    lines = ["#pragma once", "#include <cstdint>"]
    for _, name, cls in CODEBOOKS:
        table = words(cls)
        body = ", ".join(f"{w}u" for w in table)
        lines.append(f"alignas(64) static const uint32_t {name}[{len(table)}] = {{{body}}};")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    with open(sys.argv[1], "w") as f:
        f.write(source())
