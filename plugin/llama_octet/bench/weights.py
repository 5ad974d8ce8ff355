"""Synthetic weights, activations and routing: random, and the same for the same request."""

from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from ..gguf_tools import ggml as types
from ..gguf_tools import int8, rotation

INT8 = "int8"  # octet's own: rotated, one scale per row; stock computes the same in q8_0
SEED = 1  # of the rotation
POOL = 1 << 18  # weights that are really quantized; more rows are drawn from these


@dataclass(frozen=True)
class Kind:
    """A type of weight, as it is asked for."""

    name: str
    ggml: types.GgmlType  # what both sides' tensors are called

    @property
    def is_int8(self) -> bool:
        """Whether it is octet's own."""
        return self.name == INT8


def kind_of(name: str, option: str) -> Kind:
    """The type of that name; UsageError if there is none that weights can have."""
    if name == INT8:
        return Kind(INT8, types.type_by_name("q8_0"))
    found = next((n for n in types._KNOWN_IDS.values() if n.lower() == name.lower()), None)
    kind = types.type_by_name(found) if found else None
    if kind is None or not kind.quantized or not kind.readable:
        raise UsageError(f"{option}: {name!r} is no type of quantized weights (iq3_s, q8_0, int8)")
    return Kind(kind.name, kind)


def check_columns(kind: Kind, columns: int, option: str) -> None:
    """UsageError if rows of so many weights cannot have this type."""
    if columns % kind.ggml.block:
        raise UsageError(
            f"{option}: {kind.name} needs a multiple of {kind.ggml.block} weights in a row, "
            f"not {columns}"
        )
    if kind.is_int8 and not rotation.block_for(columns, 128):
        raise UsageError(f"{option}: rows of {columns} cannot be rotated")


def make(kind: Kind, rows: int, columns: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Blocks of (rows, columns) normal random weights: for stock and for us.

    Quantizing is slow for some types, so a pool of rows is quantized, and every row is one of
    them, drawn at random.
    """
    count = min(rows, max(16, POOL // columns))
    floats = rng.standard_normal((count, columns), np.float32) / np.float32(np.sqrt(columns))
    theirs = _rows(types.quantize(kind.ggml, floats, None), count)
    drawn = rng.integers(0, count, rows)
    if not kind.is_int8:
        theirs = theirs[drawn]
        return theirs, theirs
    turned = rotation.rotate(floats, rotation.block_for(columns, 128), SEED)
    ours = _rows(int8.pack(*int8.quantize(turned, 0)), count)
    return theirs[drawn], ours[drawn]


def random_blocks(kind: Kind, rows: int, columns: int, rng) -> np.ndarray:
    """Blocks whose bits are random, scales apart: for timing only, and made in no time.

    Every type that our kernels know has its scale in front: fp16, or a power of two (mxfp4).
    """
    blocks = np.frombuffer(rng.bytes(rows * kind.ggml.row_bytes(columns)), np.uint8).copy()
    each = blocks.reshape(-1, kind.ggml.size)
    if kind.name == "mxfp4":
        each[:, 0] = 127 - 8  # 2^-8
    else:
        each[:, :2] = np.frombuffer(np.float16(2**-8).tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def _rows(blocks: bytes, rows: int) -> np.ndarray:
    return np.frombuffer(blocks, np.uint8).reshape(rows, -1)


def activations(tokens: int, columns: int, rng) -> np.ndarray:
    """Normal random rows."""
    return rng.standard_normal((tokens, columns), np.float32)


def routing(tokens: int, experts: int, used: int, rng) -> tuple[np.ndarray, np.ndarray]:
    """Experts of every token, all different, some experts more popular than others; weights.

    The popularity of experts is log-normal, which spreads rows about as unevenly as trained
    routers do. The weights of a token add up to one.
    """
    popularity = rng.normal(0, 0.5, experts)
    score = popularity + rng.gumbel(size=(tokens, experts))
    ids = np.argsort(-score, axis=1)[:, :used].astype(np.int32)
    weights = rng.random((tokens, used), np.float32) + np.float32(0.1)
    return ids, weights / weights.sum(axis=1, keepdims=True)
