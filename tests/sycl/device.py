"""Weights, activations and jobs for tests of the device code, in the layouts of launch.h."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import reference

_SYCL = Path(__file__).resolve().parents[2] / "sycl"
sys.path.insert(0, str(_SYCL))
sys.path.insert(0, str(_SYCL / "kernels"))

import codebooks  # noqa: E402
from offline.build import build  # noqa: E402
from offline.execute import Buffer, Kernel  # noqa: E402
from offline.variants import FLOAT_FORMATS, FORMATS, Variant  # noqa: E402

JOB = np.dtype(
    [("weights", "u8"), ("first", "i4"), ("tiles", "i4"), ("column", "i4"), ("rest", "i4", 3)]
)
_kernels: dict[Variant, Kernel] = {}


def kernel(variant: Variant) -> Kernel:
    """A kernel that can be launched, made once."""
    if variant not in _kernels:
        _kernels[variant] = Kernel(build(variant))
    return _kernels[variant]


def file_type(format: str) -> str:
    """The name that the reference knows a device format by."""
    return format.split("_128")[0].split("_row")[0]


def columns_per_scale(format: str, k: int) -> int:
    """Columns that share an activation scale."""
    return {"q8_0_128": 128, "q8_0_row": k}.get(format, 32)


def codebook(format: str) -> Buffer:
    """The argument of a kernel of that format."""
    for number, _, cls in codebooks.CODEBOOKS:
        if (FORMATS + FLOAT_FORMATS)[number] == format:
            return Buffer(codebooks.words(cls))
    return Buffer(np.zeros(0, np.uint32))  # not to be read


@dataclass
class Matrix:
    """Weights of one expert: the file's blocks, and what they mean."""

    format: str
    blob: Buffer
    codes: np.ndarray
    scale: np.ndarray


def matrix(format: str, n: int, k: int, rng: np.random.Generator, at_end: bool = True) -> Matrix:
    """Random blocks; some d are subnormal or zero. The blob ends (or starts) at a guard page."""
    weights, size = reference.BLOCKS[file_type(format)]
    blocks = rng.integers(0, 256, (n, k // weights, size), dtype=np.uint8)
    group = columns_per_scale(format, k)
    d = rng.normal(0, 0.01, (n, max(1, k // max(group, weights)))).astype(np.float16)
    d[rng.random(d.shape) < 0.1] = np.float16(3e-7)
    d[rng.random(d.shape) < 0.02] = 0
    d = np.repeat(d, blocks.shape[1] // d.shape[1], axis=1)
    if format == "mxfp4":
        blocks[:, :, 0] = rng.choice([0, 1, 2, 100, 104, 120, 127, 141, 142, 254], blocks.shape[:2])
    else:
        blocks[:, :, :2] = d[..., None].view(np.uint8)
    codes, scale = reference.decode(file_type(format), blocks.reshape(n, -1))
    if group > 32:
        scale = scale[:, :: group // 32]
    return Matrix(format, Buffer(blocks, at_end), codes, scale)


def tile_count(rows: int) -> int:
    """Tiles of 8 that an expert's rows fill."""
    return -(-rows // 8)


def to_tiles(q: np.ndarray, d: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows q (rows, k) and d (rows, groups) in the order of dpas, padded with zeros."""
    tiles = tile_count(len(q))
    padding = 8 * tiles - len(q)
    q = np.pad(q, ((0, padding), (0, 0))).reshape(tiles, 8, q.shape[1] // 32, 32)
    d = np.pad(d, ((0, padding), (0, 0))).reshape(tiles, 8, d.shape[1])
    return q.transpose(0, 2, 1, 3), d.transpose(0, 2, 1)


@dataclass
class Layout:
    """Where the rows of experts go: experts in order, each beginning a new tile."""

    rows: list[int]
    first: list[int] = field(init=False)

    def __post_init__(self):
        """First tile of each expert."""
        self.first = list(np.cumsum([0, *(tile_count(r) for r in self.rows)])[:-1])

    @property
    def tiles(self) -> int:
        """Tiles of all experts."""
        return sum(tile_count(r) for r in self.rows)

    def positions(self) -> np.ndarray:
        """Position of each row, in order."""
        return np.concatenate(
            [8 * f + np.arange(r) for f, r in zip(self.first, self.rows, strict=True)]
        ).astype(np.int64)

    def by_position(self, values: np.ndarray) -> Buffer:
        """int32 (positions): values of the rows, -1 elsewhere."""
        out = np.full(8 * self.tiles, -1, np.int32)
        out[self.positions()] = values
        return Buffer(out)

    def jobs(self, blobs: list[Buffer], mt: int, column: int = 0) -> np.ndarray:
        """Jobs of one matrix of each expert, with up to mt tiles."""
        out = []
        for blob, first, rows in zip(blobs, self.first, self.rows, strict=True):
            for t in range(0, tile_count(rows), mt):
                tiles = min(mt, tile_count(rows) - t)
                out.append((blob.address, first + t, tiles, column, (0, 0, 0)))
        return np.array(out, JOB)


def product_range(jobs: np.ndarray, n: int, wg: int) -> tuple[tuple[int, int], int]:
    """Range of a launch of products, and its group."""
    group = 8 if wg else 1
    return (len(jobs), -(-n // 16 // group) * group), group
