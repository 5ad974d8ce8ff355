"""Experts in codebook types: rounded by the runtime's own quantizers, expert by expert."""

import numpy as np

from . import ggml
from .reader import Tensor


def jobs(tensor: Tensor, rows_per_job: int):
    """Split an expert tensor into (expert, first row over all experts, rows); never across two."""
    per_expert = tensor.shape[1]
    for first in range(0, tensor.rows, per_expert):
        for row in range(0, per_expert, rows_per_job):
            yield first // per_expert, first + row, min(rows_per_job, per_expert - row)


def quantize(kind: ggml.GgmlType, weights: np.ndarray, importance, expert: int) -> bytes:
    """Round rows of one expert; `importance` is (experts, columns) or None. See ggml.quantize."""
    return ggml.quantize(kind, weights, None if importance is None else importance[expert])
