"""Importance matrices as llama.cpp writes them: how much each input column matters, per expert."""

import numpy as np

from .errors import OctetError, shown
from .reader import Model, Tensor

# A column that calibration never touched still gets this share of the mean, so that no block of
# a row is without weight.
_FLOOR = 1e-6


class Importance:
    """An opened importance matrix in GGUF form. Use as a context manager."""

    def __init__(self, path):
        """Open the file and check that it is an importance matrix."""
        self.model = Model(path)
        try:
            if self.model.text("general.type") != "imatrix":
                raise OctetError(
                    f"{path}: not an importance matrix: general.type is not 'imatrix' (write one "
                    "with llama-imatrix, in its GGUF format)"
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

    def of(self, weight: Tensor) -> tuple[np.ndarray | None, list[int]]:
        """Importance of an expert tensor's columns.

        Returns f32 of shape (experts, columns), or None if the matrix does not know the tensor,
        and the experts that calibration never reached: their rows are all ones.
        """
        experts = weight.shape[2] if len(weight.shape) > 2 else 1
        sums = self.model.tensors.get(f"{weight.name}.in_sum2")
        counts = self.model.tensors.get(f"{weight.name}.counts")
        if sums is None or counts is None:
            return None, list(range(experts))
        for tensor in (sums, counts):
            if not tensor.type.readable:
                raise self._wrong(weight, f"is {tensor.type.name}")
        values = sums.floats(0, sums.rows).astype(np.float64)
        seen = counts.floats(0, counts.rows).reshape(-1)
        if values.shape == (1, weight.columns):
            values = np.broadcast_to(values, (experts, weight.columns))
            seen = np.broadcast_to(seen, (experts,)) if seen.size == 1 else seen
        if values.shape != (experts, weight.columns) or seen.shape != (experts,):
            raise self._wrong(
                weight,
                f"has {values.shape[0]} × {values.shape[1]} values, not "
                f"{experts} × {weight.columns}",
            )
        if not (np.isfinite(values).all() and (values >= 0).all() and np.isfinite(seen).all()):
            raise self._wrong(weight, "holds a negative or non-finite value")
        out = np.ones((experts, weight.columns), np.float32)
        known = (seen > 0) & (values > 0).any(axis=1)
        mean = values[known] / seen[known, None]
        out[known] = np.maximum(mean, _FLOOR * mean.mean(axis=1, keepdims=True))
        return out, np.flatnonzero(~known).tolist()

    def _wrong(self, weight: Tensor, what: str) -> OctetError:
        return OctetError(
            f"{self.model.path}: its entry for {shown(weight.name)} {what}: measure it on this "
            "model"
        )
