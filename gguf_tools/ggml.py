"""The installed libggml: its weight types, and its own decoding and rounding of them.

Decoding through the runtime's own functions, whatever the type, is what makes the converter and a
quantizer inside the runtime start from the same floats.
"""

import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from .errors import OctetError

_FLOATS = ctypes.POINTER(ctypes.c_float)
_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)

# fp16 scales end here; the runtime's quantizers overflow, and some of them abort, on more.
LARGEST_WEIGHT = 65504.0


class _Traits(ctypes.Structure):
    """The head of what ggml_get_type_traits returns; `_lookup` checks it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("block", ctypes.c_int64),
        ("interleave", ctypes.c_int64),
        ("size", ctypes.c_size_t),
        ("quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float", ctypes.c_void_p),
    )


@dataclass(frozen=True)
class GgmlType:
    """One weight type: `block` weights take `size` bytes."""

    id: int
    name: str
    block: int
    size: int
    quantized: bool
    decode: object = None  # the runtime's function, or None

    @property
    def readable(self) -> bool:
        """Whether `to_float` can decode it."""
        return self.decode is not None or self.name == "f32"

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row; `columns` must be a multiple of `block`."""
        return columns // self.block * self.size


@functools.cache
def _library():
    # Through libllama's own dependencies: loading libggml by its path would map a second copy of
    # it, with tables of its own.
    try:
        from llama_cpp import llama_cpp
    except Exception as error:
        raise OctetError(
            f"llama-cpp-python cannot be imported ({error}): pip install llama-cpp-python==0.3.36"
        ) from None
    lib = llama_cpp._lib
    try:
        lib.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
        lib.ggml_type_name.restype = ctypes.c_char_p
        lib.ggml_blck_size.restype = ctypes.c_int64
        lib.ggml_type_size.restype = ctypes.c_size_t
        lib.ggml_quantize_requires_imatrix.restype = ctypes.c_bool
        chunk = lib.ggml_quantize_chunk
        chunk.restype = ctypes.c_size_t
        chunk.argtypes = (
            *(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
            *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64),
            ctypes.c_void_p,
        )
        validate = lib.ggml_validate_row_data
        validate.restype = ctypes.c_bool
        validate.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
    except AttributeError as error:
        raise OctetError(
            f"the installed llama-cpp-python lacks a function this needs ({error}): "
            "pip install llama-cpp-python==0.3.36"
        ) from None
    return lib


# Ids are never reused by the format, and ggml aborts when asked about one past its last. So the
# search for the last stops at the first id whose name is not in this list.
_KNOWN_IDS = {
    **{0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 9: "q8_1"},
    **{10: "q2_K", 11: "q3_K", 12: "q4_K", 13: "q5_K", 14: "q6_K", 15: "q8_K", 16: "iq2_xxs"},
    **{17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl", 21: "iq3_s", 22: "iq2_s"},
    **{23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m"},
    **{30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4", 40: "nvfp4", 41: "q1_0", 42: "q2_0"},
}


@functools.cache
def _lookup(type_id: int) -> GgmlType | None:
    lib = _library()
    if type_id not in _KNOWN_IDS:
        return None
    traits = lib.ggml_get_type_traits(type_id).contents
    name = lib.ggml_type_name(type_id).decode()
    block = lib.ggml_blck_size(type_id)
    size = lib.ggml_type_size(type_id)
    if name != _KNOWN_IDS[type_id] or (traits.name.decode(), traits.block, traits.size) != (
        *(name, block, size),
    ):
        raise OctetError(
            f"weight type {type_id} is {name!r} in the installed llama-cpp-python, not "
            f"{_KNOWN_IDS[type_id]!r} as expected: pip install llama-cpp-python==0.3.36"
        )
    decode = _TO_FLOAT(traits.to_float) if traits.to_float and name != "f32" else None
    return GgmlType(type_id, name, block, size, bool(traits.quantized), decode)


def type_by_id(type_id: int) -> GgmlType | None:
    """The type a file means by `type_id`, or None if this runtime has no such type."""
    return _lookup(type_id)


def type_by_name(name: str) -> GgmlType:
    """The type of that name (`q8_0`, `iq3_s`, …, letter case ignored)."""
    for type_id, known in _KNOWN_IDS.items():
        if known.lower() == name.lower():
            return _lookup(type_id)
    raise OctetError(f"no weight type is called {name!r}")


def to_float(kind: GgmlType, data, columns: int) -> np.ndarray:
    """Decode whole rows: `data` holds n · row_bytes bytes → f32 of shape (n, columns)."""
    raw = np.frombuffer(data, np.uint8)
    row = kind.row_bytes(columns)
    if not kind.readable or columns % kind.block or raw.size % row:
        raise OctetError(f"cannot decode {raw.size} bytes of {kind.name} as rows of {columns}")
    if kind.name == "f32":
        return raw.view(np.float32).reshape(-1, columns)
    out = np.empty((raw.size // row, columns), np.float32)
    if out.size:
        kind.decode(raw.ctypes.data, out.ctypes.data, out.size)
    return out


def needs_importance(kind: GgmlType) -> bool:
    """Whether `quantize` of this type must be given an importance."""
    return bool(_library().ggml_quantize_requires_imatrix(kind.id))


def check_weights(weights: np.ndarray) -> None:
    """Raise ValueError unless all are finite and within the range of an fp16 scale."""
    if not np.abs(weights).max(initial=0) <= LARGEST_WEIGHT:  # also catches NaN
        raise ValueError("a weight is not finite or beyond 65504")


def quantize(kind: GgmlType, weights: np.ndarray, importance: np.ndarray | None) -> bytes:
    """Round f32 `weights` (rows, columns) to `kind` with the runtime's own quantizer.

    `importance`: one weight per column, or None. Values must be finite and within fp16's range
    (the runtime would abort on some that are not): ValueError if they are not.
    """
    rows, columns = weights.shape
    weights = np.ascontiguousarray(weights, np.float32)
    if columns % kind.block:
        raise ValueError(f"{columns} columns are not a multiple of {kind.block}")
    check_weights(weights)
    if importance is None and needs_importance(kind):
        importance = np.ones(columns)
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
        if importance.shape != (columns,):
            raise ValueError(f"importance has shape {importance.shape}, not ({columns},)")
    out = np.empty(rows * kind.row_bytes(columns), np.uint8)
    lib = _library()
    lib.ggml_quantize_chunk(
        *(kind.id, weights.ctypes.data, out.ctypes.data, 0, rows, columns),
        None if importance is None else importance.ctypes.data,
    )
    if not lib.ggml_validate_row_data(kind.id, out.ctypes.data, out.nbytes):
        raise ValueError(f"the {kind.name} quantizer gave a scale that is not finite")
    return out.tobytes()
