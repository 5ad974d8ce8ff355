"""What rotation and scales cost in single products, also choices that files cannot hold.

    python -m llama_octet.layer_inputs MODEL TEXT samples.npz 256 1
    python -m llama_octet.gguf_tools.evaluate.rotations MODEL samples.npz 'blk.[05].attn_q.weight' …

prints the root mean square, over the named weights, of the relative output error in percent: of
blocks and scale groups, with weights, activations or both rounded; of the signs. This is where the
tables of docs/fidelity.md come from.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from .. import int8, rotation
from ..reader import Model
from .layers import rounded


def hash16(columns: int, seed: int) -> np.ndarray:
    """The signs of docs/format.md."""
    return rotation.signs(columns, seed)


def hash32(columns: int, seed: int) -> np.ndarray:
    """Signs by a 32-bit hash: the finalizer of MurmurHash3 (Appleby)."""
    h = np.arange(columns, dtype=np.uint32) + np.uint32(seed * 0x9E3779B1 + 1 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> np.uint32(shift)) * np.uint32(factor)
    return np.where((h ^ h >> np.uint32(16)) >> np.uint32(31), -1.0, 1.0)


@dataclass(frozen=True)
class Choice:
    """Block (0 = none), columns per scale of weights and of activations (0 = row, None = exact)."""

    block: int
    weights: int | None
    activations: int | None
    signs: Callable[[int, int], np.ndarray] = hash16
    seed: int = 0


def turned(x: np.ndarray, choice: Choice) -> np.ndarray:
    """H·D·x of rows, in f64, for any block that is a power of two and divides them."""
    if not choice.block:
        return x.astype(np.float64)
    y = (x * choice.signs(x.shape[1], choice.seed)).reshape(-1, choice.block)
    step = 1
    while step < choice.block:
        pairs = y.reshape(-1, 2, step)
        y = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        step *= 2
    return y.reshape(x.shape) / np.sqrt(choice.block)


def error(weights: np.ndarray, x: np.ndarray, choice: Choice) -> float:
    """Mean square of x·Wᵀ's error over that of x·Wᵀ: weights (rows, K), x (tokens, K)."""
    w, v = turned(weights, choice), turned(x, choice)
    exact = v @ w.T
    if choice.weights is not None:
        q, d = int8.quantize(w, choice.weights)
        w = (q.reshape(*d.shape, -1) * d.astype(np.float64)[:, :, None]).reshape(w.shape)
    if choice.activations is not None:
        v = rounded(v.astype(np.float32), choice.activations).astype(np.float64)
    return float(np.square(v @ w.T - exact).sum() / np.square(exact).sum())


def percent(products: list, choice: Choice) -> float | None:
    """Root mean square of the errors of products (W, x); None if the block divides none's rows."""
    fits = [p for p in products if not choice.block or p[0].shape[1] % choice.block == 0]
    if not fits:
        return None
    return 100 * float(np.sqrt(np.mean([error(w, x, choice) for w, x in fits])))


def main(model: str, samples: str, *patterns: str) -> None:
    """Print the tables."""
    kept = np.load(samples)
    first = dict(zip(kept["names"].tolist(), kept["first"].tolist(), strict=True))
    products = []
    with Model(model) as file:
        for name, of in first.items():
            if any(fnmatchcase(name, p) for p in patterns) and f"{of}@experts" not in kept:
                tensor = file.tensors[name]
                w = tensor.floats(0, min(tensor.rows, 640)).astype(np.float64)
                products.append((w, kept[of][:96].astype(np.float64)))
    print(f"{len(products)} weights")
    for group in (0, 128, 32):
        for block in (0, 32, 64, 128):
            both = Choice(block, group, group)
            cells = [both, replace(both, activations=None), replace(both, weights=None)]
            told = ", ".join(f"{percent(products, c):.3f}" for c in cells)
            print(f"scale {group or 'row'}, block {block}: both, weights, activations: {told}")
    wide = [p for p in products if p[0].shape[1] % 256 == 0]
    for block in (64, 128, 256) if wide else ():
        told = percent(wide, Choice(block, 0, 0))
        print(f"rows of 256·n alone, scale row, block {block}: {told:.3f}")
    for of_weights, of_activations in ((0, 128), (0, 32), (128, 32)):
        told = percent(products, Choice(128, of_weights, of_activations))
        print(f"scales {of_weights or 'row'}, of activations {of_activations}: {told:.3f}")
    for signs in (hash16, hash32):
        some = [percent(products, Choice(128, 0, 0, signs, seed)) for seed in range(6)]
        print(
            f"{signs.__name__}: mean {np.mean(some):.4f}, deviation {np.std(some):.4f} over seeds"
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
