"""Expert layers on a GPU, and the same on the CPU, over numpy arrays: sycl/host/c_api.h."""

import ctypes
import json
import os
from ctypes import c_char_p, c_int32, c_int64, c_size_t, c_void_p
from functools import cache

import numpy as np

from . import gpu, library, runtime
from .errors import OctetError


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


class Spec(ctypes.Structure):
    """octet_kernel_weight_spec of octet/c_api.h."""

    _fields_ = (
        ("format", c_char_p),
        ("n_experts", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("scale_group", c_int32),
        ("packed", c_int32),
        ("rotation", c_int32),
        ("seed", c_int32),
        ("float_products", c_int32),
        ("blocks", c_void_p),
        ("bytes", c_size_t),
    )


class Chain(ctypes.Structure):
    """octet_kernel_chain of octet/c_api.h."""

    _fields_ = (
        ("gate", c_void_p),
        ("up", c_void_p),
        ("down", c_void_p),
        ("glu", c_char_p),
        ("n_tokens", c_int64),
        ("n_used", c_int64),
        ("x", c_void_p),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("out", c_void_p),
    )


def weight_spec(name: str, blocks, k: int, packed=True, float_products=False, **where) -> Spec:
    """The struct of a weight of blocks (experts, n, bytes), uint8, which must outlive it.

    `where`: scale_group (32 if not said), rotation, seed as in docs/format.md.
    """
    return Spec(
        format=name.encode(),
        n_experts=blocks.shape[0],
        n=blocks.shape[1],
        k=k,
        packed=packed,
        float_products=float_products,
        blocks=blocks.ctypes.data,
        bytes=blocks.nbytes,
        **{"scale_group": 32, **where},
    )


def chain_arguments(gate, up, down, op: str, x, ids, weights) -> tuple:
    """The struct of an expert layer, its output (tokens, n), and what must live as long as both.

    Weights have `handle`, down `n` as well; `up` None: it is merged into gate.
    """
    x, weights = (np.ascontiguousarray(a, np.float32) for a in (x, weights))
    ids = np.ascontiguousarray(ids, np.int32)
    out = np.empty((len(x), down.n), np.float32)
    arguments = Chain(
        gate=gate.handle,
        up=up.handle if up else None,
        down=down.handle,
        glu=op.encode(),
        n_tokens=len(x),
        n_used=ids.shape[1],
        x=x.ctypes.data,
        ids=ids.ctypes.data,
        weights=weights.ctypes.data,
        out=out.ctypes.data,
    )
    return arguments, out, (x, ids, weights)


@cache
def _library() -> ctypes.CDLL:
    runtime.import_llama_cpp()  # the library wants the runtime's ggml in the process first
    lib = ctypes.CDLL(str(library.path()))
    for name in ("octet_gpu_error", "octet_kernel_error"):
        getattr(lib, name).restype = c_char_p
    for name in ("octet_gpu_open", "octet_gpu_weight_new", "octet_kernel_weight_new"):
        getattr(lib, name).restype = c_void_p
    lib.octet_gpu_list.restype = c_size_t
    return lib


def devices(found: gpu.Gpu, cpu: bool) -> list[dict]:
    """What SYCL finds: name, driver, architecture, memory, dpas of each device."""
    size = 1 << 16
    text = ctypes.create_string_buffer(size)
    lib = _library()
    if (
        not 0
        < lib.octet_gpu_list(os.fsencode(found.driver), int(cpu), text, c_size_t(size))
        <= size
    ):
        raise OctetError((lib.octet_gpu_error() or b"").decode("utf-8", "replace"))
    return json.loads(text.value.decode("utf-8", "replace"))


class Place:
    """Where layers run; here the CPU. Weights belong to the place that made them."""

    prefix = "octet_kernel"

    def _check(self, done):
        if done is None or done == -1:
            why = getattr(_library(), f"{self.prefix}_error")()
            raise OctetError((why or b"no reason given").decode("utf-8", "replace"))
        return done

    def weight(self, name: str, blocks, k: int, **where) -> "Weight":
        """A weight of file blocks (experts, n, bytes); `where` as in weight_spec."""
        blocks = np.ascontiguousarray(blocks, np.uint8)
        spec = weight_spec(name, blocks, k, **where)
        new = getattr(_library(), f"{self.prefix}_weight_new")
        return Weight(self, self._check(new(*self._self(), ctypes.byref(spec))), blocks.shape[1])

    def _self(self) -> tuple:
        return ()

    def chain(self, gate, up, down, op: str, x, ids, weights, half=False) -> np.ndarray:
        """out (tokens, n) of an expert layer; `up` None: it is merged into gate."""
        arguments, out, keep = chain_arguments(gate, up, down, op, x, ids, weights)
        self._check(self._run(arguments, half))
        del keep
        return out

    def _run(self, arguments, half) -> int:
        threads = min(256, len(os.sched_getaffinity(0)))
        return _library().octet_kernel_run_chain(None, ctypes.byref(arguments), threads)


class Device(Place):
    """A GPU; with cpu=True a central processor in its place. OctetError if it cannot be opened."""

    prefix = "octet_gpu"

    def __init__(
        self, found: gpu.Gpu, cpu=False, index=0, tiles=0, work_groups=True, registers=256
    ):
        """Open it. tiles (2, 4, 8; 0 = by the rows), work_groups and registers choose kernels."""
        options = _Options(
            driver=os.fsencode(found.driver),
            sources=os.fsencode(found.sources),
            cache=os.fsencode(found.cache),
            cpu=cpu,
            index=index,
            tiles=tiles,
            work_groups=work_groups,
            registers=registers,
        )
        self._handle = c_void_p(self._check(_library().octet_gpu_open(ctypes.byref(options))))

    def close(self) -> None:
        """Free it; its weights must have gone before."""
        _library().octet_gpu_close(self._handle)

    def _self(self) -> tuple:
        return (self._handle,)

    def _run(self, arguments, half) -> int:
        run = _library().octet_gpu_run_chain
        return run(self._handle, ctypes.byref(arguments), int(half))

    def programs(self) -> tuple[int, int]:
        """Programs compiled, and read from the cache, so far."""
        built, cached = c_int32(), c_int32()
        _library().octet_gpu_programs(self._handle, ctypes.byref(built), ctypes.byref(cached))
        return built.value, cached.value

    def multiply_by_expert(self, weight, x, ids, half=False) -> np.ndarray:
        """out (tokens, used, n); x is (tokens, 1 or used, k)."""
        x = np.ascontiguousarray(x, np.float32)
        ids = np.ascontiguousarray(ids, np.int32)
        out = np.empty((*ids.shape, weight.n), np.float32)
        multiply = _library().octet_gpu_multiply_by_expert
        self._check(
            multiply(
                self._handle,
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


class Weight:
    """A weight in a place's memory."""

    def __init__(self, place: Place, handle: int, n: int):
        """Made by Place.weight."""
        self.place, self.handle, self.n = place, handle, n

    def __del__(self):
        """Give the memory back."""
        if getattr(self, "handle", None):
            free = getattr(_library(), f"{self.place.prefix}_weight_free")
            free(c_void_p(self.handle))
