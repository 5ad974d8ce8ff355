"""Small models that many tests read and none may change."""

import gguf
import models
import numpy as np
import pytest


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def moe(folder):
    return models.random_moe(folder / "moe.gguf", experts=4, layers=1)


@pytest.fixture(scope="session")
def dense(folder):
    return models.random_dense(folder / "dense.gguf", layers=1)


@pytest.fixture(scope="session")
def tied(folder):
    return models.random_dense(folder / "tied.gguf", arch="gemma3", layers=1)


def read(path):
    """A file through gguf-py: (metadata as {key: (types, value)}, {name: tensor})."""
    reader = gguf.GGUFReader(str(path))
    values = {
        key: (tuple(field.types), field.contents())
        for key, field in reader.fields.items()
        if not key.startswith("GGUF.")
    }
    return values, {tensor.name: tensor for tensor in reader.tensors}


def floats(tensor) -> np.ndarray:
    """A tensor of gguf-py as f32, rows first."""
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type)
