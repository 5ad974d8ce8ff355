"""Writes the grids of the IQ formats, as indices of magnitudes, from gguf-py: grids.py FILE."""

import sys

import numpy as np
from gguf import quants


def lines(name: str, cls: type, bits: int) -> list[str]:
    """One C array: entry i packs the magnitude index of each value of grid row i, `bits` apart."""
    cls.init_grid()
    grid = np.asarray(cls.grid).reshape(cls.grid_shape)
    magnitudes = sorted(set(grid.reshape(-1).tolist()))
    index = np.searchsorted(magnitudes, grid).astype(np.uint32)
    shifts = bits * np.arange(grid.shape[1], dtype=np.uint32)
    packed = (index << shifts).sum(axis=1)
    body = ", ".join(str(v) for v in packed)
    listed = ", ".join(f"{m:g}" for m in magnitudes)
    return [
        f"// magnitudes {listed}",
        f"static const uint16_t {name}[{len(packed)}] = {{{body}}};",
    ]


out = ["#pragma once", "#include <cstdint>"]
out += lines("kGridIq3S", quants.IQ3_S, 4)
out += lines("kGridIq3Xxs", quants.IQ3_XXS, 4)
out += lines("kGridIq2S", quants.IQ2_S, 2)
out += lines("kGridIq2Xs", quants.IQ2_XS, 2)
out += lines("kGridIq2Xxs", quants.IQ2_XXS, 2)
with open(sys.argv[1], "w") as f:
    f.write("\n".join(out) + "\n")
