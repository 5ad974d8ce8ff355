"""Experts in codebook types, rounded expert by expert.

IQ4_NL and Q2_0 have a search of our own (scalar_codes), which finds smaller errors than the
runtime's; the other types are rounded by the runtime's quantizers.
"""

import numpy as np

from . import ggml, scalar_codes
from .shard import Tensor


def jobs(tensor: Tensor, rows_per_job: int):
    """Split an expert tensor into (expert, first row over all experts, rows); never across two."""
    per_expert = tensor.shape[1]
    for first in range(0, tensor.rows, per_expert):
        for row in range(0, per_expert, rows_per_job):
            yield first // per_expert, first + row, min(rows_per_job, per_expert - row)


def quantize(kind: ggml.GgmlType, weights: np.ndarray, importance, expert: int) -> bytes:
    """Round rows of one expert; `importance` is (experts, columns) or None. See ggml.quantize."""
    of_columns = None if importance is None else importance[expert]
    if kind.name not in scalar_codes.CODES:
        return ggml.quantize(kind, weights, of_columns)
    ggml.check_weights(weights)
    return scalar_codes.quantize(kind.name, weights, of_columns)
