"""The arithmetic of the project, stated once and slowly, for tests to compare against.

First what a file holds (docs/format.md), in loops over Python integers and f64; then what the
kernels compute, rounding by rounding. Nothing here is shared with the package.
"""

import math

import gguf
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
    return b"".join(scales[i].tobytes() + q[32 * i : 32 * i + 32].tobytes() for i in range(blocks))


# ---- f32 with its roundings -----------------------------------------------------------------

F32 = np.float32


def fma(a, b, c) -> np.ndarray:
    """`a·b + c` of f32 arrays, rounded once to f32.

    The product of two f32 is exact in f64. Their sum with c is not, and rounding it first to f64
    and then to f32 could go wrong on a tie. So the f64 sum is rounded to odd: if it is inexact
    and its last bit is 0, it becomes the odd neighbour on the side of the true value. f64 has
    more than two bits to spare over f32, and then the second rounding is the right one.
    """
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        c = np.asarray(c, np.float64)
        total = product + c
        high = total - product
        error = (product - (total - high)) + (c - high)  # exactly what the sum lost
        bits = np.atleast_1d(total).view(np.int64)
        outward = np.atleast_1d((error > 0) == (total > 0))
        inexact = np.atleast_1d((error != 0) & np.isfinite(total) & np.isfinite(error))
        bits = bits + np.where(inexact & (bits & 1 == 0), np.where(outward, 1, -1), 0)
        return bits.view(np.float64).reshape(total.shape).astype(F32)


# ---- weights of the codebook formats --------------------------------------------------------

IQ4_NL = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
MXFP4 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
# Weights and bytes of a block of the file.
BLOCKS = {
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "mxfp4": (32, 17),
    "iq4_nl": (32, 18),
    "iq4_xs": (256, 136),
    "q2_0": (64, 18),
    "iq3_s": (256, 110),
    "iq3_xxs": (256, 98),
    "iq2_s": (256, 82),
    "iq2_xs": (256, 74),
    "iq2_xxs": (256, 66),
}


def _grid(name: str) -> np.ndarray:
    cls = getattr(gguf.quants, name.upper())
    cls.init_grid()
    return np.asarray(cls.grid).reshape(cls.grid_shape).astype(np.int8)


def _signs(bits: np.ndarray) -> np.ndarray:
    """A byte (…) as eight signs (…, 8), lowest bit first; a set bit is −1."""
    return 1 - 2 * (bits[..., None] >> np.arange(8) & 1).astype(np.int8)


def _parity(bits: np.ndarray) -> np.ndarray:
    """Seven sign bits with the eighth on top that makes their number even."""
    return bits | np.bitwise_xor.reduce(bits[..., None] >> np.arange(7) & 1, axis=-1) << 7


def _nibbles(b: np.ndarray) -> np.ndarray:
    """Groups of 16 bytes (…, 16·groups) as 32 nibbles each: the low ones first."""
    b = b.reshape(*b.shape[:-1], -1, 16)
    return np.concatenate([b & 15, b >> 4], axis=-1).reshape(*b.shape[:-2], -1)


def _pairs(b: np.ndarray) -> np.ndarray:
    """Bytes (…, n) as their two nibbles each (…, 2n)."""
    return (b[..., None] >> np.array([0, 4]) & 15).reshape(*b.shape[:-1], -1)


