"""One small product through stock AMX, run as a program of its own: it may well die.

    python amx_child.py /path/to/libllama.so

Some compilers lose part of the tile configuration when they build ggml's AMX code. The process
then dies of an illegal instruction, or computes nonsense, at the first prompt. Prints one line of
JSON: {"state": "ok" | "broken" | "absent", "why": ...}. Imports only the standard library, so
that starting it is cheap.
"""

import ctypes
import json
import math
import resource
import sys

F32, Q4_0, Q8_0 = 0, 2, 8
K, N = 256, 64
ROWS = (40, 3)  # a prompt, and a number of rows that does not fill a tile
TOLERANCE = 0.05  # relative; activations become int8 on both sides, nonsense is near 1


class InitParams(ctypes.Structure):
    """Arguments of ggml_init."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def declare(lib: ctypes.CDLL) -> None:
    """Types of the functions used."""
    p, i64, size = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t
    for name, restype, *argtypes in (
        ("ggml_init", p, InitParams),
        ("ggml_free", None, p),
        ("ggml_new_tensor_2d", p, p, ctypes.c_int, i64, i64),
        ("ggml_mul_mat", p, p, p, p),
        ("ggml_new_graph", p, p),
        ("ggml_build_forward_expand", None, p, p),
        ("ggml_row_size", size, ctypes.c_int, i64),
        ("ggml_quantize_chunk", size, ctypes.c_int, p, p, i64, i64, i64, p),
        ("ggml_backend_dev_by_type", p, ctypes.c_int),
        ("ggml_backend_dev_backend_reg", p, p),
        ("ggml_backend_reg_get_proc_address", p, p, ctypes.c_char_p),
        ("ggml_backend_dev_buffer_type", p, p),
        ("ggml_backend_dev_init", p, p, ctypes.c_char_p),
        ("ggml_backend_dev_supports_op", ctypes.c_bool, p, p),
        ("ggml_backend_buft_name", ctypes.c_char_p, p),
        ("ggml_backend_alloc_ctx_tensors_from_buft", p, p, p),
        ("ggml_backend_alloc_ctx_tensors", p, p, p),
        ("ggml_backend_tensor_set", None, p, p, size, size),
        ("ggml_backend_tensor_get", None, p, p, size, size),
        ("ggml_backend_graph_compute", ctypes.c_int, p, p),
    ):
        function = getattr(lib, name)
        function.restype, function.argtypes = restype, argtypes


def amx_buffer_type(lib: ctypes.CDLL, device: int) -> int | None:
    """The AMX buffer type, if this build of ggml has one and the machine can use it."""
    get = lib.ggml_backend_reg_get_proc_address(
        lib.ggml_backend_dev_backend_reg(device), b"ggml_backend_dev_get_extra_bufts"
    )
    if not get:
        return None
    pointer = ctypes.POINTER(ctypes.c_void_p)
    types = ctypes.CFUNCTYPE(pointer, ctypes.c_void_p)(get)(device)
    i = 0
    while types and types[i]:
        if lib.ggml_backend_buft_name(types[i]) == b"AMX":
            return types[i]
        i += 1
    return None


def values(n: int, seed: int) -> ctypes.Array:
    """Numbers between -1 and 1 without a visible pattern."""
    out = (ctypes.c_float * n)()
    x = seed
    for i in range(n):
        x = (x * 1103515245 + 12345) & 0x7FFFFFFF
        out[i] = x / 0x40000000 - 1.0
    return out


def product(lib, device, backend, buffer_type, kind, rows) -> list[float] | None:
    """W·x with W of the given type in the given buffer type; None if ggml does not offer it."""
    no_alloc = InitParams(1 << 20, None, True)
    of_weights, of_rest = lib.ggml_init(no_alloc), lib.ggml_init(no_alloc)
    w = lib.ggml_new_tensor_2d(of_weights, kind, K, N)
    if not lib.ggml_backend_alloc_ctx_tensors_from_buft(of_weights, buffer_type):
        return None
    x = lib.ggml_new_tensor_2d(of_rest, F32, K, rows)
    y = lib.ggml_mul_mat(of_rest, w, x)
    if not lib.ggml_backend_dev_supports_op(device, y):
        return None
    graph = lib.ggml_new_graph(of_rest)
    lib.ggml_build_forward_expand(graph, y)
    lib.ggml_backend_alloc_ctx_tensors(of_rest, backend)

    size = lib.ggml_row_size(kind, K) * N
    blocks = ctypes.create_string_buffer(size)
    lib.ggml_quantize_chunk(kind, values(K * N, 1), blocks, 0, N, K, None)
    lib.ggml_backend_tensor_set(w, blocks, 0, size)
    lib.ggml_backend_tensor_set(x, values(K * rows, 2), 0, 4 * K * rows)
    if lib.ggml_backend_graph_compute(backend, graph) != 0:
        raise RuntimeError("the computation failed")
    out = (ctypes.c_float * (N * rows))()
    lib.ggml_backend_tensor_get(y, out, 0, 4 * N * rows)
    return list(out)


def difference(a: list[float], b: list[float]) -> float:
    """Relative distance, infinite if anything is not a number."""
    d = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    d /= math.sqrt(sum(y * y for y in b)) or 1.0
    return d if math.isfinite(d) else math.inf


def probe(path: str) -> dict:
    """Compare stock AMX with the ordinary path of the same library."""
    lib = ctypes.CDLL(path)
    declare(lib)
    device = lib.ggml_backend_dev_by_type(0)  # the CPU
    if not device:
        return {"state": "absent", "why": "ggml shows no CPU device"}
    amx = amx_buffer_type(lib, device)
    if not amx:
        return {"state": "absent", "why": "this build of ggml has no AMX code, or may not use it"}
    backend = lib.ggml_backend_dev_init(device, None)
    plain = lib.ggml_backend_dev_buffer_type(device)
    tried = 0
    for kind, name in ((Q8_0, "Q8_0"), (Q4_0, "Q4_0")):
        for rows in ROWS:
            ours = product(lib, device, backend, amx, kind, rows)
            if ours is None:
                continue
            tried += 1
            off = difference(ours, product(lib, device, backend, plain, kind, rows))
            if off > TOLERANCE:
                return {"state": "broken", "why": f"wrong numbers for {name}"}
    if not tried:
        return {"state": "absent", "why": "ggml offers no AMX product"}
    return {"state": "ok", "why": "a small product was right"}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # an expected death leaves no core file
    print(json.dumps(probe(sys.argv[1])))
