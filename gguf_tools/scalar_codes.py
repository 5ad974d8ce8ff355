"""Rounding to IQ4_NL and Q2_0 with a search of our own for the scale of every block.

Both types store, per block, a scale d (fp16, of either sign) and for each weight one of a few
integers q. What should be small is Σ w·(x − d·q)², w being the importance of the column. For given
integers the best scale is d = Σwxq / Σwq², which leaves Σwx² − (Σwxq)² / Σwq²; for a given scale
the best integers are the nearest. So some scales are tried, and the best of them is refined, scale
and integers in turns.
"""

from dataclasses import dataclass

import numpy as np

_REFINEMENTS = 3
_PART = 1 << 16  # weights at a time, which stay in a core's cache


@dataclass(frozen=True)
class Codes:
    """A type with `block` weights to a scale, each of them one of `values` (f32, ascending)."""

    block: int
    values: np.ndarray
    # Scales that are tried: largest |x| over d. On normal and on Laplacian weights, with even and
    # with log-normal importance, the error comes within 0.3 % of the smallest there is.
    tries: np.ndarray
    steps: int  # of the table that finds the nearest value, per unit

    def nearest(self, ratio: np.ndarray) -> np.ndarray:
        """Index of the value nearest to each x / d; halfway the larger one."""
        return np.searchsorted((self.values[1:] + self.values[:-1]) / 2, ratio, side="right")


_IQ4_NL = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
CODES = {
    "iq4_nl": Codes(32, np.array(_IQ4_NL, np.float32), np.geomspace(80, 150, 15), 1),
    "q2_0": Codes(64, np.array([-1, 0, 1, 2], np.float32), np.geomspace(0.8, 5, 16), 32),
}


def quantize(name: str, weights: np.ndarray, importance: np.ndarray | None) -> bytes:
    """Round `weights` (rows, columns) to IQ4_NL or Q2_0, a key of CODES.

    `importance`: one positive weight per column, or None. Values must be finite, and within the
    range of fp16.
    """
    codes, columns = CODES[name], weights.shape[1]
    if importance is None:
        importance = np.ones(columns)
    # Only their proportions matter; sums of squares stay far from f32's limits.
    importance = (importance / importance.max()).astype(np.float32).reshape(-1, codes.block)
    x = np.ascontiguousarray(weights, np.float32).reshape(-1, codes.block)
    part = _PART // columns * len(importance) or len(importance)
    out = []
    for at in range(0, len(x), part):
        some = x[at : at + part]
        w = np.tile(importance, (len(some) // len(importance), 1))
        d = best_scales(codes, some, w)
        out.append(pack(codes, d, round_to(codes, some, d)).tobytes())
    return b"".join(out)


def best_scales(codes: Codes, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Scales, fp16 (blocks,), of blocks x (blocks, codes.block) with weights w, both f32."""
    blocks = len(x)
    if blocks == 1:  # numpy would add up a single column in another order
        x, w = np.repeat(x, 2, axis=0), np.repeat(w, 2, axis=0)
    largest = np.abs(x).max(axis=1)
    largest[largest == 0] = 1
    # A column per block: sums over the rows then run in the same order whatever the number of
    # blocks, on long contiguous rows. Values of about 1, so that their squares cannot underflow.
    x, w = np.ascontiguousarray((x / largest[:, None]).T), np.ascontiguousarray(w.T)
    wx = w * x
    top = int(np.ceil(codes.tries[-1] * codes.steps))
    table = codes.values[codes.nearest(np.arange(-top, top + 1) / codes.steps)]
    best = np.full(x.shape[1], -np.inf, np.float32)
    scale = np.zeros(x.shape[1], np.float32)
    scaled, index = np.empty_like(x), np.empty(x.shape, np.int16)
    for ratio in [*codes.tries, *-codes.tries]:
        np.multiply(x, np.float32(ratio * codes.steps), out=scaled)
        np.rint(scaled, out=scaled)
        scaled += top
        np.copyto(index, scaled, casting="unsafe")
        q = table[index]
        along, square = _sums(wx, w, q)
        gain = along * along / square
        better = gain > best
        best[better] = gain[better]
        scale[better] = (along / square)[better]
    for _ in range(_REFINEMENTS):
        with np.errstate(all="ignore"):
            q = codes.values[codes.nearest(np.where(scale == 0, 0, x / scale))]
        along, square = _sums(wx, w, q)
        scale = along / square
    return (scale * largest)[:blocks].astype(np.float16)


def _sums(wx, w, q) -> tuple[np.ndarray, np.ndarray]:
    """Σwxq and Σwq² of every block; the second at least a little."""
    square = np.add.reduce(w * q * q, axis=0)
    return np.add.reduce(wx * q, axis=0), np.maximum(square, np.float32(1e-30))


def round_to(codes: Codes, x: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Indices of the values nearest to x / d: x (blocks, n) and d (blocks,)."""
    d = d.astype(np.float32)[:, None]
    with np.errstate(all="ignore"):
        return codes.nearest(np.where(d == 0, 0, x / d))


def pack(codes: Codes, d: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The file's blocks, uint8 (blocks, bytes), of scales (blocks,) and indices (blocks, block)."""
    blocks = len(d)
    index = index.astype(np.uint8)
    if len(codes.values) == 16:  # byte j: weight j in the low half, weight j + 16 in the high one
        packed = index[:, :16] | index[:, 16:] << 4
    else:  # byte j: weights 4j … 4j + 3, lowest bits first
        four = index.reshape(blocks, -1, 4)
        packed = four[:, :, 0] | four[:, :, 1] << 2 | four[:, :, 2] << 4 | four[:, :, 3] << 6
    return np.concatenate([d.astype("<f2").view(np.uint8).reshape(blocks, 2), packed], axis=1)
