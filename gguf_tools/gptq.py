"""Rounding that makes up for its own errors (GPTQ, Frantar et al. 2022, arXiv:2210.17323).

What counts of a rounded weight W + E is the error of its output, whose mean square over inputs x is
tr(E·G·Eᵀ) with G the mean of x·xᵀ. Columns are rounded one after the other, and what rounding one
has done to the output is undone as far as possible by changing the columns that are still to be
rounded. With G⁻¹ = Uᵀ·U, U upper triangular, the change is −e/U[i,i]·U[i,j] for every column j > i,
e being the error of column i. What is left of the error is Σ (e/U[i,i])².

Only the integers change: the result is a file like any other.
"""

import numpy as np

from . import ggml, int8, scalar_codes

# Share of the mean square of a channel that is added to every one. It keeps G invertible where the
# calibration text did not use all directions, and stands for the noise of rounded activations.
_DAMPING = 0.01


def factor(gram: np.ndarray) -> np.ndarray | None:
    """U of a gram matrix, f64 (K, K), or None if it is all zeros.

    `gram`: mean or sum of x·xᵀ, in the basis in which the weights are rounded.
    """
    mean = np.trace(gram) / len(gram)
    if not mean > 0:
        return None
    damped = gram + _DAMPING * mean * np.eye(len(gram))
    # From the last column to the first: damped = R·Rᵀ with R upper triangular, so U = R⁻¹.
    lower = np.linalg.cholesky(damped[::-1, ::-1])
    return np.triu(np.linalg.inv(lower[::-1, ::-1]))


def round_int8(weights: np.ndarray, group: int, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `int8.quantize` with the errors made up for: the same scales, other integers."""
    _, d = int8.quantize(weights, group)
    columns = weights.shape[1]
    wide = d.astype(np.float64).T  # (ranges, rows)
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide != 0)
    q = np.empty((columns, len(weights)), np.int8)

    def rounded(start: int, block: np.ndarray) -> np.ndarray:
        at = start * len(wide) // columns
        whole = np.clip(np.rint(block * inverse[at]), -127, 127)
        q[start : start + 1] = whole
        return whole * wide[at]

    _sweep(weights, u, 1, rounded)
    return np.ascontiguousarray(q.T), d


def round_codebook(kind: ggml.GgmlType, weights: np.ndarray, u: np.ndarray) -> bytes:
    """Blocks of a codebook type: weights (rows, columns) → as `experts.quantize`.

    IQ4_NL and Q2_0 are rounded column by column, each block's scale being found when the columns
    before it are done. The others, which round whole blocks, make up only for earlier blocks.
    """
    ggml.check_weights(weights)
    codes = scalar_codes.CODES.get(kind.name)
    # What an error costs that the later columns cannot make up for.
    cost = 1 / np.square(np.diagonal(u))
    raw = np.empty((len(weights), weights.shape[1] // kind.block, kind.size), np.uint8)

    def rounded(start: int, block: np.ndarray) -> np.ndarray:
        rows = np.clip(block.T, -ggml.LARGEST_WEIGHT, ggml.LARGEST_WEIGHT).astype(np.float32)
        some = ggml.quantize(kind, rows, cost[start : start + kind.block])
        raw[:, start // kind.block] = np.frombuffer(some, np.uint8).reshape(len(rows), -1)
        return ggml.to_float(kind, some, kind.block).astype(np.float64).T

    def by_column(start: int, block: np.ndarray) -> np.ndarray:
        stop = start + kind.block
        rows = block.T.astype(np.float32)
        importance = cost[start:stop] / cost[start:stop].max()
        d = scalar_codes.best_scales(
            codes, rows, np.tile(importance.astype(np.float32), (len(rows), 1))
        )
        index = np.empty(block.shape, np.uint8)
        wide = d.astype(np.float64)

        def one(at: int, column: np.ndarray) -> np.ndarray:
            index[at] = scalar_codes.round_to(codes, column.T.astype(np.float32), d)[:, 0]
            return (codes.values[index[at]] * wide)[None]

        back = _sweep(rows, u[start:stop, start:stop], 1, one)
        raw[:, start // kind.block] = scalar_codes.pack(codes, d, index.T)
        return back

    _sweep(weights, u, kind.block, by_column if codes else rounded)
    return raw.tobytes()


def _sweep(weights: np.ndarray, u: np.ndarray, width: int, rounded) -> np.ndarray:
    """Round `width` columns after the other; returns what they became, transposed.

    `rounded(start, block)`: the values that columns start … become, block and result being f64
    (width, rows).
    """
    w = np.ascontiguousarray(weights.T, np.float64)
    out, errors = np.empty(w.shape), np.empty(w.shape)

    def sweep(first: int, last: int) -> None:
        if last - first == width:
            out[first:last] = rounded(first, w[first:last])
            # Rows of columns: e·U⁻¹ of the block, which for one column is a division.
            errors[first:last] = np.linalg.solve(
                u[first:last, first:last].T, w[first:last] - out[first:last]
            )
            return
        # By halves, so that nearly all of the work is products of matrices.
        middle = first + (last - first) // width // 2 * width
        sweep(first, middle)
        w[middle:last] -= u[first:middle, middle:last].T @ errors[first:middle]
        sweep(middle, last)

    sweep(0, len(w))
    return out
