"""Weights and activations for tests of the kernels: random ones and the extremes."""

import numpy as np
import reference


def blocks(name: str, n: int, k: int, seed=0, group=32) -> np.ndarray:
    """Rows of random file blocks (n, bytes). Some are extreme, their d is subnormal, 0 or large.

    `group`: columns of Q8_0 that share a d, 0 = the row.
    """
    rng = np.random.default_rng([seed, n, k])
    weights, size = reference.BLOCKS[name]
    b = rng.integers(0, 256, (n, k // weights, size), np.uint8)
    b[1::7] = 0xFF
    b[2::7] = 0
    if name == "q8_0":
        b[3::7] = 127
        b[4::7] = 0x81  # −127
        b[5::7] = 0x80  # −128
    d = (rng.uniform(2e-3, 4e-2, b.shape[:2]) * rng.choice([-1, 1], b.shape[:2])).astype(np.float16)
    d[0::5] = np.float16(6e-8) * rng.integers(1, 900, d[0::5].shape).astype(np.float16)
    d[3::11] = 0
    d[4::11] = 60000
    if group != 32:
        shared = (group or k) // 32
        d = np.repeat(d[:, ::shared], shared, axis=1)
    if name == "mxfp4":  # a byte of exponent
        b[:, :, 0] = rng.integers(110, 130, b.shape[:2])
        b[0::5, :, 0] = rng.integers(0, 3, b[0::5, :, 0].shape)
    else:
        b[:, :, :2] = d.astype("<f2")[..., None].view(np.uint8)
    return b.reshape(n, -1)


def rows(count: int, k: int, seed=0, finite=True) -> np.ndarray:
    """f32 activation rows (count, k) of every kind in turn."""
    rng = np.random.default_rng([seed, count, k])
    x = rng.standard_normal((count, k)).astype(np.float32)
    x[1::9] *= np.float32(1e5)
    x[2::9] = 0
    x[3::9] *= np.float32(1e-40)  # subnormal, and so is their d
    x[4::9] = 3.25
    x[5::9] = np.where(np.arange(k) // 2 % 2, np.float32(-0.75), np.float32(0.75))
    x[6::9] = np.ldexp(x[6::9], rng.integers(-20, 20, x[6::9].shape))
    x[7::9, : k // 2] = 0
    if not finite:
        x[0::4, k // 3] = np.nan
        x[1::4, k - 1] = np.inf
        x[2::4, 0] = -np.inf
    return x
