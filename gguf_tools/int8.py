"""Rounding rows to int8 with one fp16 scale per range, stored as valid Q8_0 blocks."""

import numpy as np

QK = 32  # weights per Q8_0 block
BLOCK_BYTES = 34
_LARGEST_SCALE = 65504.0  # of fp16


def quantize(weights: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """Round f64 rows (rows, columns) to int8.

    `group`: columns per scale, 0 for the whole row; it divides columns. Returns q, int8 of the
    same shape, and d, fp16 of shape (rows, ranges). ValueError if a scale does not fit fp16.
    """
    rows, columns = weights.shape
    ranges = weights.reshape(rows, -1, group or columns)
    magnitude = np.abs(ranges)
    scale = magnitude.max(axis=2) / 127
    if not (scale <= _LARGEST_SCALE).all():  # also catches NaN
        raise ValueError(f"a weight is not finite or beyond {127 * _LARGEST_SCALE:.0f}")
    d = scale.astype(np.float16)
    wide = d.astype(np.float64)
    # A range whose scale rounds to zero is all zeros in the file: dividing by infinity gives that.
    magnitude /= np.where(wide == 0, np.inf, wide)[:, :, None]
    whole = np.floor(magnitude)
    magnitude -= whole
    whole += magnitude >= 0.5  # not floor(x + 0.5): that sum can itself round up
    np.minimum(whole, 127, out=whole)
    np.copysign(whole, ranges, out=whole)
    return whole.astype(np.int8).reshape(rows, columns), d


def pack(q: np.ndarray, d: np.ndarray) -> bytes:
    """Q8_0 blocks of q (rows, columns) and d (rows, ranges), a range's scale in all its blocks."""
    rows, columns = q.shape
    blocks = columns // QK
    out = np.empty((rows, blocks, BLOCK_BYTES), np.uint8)
    scales = np.repeat(d, blocks // d.shape[1], axis=1).astype("<f2")
    out[:, :, :2] = scales.view(np.uint8).reshape(rows, blocks, 2)
    out[:, :, 2:] = q.view(np.uint8).reshape(rows, blocks, QK)
    return out.tobytes()
