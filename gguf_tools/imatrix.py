"""Importance matrices as llama.cpp writes them, and what `octet calibrate` adds to them.

Every product (a weight called W and its input x of K channels) has these F32 tensors; E is the
number of experts, 1 for a dense weight. Only the first two are llama.cpp's, the others are in files
of `octet calibrate` only. (llama.cpp passes over what does not end in .in_sum2 or .counts.)

| tensor | shape | per expert |
|---|---|---|
| W.in_sum2 | K × E | sum of x² over the tokens |
| W.counts | 1 × E | tokens |
| W.in_max | K × E | largest abs(x) |
| W.rotated_sum2, W.rotated_max | K × E | the same of the rotated x (docs/format.md), if K can be |
| W.gram | K × K·E | sum of x·xᵀ, not rotated, where `--gram` asked for it |

Metadata: `imatrix.rotation.block` (wished; a row has the largest block up to it that fits),
`.seed` and `.hash`; `imatrix.products`, the names W, and `imatrix.input_of`, for each of them the
first product that reads the same x: W.gram is stored for that one alone.
"""

from dataclasses import dataclass, field

import numpy as np

from . import rotation, writer
from .errors import OctetError, shown
from .ggml import type_by_name
from .reader import Model
from .shard import Tensor

# A column that calibration never touched still gets this share of the mean, so that no block of
# a row is without weight.
_FLOOR = 1e-6


@dataclass
class Statistics:
    """What a product's input was like. Arrays of f64, a row per expert (a dense weight has one).

    `counts` (E,): tokens. `sum2` (E, K): sums of x². `largest` (E, K): of abs(x). `rotated_…`: the
    same of the rotated x. None: not known.
    """

    counts: np.ndarray
    sum2: np.ndarray
    largest: np.ndarray | None = None
    rotated_sum2: np.ndarray | None = None
    rotated_largest: np.ndarray | None = None

    @property
    def seen(self) -> np.ndarray:
        """Which experts saw a token that was not all zeros: (E,) bool."""
        return (self.counts > 0) & (self.sum2 > 0).any(axis=1)

    @property
    def mean2(self) -> np.ndarray:
        """Mean of x², (E, K); zeros for an expert without tokens."""
        return self.sum2 / np.maximum(self.counts, 1)[:, None]


@dataclass
class Contents:
    """What `write` puts into a file; see the top of this module."""

    datasets: list[str]  # names of the texts
    chunks: int
    chunk_size: int  # tokens
    block: int  # wished for the rotation
    seed: int
    products: dict[str, Statistics] = field(default_factory=dict)
    input_of: dict[str, str] = field(default_factory=dict)
    grams: dict[str, np.ndarray] = field(default_factory=dict)  # f32 (E, K, K), sums