def decode(name: str, blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of file blocks (rows, bytes): int8 codes (rows, k) and their f32 scales (rows, k / …).

    A weight is code · scale, exactly, and so is the scale itself: d has 11 significant bits, its
    multiplier at most 6.
    """
    size = BLOCKS[name][1]
    rows = len(blocks)
    blocks = np.ascontiguousarray(blocks).reshape(-1, size)
    b = blocks.astype(np.int64)
    d = blocks[:, :2].copy().view("<f2").astype(np.float64)
    if name == "q8_0":
        codes, scale = b[:, 2:].astype(np.int8), d
    elif name == "q4_0":
        codes, scale = _nibbles(b[:, 2:]) - 8, d
    elif name == "mxfp4":  # an exponent; values are doubled
        codes, scale = MXFP4[_nibbles(b[:, 1:])], np.ldexp(1.0, b[:, :1] - 128)
    elif name == "iq4_nl":
        codes, scale = IQ4_NL[_nibbles(b[:, 2:])], d
    elif name == "iq4_xs":
        high = (b[:, 2:3] | b[:, 3:4] << 8) >> (2 * np.arange(8)) & 3
        codes, scale = IQ4_NL[_nibbles(b[:, 8:])], d * ((_pairs(b[:, 4:8]) | high << 4) - 32)
    elif name == "q2_0":
        codes = (b[:, 2:, None] >> (2 * np.arange(4)) & 3) - 1
        scale = np.repeat(d, 2, axis=1)  # d spans 64 weights, a dot product 32
    elif name == "iq3_s":
        high = b[:, 66:74, None] >> np.arange(8) & 1
        grid = _grid(name)[b[:, 2:66].reshape(-1, 8, 8) | high << 8]
        codes = grid.reshape(-1, 32, 8) * _signs(b[:, 74:106])
        scale = d * (1 + 2 * _pairs(b[:, 106:110]))
    elif name == "iq3_xxs":
        aux = blocks[:, 66:98].copy().view("<u4").astype(np.int64)
        signs = _signs(_parity(aux[..., None] >> (7 * np.arange(4)) & 127))
        codes = _grid(name)[b[:, 2:66]].reshape(-1, 8, 4, 8) * signs
        scale = d * (2 * (aux >> 28) + 1) / 4
    elif name == "iq2_s":
        high = b[:, 66:74, None] >> (2 * np.arange(4)) & 3
        grid = _grid(name)[b[:, 2:34].reshape(-1, 8, 4) | high << 8]
        codes = grid.reshape(-1, 32, 8) * _signs(b[:, 34:66])
        scale = d * (2 * _pairs(b[:, 74:82]) + 1) / 8
    elif name == "iq2_xs":
        entry = blocks[:, 2:66].copy().view("<u2").astype(np.int64)
        codes = _grid(name)[entry & 511] * _signs(_parity(entry >> 9))
        scale = d * (2 * _pairs(b[:, 66:74]) + 1) / 8
    else:  # iq2_xxs
        aux = blocks[:, 2:66].copy().view("<u4").astype(np.int64)[:, 1::2]
        signs = _signs(_parity(aux[..., None] >> (7 * np.arange(4)) & 127))
        codes = _grid(name)[b[:, 2:66].reshape(-1, 8, 8)[:, :, :4]] * signs
        scale = d * (2 * (aux >> 28) + 1) / 8
    return codes.reshape(rows, -1).astype(np.int8), scale.reshape(rows, -1).astype(F32)


# ---- activations and products ---------------------------------------------------------------


def rotate_rows(x: np.ndarray, block: int, seed: int) -> np.ndarray:
    """f32 rows (rows, k) as the run time rotates them: `rotate`, all rows at once."""
    k = x.shape[1]
    y = x.astype(F32) * np.array([sign(j, seed) for j in range(k)], F32)
    h = 1
    while h < block:
        pairs = y.reshape(-1, 2, h)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        h *= 2
    return y.reshape(x.shape) * F32(math.sqrt(1 / block))


def quantize_rows(x: np.ndarray, group: int) -> tuple[np.ndarray, np.ndarray]:
    """f32 rows (rows, k) as int8 (rows, k) and f32 scales (rows, k / group).

    Per group d = max|x| / 127, q = x / d rounded half away from zero. Where d is 0, q is 0. Where
    x is not finite, d is NaN and q is 0, so that no product with the row is finite either.
    """
    parts = x.astype(F32).reshape(len(x), -1, group)
    finite = np.isfinite(parts).all(axis=2)
    d = np.where(finite, np.abs(parts).max(axis=2) / F32(127), F32("nan"))
    with np.errstate(all="ignore"):
        # Where d is so small that it is rounded coarsely, the quotient can pass 127.
        y = np.clip(parts / d[..., None], F32(-127), F32(127))
        y = np.where((d > 0)[..., None], y, F32(0))
    whole = np.trunc(y)
    whole += np.where(np.abs(y - whole) >= 0.5, np.sign(y), F32(0))
    return whole.reshape(x.shape).astype(np.int8), d


def product(q, d, codes, scale) -> np.ndarray:
    """out (rows, n): activations q (rows, k), d (rows, …) times weights codes (n, k), scale (n, …).

    Per range of columns that shares a weight scale, ascending: the integers' dot product, exact
    and then rounded to f32, times the product of the two scales, in one fma.
    """
    k, ranges = q.shape[1], scale.shape[1]
    width = k // ranges
    group = k // d.shape[1]
    out = np.zeros((len(q), len(codes)), F32)
    for r in range(ranges):
        columns = slice(r * width, (r + 1) * width)
        # Sums of integers below 2^53 are exact in f64, and fast.
        dot = q[:, columns].astype(np.float64) @ codes[:, columns].astype(np.float64).T
        with np.errstate(all="ignore"):
            s = scale[None, :, r] * d[:, r * width // group, None]
        out = fma(dot.astype(F32), s, out)
    return out


def product_exact(q, d, codes, scale) -> tuple[np.ndarray, np.ndarray]:
    """The same in f64, and the sum of the magnitudes of its terms (one term per range)."""
    k, ranges = q.shape[1], scale.shape[1]
    shape = (-1, ranges, k // ranges)
    dot = np.einsum(
        "rgj,ngj->rng",
        q.reshape(shape).astype(np.float64),
        codes.reshape(shape).astype(np.float64),
        optimize=True,
    )
    wide = np.repeat(d.astype(np.float64), ranges // d.shape[1], axis=1)
    terms = dot * wide[:, None, :] * scale.astype(np.float64)[None, :, :]
    return terms.sum(axis=2), np.abs(terms).sum(axis=2)


def product_float(x, codes, scale) -> np.ndarray:
    """out (rows, n): f32 rows x times the dequantized weights, one fma per column, ascending."""
    weights = codes * np.repeat(scale, codes.shape[1] // scale.shape[1], axis=1)
    out = np.zeros((len(x), len(codes)), F32)
    for j in range(codes.shape[1]):
        out = fma(x[:, j, None], weights[None, :, j], out)
    return out


# ---- the expert layer -----------------------------------------------------------------------


def exp(x) -> np.ndarray:
    """e^x of f32, x clamped to [−87, 88]: n·ln 2 split off, Taylor's series to degree 7."""
    x = np.clip(np.asarray(x, F32), F32(-87), F32(88))
    magic = F32(1.5 * 2**23)  # adding it rounds to an integer
    n = (x * F32(math.log2(math.e)) + magic) - magic
    r = fma(n, F32(-0.693145751953125), x)
    r = fma(n, F32(-1.42860682030941723e-6), r)
    p = F32(1) / F32(5040)
    for factorial in (720, 120, 24, 6, 2, 1, 1):
        p = fma(p, r, F32(1) / F32(factorial))
    return np.ldexp(p, np.nan_to_num(n).astype(np.int32))


def _times_sigmoid(x, z):
    return x / (F32(1) + exp(-z))


def glu(op: str, g, u) -> np.ndarray:
    """act(g)·u of f32, every operation rounded; gelu is the one with tanh, as x·sigmoid(…)."""
    g, u = np.asarray(g, F32), np.asarray(u, F32)
    with np.errstate(all="ignore"):
        if op == "swiglu":
            return _times_sigmoid(g, g) * u
        if op == "geglu":
            inner = g * (F32(1) + F32(0.044715) * (g * g))
            return _times_sigmoid(g, F32(2 * math.sqrt(2 / math.pi)) * inner) * u
        return np.where(g < 0, F32(0), g) * u


def weighted_sum(y, w) -> np.ndarray:
    """y (count, n), w (count): every product and every sum rounded, in order."""
    out = w[0] * y[0]
    for row, weight in zip(y[1:], w[1:], strict=True):
        out = out + weight * row
    return out


def multiply(x, weight: tuple, rotation: tuple | None = None) -> np.ndarray:
    """f32 rows x times (codes, scale): rotated by (block, seed), quantized, multiplied."""
    codes, scale = weight
    if rotation:
        x = rotate_rows(x, *rotation)
    width = codes.shape[1] // scale.shape[1]
    return product(*quantize_rows(x, max(width, 32)), codes, scale)


def expert_layer(x, ids, weights, gate, up, down, op: str) -> np.ndarray:
    """out (tokens, n): x (tokens, k) through the experts ids (tokens, used), weighted and summed.

    gate, up and down: one (codes, scale) per expert.
    """
    out = []
    for row, experts, w in zip(x, ids, weights, strict=True):
        y = []
        for e in experts:
            h = glu(op, multiply(row[None], gate[e]), multiply(row[None], up[e]))
            y.append(multiply(h, down[e])[0])
        out.append(weighted_sum(np.array(y), w))
    return np.array(out)
