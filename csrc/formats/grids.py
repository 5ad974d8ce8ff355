"""Writes the grids of the IQ formats, as indices of magnitudes, from gguf-py: grids.py FILE."""

import sys

import numpy as np
from gguf import quants


def lines(name: str, cls: type) -> list[str]:
    """One C array: byte j of entry i is the magnitude index of value j of grid row i."""
    cls.init_grid()
    grid = np.asarray(cls.grid).reshape(cls.grid_shape)
    magnitudes = sorted(set(grid.reshape(-1).tolist()))
    index = np.ascontiguousarray(np.searchsorted(magnitudes, grid).astype(np.uint8))
    bits = 8 * grid.shape[1]
    packed = index.view(f"<u{bits // 8}").reshape(-1)
    body = ", ".join(f"{v}u" if bits == 32 else f"{v}ull" for v in packed)
    listed = ", ".join(f"{m:g}" for m in magnitudes)
    return [
        f"// magnitudes {listed}",
        f"static const uint{bits}_t {name}[{len(packed)}] = {{{body}}};",
    ]


out = ["#pragma once", "#include <cstdint>"]
out += lines("kGridIq3S", quants.IQ3_S)
out += lines("kGridIq3Xxs", quants.IQ3_XXS)
out += lines("kGridIq2S", quants.IQ2_S)
out += lines("kGridIq2Xs", quants.IQ2_XS)
out += lines("kGridIq2Xxs", quants.IQ2_XXS)
with open(sys.argv[1], "w") as f:
    f.write("\n".join(out) + "\n")
