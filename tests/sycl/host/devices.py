"""The installed library's GPU functions (sycl/host/c_api.h) over numpy arrays."""

import ctypes
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_void_p

import kernels
import numpy as np

_lib = kernels._lib
_lib.octet_gpu_error.restype = c_char_p
_lib.octet_gpu_open.restype = c_void_p
_lib.octet_gpu_close.argtypes = [c_void_p]
_lib.octet_gpu_list.restype = c_size_t
_lib.octet_gpu_weight_new.restype = c_void_p
_lib.octet_gpu_weight_free.argtypes = [c_void_p]


class _Options(ctypes.Structure):
    _fields_ = (
        ("driver", c_char_p),
        ("sources", c_char_p),
        ("cache", c_char_p),
        ("cpu", c_int32),
        ("index", c_int32),
        ("tiles", c_int32),
        ("work_groups", c_int32),
        ("registers", c_int32),
    )


class Failed(Exception):
    """A function of the GPU did not do its work; says why."""


def _check(done):
    if done in (None, -1):
        raise Failed(_lib.octet_gpu_error().decode())
    return done


class Device:
    """An opened device; by default the central processor with the plain kernels."""

    def __init__(self, driver, sources, cache=None, tiles=0, work_groups=True):
        options = _Options(
            driver=bytes(driver),
            sources=bytes(sources),
            cache=bytes(cache) if cache else None,
            cpu=1,
            tiles=tiles,
            work_groups=work_groups,
            registers=256,
        )
        self.handle = _check(_lib.octet_gpu_open(ctypes.byref(options)))

    def close(self):
        _lib.octet_gpu_close(self.handle)

    def programs(self) -> tuple[int, int]:
        """Programs compiled, and read from the cache."""
        built, cached = c_int32(), c_int32()
        _lib.octet_gpu_programs(c_void_p(self.handle), ctypes.byref(built), ctypes.byref(cached))
        return built.value, cached.value


class Weight:
    """A weight in a device's memory, of blocks (experts, n, bytes)."""

    def __init__(self, device, name, blocks, k, scale_group=32, rotation=0, seed=0):
        blocks = np.ascontiguousarray(blocks, np.uint8)
        self.n, self.k = blocks.shape[1], k
        spec = kernels._Spec(
            format=name.encode(),
            n_experts=len(blocks),
            n=self.n,
            k=k,
            scale_group=scale_group,
            rotation=rotation,
            seed=seed,
            blocks=blocks.ctypes.data,
            bytes=blocks.nbytes,
        )
        self.handle = _check(_lib.octet_gpu_weight_new(c_void_p(device.handle), ctypes.byref(spec)))

    def __del__(self):
        if getattr(self, "handle", None):
            _lib.octet_gpu_weight_free(self.handle)


def chain(device, gate, up, down, op, x, ids, weights, half=False):
    """out (tokens, n) of an expert layer; `up` None: it is merged into gate."""
    arguments, out, keep = kernels.chain_arguments(gate, up, down, op, x, ids, weights)
    _check(_lib.octet_gpu_run_chain(c_void_p(device.handle), ctypes.byref(arguments), int(half)))
    del keep
    return out


def multiply_by_expert(device, weight, x, ids, half=False):
    """out (tokens, used, n); x is (tokens, 1 or used, k)."""
    x = np.ascontiguousarray(x, np.float32)
    ids = np.ascontiguousarray(ids, np.int32)
    out = np.empty((*ids.shape, weight.n), np.float32)
    _check(
        _lib.octet_gpu_multiply_by_expert(
            c_void_p(device.handle),
            c_void_p(weight.handle),
            c_void_p(x.ctypes.data),
            c_int64(x.shape[1]),
            c_void_p(ids.ctypes.data),
            c_int64(ids.shape[0]),
            c_int64(ids.shape[1]),
            c_void_p(out.ctypes.data),
            int(half),
        )
    )
    return out
