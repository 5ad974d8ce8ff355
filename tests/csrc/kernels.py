"""The installed library's kernels (csrc/include/octet/c_api.h) over numpy arrays."""

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int8, c_int32, c_int64, c_size_t, c_void_p

import llama_cpp  # noqa: F401  (the library wants the runtime's ggml in the process first)
import numpy as np
from llama_octet import library
from llama_octet.gpu_layers import chain_arguments, weight_spec

# Every instruction set of the project. Those that this machine lacks are skipped by name.
ISAS = ("scalar", "avx2", "avxvnni", "avx512vnni", "amx", "neon", "i8mm")

_lib = ctypes.CDLL(str(library.path()))
_lib.octet_kernel_error.restype = c_char_p
_lib.octet_kernel_weight_new.restype = c_void_p
_lib.octet_kernel_weight_free.argtypes = [c_void_p]
_lib.octet_kernel_weight_bytes.argtypes = [c_void_p]
_lib.octet_kernel_weight_bytes.restype = c_size_t


class Refused(Exception):
    """A kernel function did not take its arguments; says why."""


def _error() -> str:
    return _lib.octet_kernel_error().decode()


def _call(name: str, *arguments) -> None:
    if getattr(_lib, name)(*arguments) != 0:
        raise Refused(_error())


def _floats(array) -> ctypes.Array:
    assert array.dtype == np.float32 and array.flags.c_contiguous
    return array.ctypes.data_as(POINTER(c_float))


def _f32(values) -> np.ndarray:
    return np.ascontiguousarray(values, np.float32)


def available() -> tuple[str, ...]:
    """The instruction sets that this build has on this machine."""
    names = (c_char_p * 16)()
    count = _lib.octet_kernel_isas(names, 16)
    return tuple(names[i].decode() for i in range(count))


def rotate(isa: str, x, block: int, seed: int) -> np.ndarray:
    y = _f32(x).copy()
    rows, k = y.shape
    _call("octet_kernel_rotate", isa.encode(), _floats(y), c_int64(rows), c_int64(k), block, seed)
    return y


def quantize(isa: str, x, group: int) -> tuple[np.ndarray, np.ndarray]:
    x = _f32(x)
    rows, k = x.shape
    q = np.empty((rows, k), np.int8)
    d = np.empty((rows, k // (group or k)), np.float32)
    _call(
        "octet_kernel_quantize",
        isa.encode(),
        _floats(x),
        c_int64(rows),
        c_int64(k),
        c_int64(group),
        q.ctypes.data_as(POINTER(c_int8)),
        _floats(d),
    )
    return q, d


def quantize_weights(w, block: int, seed: int, group: int) -> np.ndarray:
    """The load-time quantizer: Q8_0 blocks (rows, bytes)."""
    w = _f32(w)
    rows, k = w.shape
    blocks = np.empty((rows, k // 32 * 34), np.uint8)
    _call(
        "octet_kernel_quantize_weights",
        _floats(w),
        c_int64(rows),
        c_int64(k),
        block,
        seed,
        c_int64(group),
        c_void_p(blocks.ctypes.data),
    )
    return blocks


def exp(x) -> np.ndarray:
    x = _f32(x)
    y = np.empty_like(x)
    _call("octet_kernel_exp", _floats(x), _floats(y), c_int64(x.size))
    return y


def glu(isa: str, op: str, g, u) -> np.ndarray:
    g, u = _f32(g), _f32(u)
    h = np.empty_like(g)
    _call(
        "octet_kernel_glu",
        isa.encode(),
        op.encode(),
        _floats(g),
        _floats(u),
        _floats(h),
        c_int64(g.size),
    )
    return h


def weighted_sum(isa: str, y, w) -> np.ndarray:
    y, w = _f32(y), _f32(w)
    out = np.empty(y.shape[1], np.float32)
    _call(
        "octet_kernel_weighted_sum",
        isa.encode(),
        _floats(y),
        _floats(w),
        len(w),
        _floats(out),
        c_int64(out.size),
    )
    return out


class Weight:
    """A weight of blocks (n, bytes), or (experts, n, bytes)."""

    def __init__(
        self,
        name: str,
        blocks,
        k: int,
        scale_group=32,
        packed=True,
        rotation=0,
        seed=0,
        float_products=False,
    ):
        self._blocks = np.ascontiguousarray(blocks, np.uint8)  # in use if it is not packed
        experts = self._blocks.reshape(-1, *self._blocks.shape[-2:])
        self.n, self.k = experts.shape[1], k
        where = {"scale_group": scale_group, "rotation": rotation, "seed": seed}
        spec = weight_spec(name, experts, k, packed, float_products, **where)
        self.handle = _lib.octet_kernel_weight_new(ctypes.byref(spec))
        if not self.handle:
            raise Refused(_error())

    def __del__(self):
        if getattr(self, "handle", None):
            _lib.octet_kernel_weight_free(self.handle)

    @property
    def packed_bytes(self) -> int:
        return _lib.octet_kernel_weight_bytes(self.handle)

    def dequantize(self, expert=0) -> np.ndarray:
        out = np.empty((self.n, self.k), np.float32)
        _call("octet_kernel_dequantize", c_void_p(self.handle), c_int64(expert), _floats(out))
        return out

    def product(self, isa: str, q, d, expert=0) -> np.ndarray:
        q, d = np.ascontiguousarray(q, np.int8), _f32(d)
        out = np.empty((len(q), self.n), np.float32)
        _call(
            "octet_kernel_product",
            isa.encode(),
            c_void_p(self.handle),
            c_int64(expert),
            q.ctypes.data_as(POINTER(c_int8)),
            _floats(d),
            c_int64(len(q)),
            _floats(out),
        )
        return out

    def product_float(self, isa: str, x, expert=0) -> np.ndarray:
        x = _f32(x)
        out = np.empty((len(x), self.n), np.float32)
        _call(
            "octet_kernel_product_float",
            isa.encode(),
            c_void_p(self.handle),
            c_int64(expert),
            _floats(x),
            c_int64(len(x)),
            _floats(out),
        )
        return out

    def multiply(self, isa: str, x, threads=1) -> np.ndarray:
        x = _f32(x)
        out = np.empty((len(x), self.n), np.float32)
        _call(
            "octet_kernel_multiply",
            isa.encode(),
            c_void_p(self.handle),
            _floats(x),
            c_int64(len(x)),
            _floats(out),
            c_int(threads),
        )
        return out


def multiply_by_expert(isa: str, weight: Weight, x, ids, threads=1) -> np.ndarray:
    """out (tokens, used, n); x is (tokens, 1 or used, k)."""
    x, ids = _f32(x), np.ascontiguousarray(ids, np.int32)
    out = np.empty((*ids.shape, weight.n), np.float32)
    _call(
        "octet_kernel_multiply_by_expert",
        isa.encode(),
        c_void_p(weight.handle),
        _floats(x),
        c_int64(x.shape[1]),
        ids.ctypes.data_as(POINTER(c_int32)),
        c_int64(ids.shape[0]),
        c_int64(ids.shape[1]),
        _floats(out),
        c_int(threads),
    )
    return out


def chain(isa: str, gate: Weight, up: Weight | None, down: Weight, op, x, ids, weights, threads=1):
    """out (tokens, n) of the fused chain; `up` None: it is merged into gate."""
    arguments, out, keep = chain_arguments(gate, up, down, op, x, ids, weights)
    _call("octet_kernel_run_chain", isa.encode(), ctypes.byref(arguments), c_int(threads))
    del keep
    return out