class Importance:
    """An opened importance matrix in GGUF form. Use as a context manager.

    `block`, `seed`: of the rotated statistics; block 0 if the file has none.
    """

    def __init__(self, path):
        """Open the file and check that it is an importance matrix."""
        self.model = Model(path)
        try:
            if self.model.text("general.type") != "imatrix":
                raise OctetError(
                    f"{path}: not an importance matrix: general.type is not 'imatrix' (write one "
                    "with octet calibrate, or with llama-imatrix in its GGUF format)"
                )
            self.block = self.model.get("imatrix.rotation.block", 0)
            self.seed = self.model.get("imatrix.rotation.seed", 0)
            kind = self.model.get("imatrix.rotation.hash", rotation.HASH)
            if self.block not in (0, *rotation.BLOCKS) or kind != rotation.HASH:
                raise OctetError(
                    f"{path}: was measured in a rotation that this llama-octet does not know: "
                    "measure it again with octet calibrate"
                )
            self._input_of = dict(
                zip(self._names("imatrix.products"), self._names("imatrix.input_of"), strict=False)
            )
        except BaseException:
            self.model.close()
            raise

    def __enter__(self):
        """Return the matrix itself."""
        return self

    def __exit__(self, *_):
        """Close the file."""
        self.model.close()

    def _names(self, key: str) -> list[str]:
        found = self.model.get(key, [])
        return found if isinstance(found, list) else []

    def names(self) -> list[str]:
        """The weights that it knows."""
        suffix = ".in_sum2"
        return [name[: -len(suffix)] for name in self.model.tensors if name.endswith(suffix)]

    @property
    def has_ranges(self) -> bool:
        """Whether it tells how large channels get (files of llama-imatrix do not)."""
        return any(name.endswith(".in_max") for name in self.model.tensors)

    def input_of(self, name: str) -> str:
        """The first product that reads the same input as product `name`; itself if not known."""
        return self._input_of.get(name, name)

    def statistics(self, weight: Tensor) -> Statistics | None:
        """What the input of `weight` was like; None if the matrix does not know the weight.

        One row for all experts, as old files have, is repeated for each. OctetError if the entry
        is not of this weight's shape or holds what cannot be.
        """
        experts = weight.shape[2] if len(weight.shape) > 2 else 1
        sums, counts = self._table(weight, "in_sum2"), self._table(weight, "counts")
        if sums is None or counts is None:
            return None
        wanted, seen = (experts, weight.columns), counts.reshape(-1)
        if sums.shape == (1, experts * weight.columns):  # one product per head, counted together
            sums = sums.reshape(wanted)
        if sums.shape[0] == 1:
            sums = np.broadcast_to(sums, (experts, sums.shape[1]))
        if seen.size == 1:
            seen = np.broadcast_to(seen, (experts,))
        if sums.shape != wanted or seen.shape != (experts,):
            raise self._wrong(
                weight,
                f"has {sums.shape[0]} × {sums.shape[1]} values, not {experts} × {weight.columns}",
            )
        found = Statistics(seen, sums)
        rotated = self.block and rotation.block_for(weight.columns, self.block)
        more = {"largest": "in_max"}
        if rotated:
            more |= {"rotated_sum2": "rotated_sum2", "rotated_largest": "rotated_max"}
        for attribute, suffix in more.items():
            table = self._table(weight, suffix)
            if table is not None:
                if table.size != experts * weight.columns:
                    raise self._wrong(weight, f"has {table.size} values as .{suffix}")
                setattr(found, attribute, table.reshape(wanted))
        return found

    def of(
        self, weight: Tensor, block: int = 0, seed: int = 0
    ) -> tuple[np.ndarray | None, list[int]]:
        """Importance of a weight's columns: the mean of x², in the basis of a rotation.

        `block`, `seed`: of the rotation the weight is stored in; block 0 is the plain basis.
        Returns f32 of shape (experts, columns), or None if the matrix does not know the weight,
        and the experts that calibration never reached: their rows are all ones. OctetError if the
        file has no statistics for this rotation.
        """
        experts = weight.shape[2] if len(weight.shape) > 2 else 1
        found = self.statistics(weight)
        if found is None:
            return None, list(range(experts))
        sums = found.sum2 if not block else self._rotated(weight, found, block, seed)
        out = np.ones(sums.shape, np.float32)
        known = found.seen
        mean = sums[known] / found.counts[known, None]
        out[known] = np.maximum(mean, _FLOOR * mean.mean(axis=1, keepdims=True))
        return out, np.flatnonzero(~known).tolist()

    def has_gram(self, weight: Tensor) -> bool:
        """Whether `gram` will find the matrices of a weight."""
        return f"{self.input_of(weight.name)}.gram" in self.model.tensors

    def gram(self, weight: Tensor, expert: int = 0) -> np.ndarray | None:
        """Mean of x·xᵀ in the plain basis, f64 (K, K); None if the file does not have it.

        All zeros for an expert without tokens. In the basis of a rotation it is
        `rotation.rotate(rotation.rotate(gram, …).T, …)`.
        """
        owner, k = self.input_of(weight.name), weight.columns
        sums, counts = (self.model.tensors.get(f"{owner}.{s}") for s in ("gram", "counts"))
        if sums is None or counts is None:
            return None
        if sums.columns != k or sums.rows % k or expert * k >= sums.rows:
            raise self._wrong(weight, "has a .gram of another shape")
        seen = self._floats(weight, counts).reshape(-1)
        rows = sums.floats(expert * k, k).astype(np.float64)
        if not np.isfinite(rows).all() or seen.size * k != sums.rows:
            raise self._wrong(weight, "has a .gram that is damaged")
        return rows / max(seen[expert], 1)

    def _rotated(self, weight: Tensor, found: Statistics, block: int, seed: int) -> np.ndarray:
        stored = self.block and rotation.block_for(weight.columns, self.block)
        if found.rotated_sum2 is not None and (stored, self.seed) == (block, seed):
            return found.rotated_sum2
        out = np.empty_like(found.sum2)
        for expert in range(len(out)):
            gram = self.gram(weight, expert)
            if gram is None:
                raise self._wrong(
                    weight, f"was not measured in the rotation of block {block}, seed {seed}"
                )
            once = rotation.rotate(gram, block, seed)
            out[expert] = np.diagonal(rotation.rotate(np.ascontiguousarray(once.T), block, seed))
        return np.maximum(out, 0) * np.maximum(found.counts, 1)[:, None]

    def _table(self, weight: Tensor, suffix: str) -> np.ndarray | None:
        tensor = self.model.tensors.get(f"{weight.name}.{suffix}")
        return None if tensor is None else self._floats(weight, tensor)

    def _floats(self, weight: Tensor, tensor: Tensor) -> np.ndarray:
        if not tensor.type.readable:
            raise self._wrong(weight, f"is {tensor.type.name}")
        values = tensor.floats(0, tensor.rows).astype(np.float64)
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise self._wrong(weight, "holds a negative or non-finite value")
        return values

    def _wrong(self, weight: Tensor, what: str) -> OctetError:
        return OctetError(
            f"{self.model.path}: its entry for {shown(weight.name)} {what}: measure it on this "
            "model"
        )


