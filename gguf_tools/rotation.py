"""Rotation of weight rows along the input axis, bit for bit as docs/format.md orders it."""

import functools
import math

import numpy as np

HASH = "mix16"
AXIS = "input"
BLOCKS = (128, 64, 32)
WISHES = {"auto": 128, "128": 128, "64": 64, "32": 32, "0": 0}  # of --rotate


def block_for(columns: int, wished: int) -> int:
    """Block for rows of `columns`: `wished` (0, 32, 64, 128), else the largest smaller, else 0."""
    return next((b for b in BLOCKS if b <= wished and columns % b == 0), 0)


def _mix(x: np.ndarray) -> np.ndarray:
    x ^= x >> 8
    x *= np.uint16(0x88B5)
    x ^= x >> 7
    x *= np.uint16(0xDB2D)
    x ^= x >> 9
    return x


@functools.lru_cache(maxsize=16)
def signs(columns: int, seed: int) -> np.ndarray:
    """The signs of columns 0 … columns − 1 as f64 of −1 and 1; read-only. `seed`: 0 … 65535."""
    j = np.arange(columns, dtype=np.uint32)
    inner = _mix((j >> 16).astype(np.uint16) ^ np.uint16(seed))
    bits = _mix(j.astype(np.uint16) ^ inner)
    out = np.where(bits & np.uint16(0x8000), -1.0, 1.0)
    out.flags.writeable = False
    return out


def rotate(weights: np.ndarray, block: int, seed: int) -> np.ndarray:
    """Rotate rows (rows, columns) of any float into new f64; `block` divides columns or is 0."""
    rows, columns = weights.shape
    if block == 0:
        return weights.astype(np.float64)
    # The block's index comes first in memory, so that every butterfly runs over long contiguous
    # rows however small its step is.
    parts = columns // block
    signed = (weights * signs(columns, seed)).reshape(rows * parts, block)
    y = np.ascontiguousarray(signed.T)
    other = np.empty_like(y)
    h = 1
    while h < block:
        source = y.reshape(block // (2 * h), 2, h, -1)
        target = other.reshape(source.shape)
        np.add(source[:, 0], source[:, 1], out=target[:, 0])
        np.subtract(source[:, 0], source[:, 1], out=target[:, 1])
        y, other = other, y
        h *= 2
    # 1/block is exact, so this is 1/sqrt(block) rounded once
    y *= math.sqrt(1.0 / block)
    return np.ascontiguousarray(y.T).reshape(rows, columns)


@functools.lru_cache(maxsize=4)
def hadamard(block: int) -> np.ndarray:
    """H of docs/format.md as f32 (block, block): `(x · signs) @ H` of blocks x, as BLAS does it."""
    return rotate(np.diag(signs(block, 0)), block, 0).astype(np.float32)
