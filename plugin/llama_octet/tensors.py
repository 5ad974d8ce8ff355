"""Tensors of a running graph, as the runtime's evaluation callback shows them."""

import ctypes

import numpy as np

from . import runtime
from .errors import OctetError

F32, I32 = 0, 26
_DTYPES = {F32: np.float32, I32: np.int32}


class Tensor(ctypes.Structure):
    """The same members as in plugin/abi/ggml.h, whose offsets the backend checks at load."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),  # elements per dimension
        ("nb", ctypes.c_size_t * 4),  # bytes between neighbours of a dimension
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
    )


def at(address: int) -> Tensor:
    """The tensor at an address."""
    return Tensor.from_address(address)


def values(tensor: Tensor) -> np.ndarray:
    """The values of an F32 or I32 tensor in the CPU's memory, last dimension first; no copy."""
    kind = np.dtype(_DTYPES[tensor.type])
    shape, steps = tuple(tensor.ne)[::-1], tuple(tensor.nb)[::-1]
    span = kind.itemsize + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
    raw = (ctypes.c_char * span).from_address(tensor.data)
    return np.ndarray(shape, kind, raw, strides=steps)


def op_number(package, name: str) -> int:
    """The number of an op in the running ggml."""
    lib = runtime.shared_library(package)
    lib.ggml_op_name.restype, lib.ggml_op_name.argtypes = ctypes.c_char_p, [ctypes.c_int]
    for number in range(60):
        if lib.ggml_op_name(number) == name.encode():
            return number
    raise OctetError(f"the installed ggml has no op {name}")
