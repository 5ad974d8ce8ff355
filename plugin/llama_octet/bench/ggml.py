"""The functions of ggml that a benchmark needs, through ctypes."""

import ctypes

import numpy as np

from .. import runtime
from ..errors import OctetError

F32, I32 = 0, 26
CPU = 0  # device type

_P, _I64, _SIZE, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int


class InitParams(ctypes.Structure):
    """Arguments of ggml_init."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", ctypes.c_bool))


class TensorHead(ctypes.Structure):
    """The first members of a tensor."""

    _fields_ = (("type", _INT), ("buffer", _P), ("ne", _I64 * 4), ("nb", _SIZE * 4))


_FUNCTIONS = (
    ("ggml_init", _P, InitParams),
    ("ggml_free", None, _P),
    ("ggml_tensor_overhead", _SIZE),
    ("ggml_graph_overhead", _SIZE),
    ("ggml_nbytes", _SIZE, _P),
    ("ggml_set_name", _P, _P, ctypes.c_char_p),
    ("ggml_new_tensor_2d", _P, _P, _INT, _I64, _I64),
    ("ggml_new_tensor_3d", _P, _P, _INT, _I64, _I64, _I64),
    ("ggml_reshape_3d", _P, _P, _P, _I64, _I64, _I64),
    ("ggml_view_2d", _P, _P, _P, _I64, _I64, _SIZE, _SIZE),
    ("ggml_view_3d", _P, _P, _P, _I64, _I64, _I64, _SIZE, _SIZE, _SIZE),
    ("ggml_mul_mat", _P, _P, _P, _P),
    ("ggml_mul_mat_id", _P, _P, _P, _P, _P),
    ("ggml_swiglu_split", _P, _P, _P, _P),
    ("ggml_geglu_split", _P, _P, _P, _P),
    ("ggml_reglu_split", _P, _P, _P, _P),
    ("ggml_mul", _P, _P, _P, _P),
    ("ggml_add", _P, _P, _P, _P),
    ("ggml_new_graph", _P, _P),
    ("ggml_build_forward_expand", None, _P, _P),
    ("ggml_gallocr_new", _P, _P),
    ("ggml_gallocr_free", None, _P),
    ("ggml_gallocr_alloc_graph", ctypes.c_bool, _P, _P),
    ("ggml_backend_dev_by_type", _P, _INT),
    ("ggml_backend_dev_by_name", _P, ctypes.c_char_p),
    ("ggml_backend_dev_backend_reg", _P, _P),
    ("ggml_backend_reg_get_proc_address", _P, _P, ctypes.c_char_p),
    ("ggml_backend_dev_buffer_type", _P, _P),
    ("ggml_backend_dev_buffer_from_host_ptr", _P, _P, _P, _SIZE, _SIZE),
    ("ggml_backend_dev_init", _P, _P, ctypes.c_char_p),
    ("ggml_backend_dev_supports_op", ctypes.c_bool, _P, _P),
    ("ggml_backend_buft_name", ctypes.c_char_p, _P),
    ("ggml_backend_buft_get_alloc_size", _SIZE, _P, _P),
    ("ggml_backend_alloc_ctx_tensors_from_buft", _P, _P, _P),
    ("ggml_backend_buffer_free", None, _P),
    ("ggml_backend_tensor_alloc", _INT, _P, _P, _P),
    ("ggml_backend_tensor_set", None, _P, _P, _SIZE, _SIZE),
    ("ggml_backend_tensor_get", None, _P, _P, _SIZE, _SIZE),
    ("ggml_backend_graph_compute", _INT, _P, _P),
    ("ggml_backend_free", None, _P),
)


class Ggml:
    """The ggml that the models of this process run in."""

    def __init__(self, package):
        """`package` is llama_cpp. OctetError if a function is missing."""
        self.lib = runtime.shared_library(package)
        for name, restype, *argtypes in _FUNCTIONS:
            try:
                function = getattr(self.lib, name)
            except AttributeError as why:
                raise OctetError(f"{self.lib._name} lacks {name}") from why
            function.restype, function.argtypes = restype, argtypes
            setattr(self, name.removeprefix("ggml_"), function)
        self.cpu = self.backend_dev_by_type(CPU)
        self.cpu_buffer_type = self.backend_dev_buffer_type(self.cpu)

    def context(self, tensors: int) -> int:
        """A context for the descriptions of so many tensors and a graph."""
        size = self.tensor_overhead() * tensors + self.graph_overhead()
        return self.init(InitParams(size, None, True))

    def strides(self, tensor: int) -> list[int]:
        """Bytes between neighbours of each dimension."""
        return list(ctypes.cast(tensor, ctypes.POINTER(TensorHead)).contents.nb)

    def procedure(self, device: int, name: str, restype, *argtypes):
        """A function that a device's registry offers by name, or None."""
        registry = self.backend_dev_backend_reg(device)
        address = self.backend_reg_get_proc_address(registry, name.encode())
        return ctypes.CFUNCTYPE(restype, *argtypes)(address) if address else None

    def extra_buffer_types(self) -> list[int]:
        """The CPU's buffer types besides plain memory, in ggml's order of preference."""
        many = ctypes.POINTER(_P)
        get = self.procedure(self.cpu, "ggml_backend_dev_get_extra_bufts", many, _P)
        types, found = get(self.cpu) if get else None, []
        while types and types[len(found)]:
            found.append(types[len(found)])
        return found

    def backend(self, device: int, threads: int) -> int:
        """A backend of a device, with so many threads."""
        backend = self.backend_dev_init(device, None)
        if not backend:
            raise OctetError("ggml cannot start a backend")
        set_threads = self.procedure(device, "ggml_backend_set_n_threads", None, _P, _INT)
        if not set_threads:
            raise OctetError("a backend of the runtime takes no number of threads")
        set_threads(backend, threads)
        return backend

    def allocate(self, context: int, buffer_type: int) -> int:
        """A buffer with all tensors of a context."""
        buffer = self.backend_alloc_ctx_tensors_from_buft(context, buffer_type)
        if not buffer:
            raise OctetError("not enough memory for the benchmark: take a smaller one")
        return buffer

    def set(self, tensor: int, data: np.ndarray) -> None:
        """Fill a tensor."""
        data = np.ascontiguousarray(data)
        if data.nbytes != self.nbytes(tensor):
            raise OctetError(f"{data.nbytes} bytes for a tensor of {self.nbytes(tensor)}")
        self.backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)

    def get(self, tensor: int, shape: tuple[int, ...]) -> np.ndarray:
        """The values of an f32 tensor."""
        out = np.empty(shape, np.float32)
        self.backend_tensor_get(tensor, out.ctypes.data, 0, out.nbytes)
        return out