def write(path, contents: Contents) -> int:
    """Write an importance matrix, whole or not at all; returns its bytes."""
    f32 = type_by_name("f32").id
    entries = [
        writer.string("general.type", "imatrix"),
        writer.strings("imatrix.datasets", contents.datasets),
        writer.u32("imatrix.chunk_count", contents.chunks),
        writer.u32("imatrix.chunk_size", contents.chunk_size),
        writer.u32("imatrix.rotation.block", contents.block),
        writer.u32("imatrix.rotation.seed", contents.seed),
        writer.string("imatrix.rotation.hash", rotation.HASH),
        writer.strings("imatrix.products", list(contents.input_of)),
        writer.strings("imatrix.input_of", list(contents.input_of.values())),
    ]
    tables: list[tuple[str, np.ndarray]] = []
    for name, s in sorted(contents.products.items()):
        tables += [(f"{name}.in_sum2", s.sum2), (f"{name}.counts", s.counts.reshape(-1, 1))]
        for suffix, table in (
            ("in_max", s.largest),
            ("rotated_sum2", s.rotated_sum2),
            ("rotated_max", s.rotated_largest),
        ):
            if table is not None:
                tables.append((f"{name}.{suffix}", table))
    tables += [(f"{n}.gram", g.reshape(-1, g.shape[-1])) for n, g in sorted(contents.grams.items())]
    head = writer.header(
        entries, [(name, table.shape[::-1], f32, 4 * table.size) for name, table in tables]
    )
    size = len(head) + sum(4 * t.size + writer.padding(4 * t.size) for _, t in tables)
    with writer.whole_file(path, size) as file:
        file.write(head)
        for _, table in tables:
            file.write(table.astype("<f4").tobytes())
            file.write(bytes(writer.padding(4 * table.size)))
    return size
