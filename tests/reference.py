"""The arithmetic of docs/format.md, stated once and slowly, for tests to compare against.

Nothing here is shared with the package: plain loops over Python integers and f64.
"""

import math

import numpy as np

# ---- the file: signs, rotation, int8 -------------------------------------------------------


def mix16(x: int) -> int:
    """One round of the 16-bit mixer."""
    x ^= x >> 8
    x = x * 0x88B5 & 0xFFFF
    x ^= x >> 7
    x = x * 0xDB2D & 0xFFFF
    return x ^ x >> 9


def sign(column: int, seed: int) -> int:
    """Sign of an absolute column: -1 or 1."""
    return -1 if mix16(column & 0xFFFF ^ mix16(column >> 16 ^ seed)) & 0x8000 else 1


def rotation_block(columns: int, wished: int) -> int:
    """Block that a row of `columns` gets: the wished one, or 64 or 32, or 0."""
    for block in (wished, 64, 32):
        if 0 < block <= wished and columns % block == 0:
            return block
    return 0


def rotate(row, block: int, seed: int, dtype=np.float64) -> np.ndarray:
    """`H·D·row` for one row, in the order of operations of the format, in `dtype`."""
    y = [dtype(sign(j, seed)) * dtype(v) for j, v in enumerate(row)]
    if block == 0:
        return np.array(row, dtype)
    for start in range(0, len(y), block):
        h = 1
        while h < block:
            for j in range(start, start + block):
                if not (j - start) & h:
                    y[j], y[j + h] = y[j] + y[j + h], y[j] - y[j + h]
            h *= 2
    # sqrt(1/b) is 1/sqrt(b) correctly rounded, as 1/b is exact; dividing by sqrt(b) rounds twice
    c = dtype(math.sqrt(1.0 / block))
    return np.array([v * c for v in y], dtype)


def round_away(x: float) -> int:
    """Nearest integer, halves away from zero."""
    whole = math.floor(abs(x))
    whole += abs(x) - whole >= 0.5
    return int(math.copysign(whole, x))


def quantize_row(row, group: int) -> tuple[np.ndarray, np.ndarray]:
    """One f64 row as (int8 values, one fp16 scale per range); `group` 0 means the whole row."""
    width = group or len(row)
    q, d = [], []
    for start in range(0, len(row), width):
        part = [float(v) for v in row[start : start + width]]
        scale = float(np.float16(max(abs(v) for v in part) / 127))
        d.append(scale)
        q += [max(-127, min(127, round_away(v / scale))) if scale else 0 for v in part]
    return np.array(q, np.int8), np.array(d, np.float16)


def int8_row(row, block: int, seed: int, group: int) -> tuple[np.ndarray, np.ndarray]:
    """What a float row becomes in the file: rotated, then quantized."""
    return quantize_row(rotate(row, block, seed), group)


def pack_q8_0(q: np.ndarray, d: np.ndarray) -> bytes:
    """The bytes of a row of Q8_0 blocks; `d` is repeated over the blocks of its range."""
    blocks = len(q) // 32
    scales = np.repeat(d, blocks // len(d))
    return b"".join(
        scales[i].tobytes() + q[32 * i : 32 * i + 32].tobytes() for i in range(blocks)
    )
