"""The two sides: where each keeps the weights, and the backend that computes with them."""

import ctypes

import numpy as np

from ..errors import OctetError
from . import ggml
from .layer import Matrix

PAGE = 4096


class Side:
    """One backend and its copy of the weights."""

    name = ""

    def __init__(self, g: ggml.Ggml, device: int, threads: int):
        """Start the backend."""
        self.g, self.device = g, device
        self.handle = g.backend(device, threads)
        self.weights: list[int] = []
        self.buffers: list[str] = []  # the name of each weight's buffer type
        self._contexts: list[int] = []
        self._memory: list[np.ndarray] = []

    def add(self, matrix: Matrix, blocks: np.ndarray) -> None:
        """Keep a weight."""
        raise NotImplementedError

    def compute(self, graph: int) -> None:
        """Compute a graph to its end."""
        if self.g.backend_graph_compute(self.handle, graph) != 0:
            raise OctetError(f"the computation failed in {self.name}")

    def _place(self, matrix: Matrix, buffer_type: int) -> int:
        """The weight in a buffer of its own."""
        context = self.g.context(8)
        tensor = matrix.new_tensor(self.g, context)
        self.g.allocate(context, buffer_type)
        self._contexts.append(context)
        return tensor

    def _keep(self, tensor: int, buffer_type_name: str) -> None:
        self.weights.append(tensor)
        self.buffers.append(buffer_type_name)


class Stock(Side):
    """ggml's CPU backend, every weight in the buffer type that llama.cpp would choose for it."""

    name = "stock"

    def __init__(self, g: ggml.Ggml, threads: int, use_extra: bool):
        """`use_extra`: also AMX and repacked buffers, where they work."""
        super().__init__(g, g.cpu, threads)
        self._extra = g.extra_buffer_types() if use_extra else []

    def add(self, matrix: Matrix, blocks: np.ndarray) -> None:
        """Keep a weight."""
        for buffer_type in [*self._extra, self.g.cpu_buffer_type]:
            last = buffer_type == self.g.cpu_buffer_type
            context = self.g.context(8)
            tensor = matrix.new_tensor(self.g, context)
            buffer = self.g.allocate(context, buffer_type)
            if last or self._takes(matrix, context, tensor):
                self._contexts.append(context)
                self._keep(tensor, self.g.backend_buft_name(buffer_type).decode())
                self.g.set(tensor, blocks)
                return
            self.g.backend_buffer_free(buffer)
            self.g.free(context)

    def _takes(self, matrix: Matrix, context: int, tensor: int) -> bool:
        """The question llama.cpp asks while it loads a model."""
        g = self.g
        if matrix.experts > 1:
            x = g.new_tensor_3d(context, ggml.F32, matrix.columns, 2, 512)
            ids = g.new_tensor_2d(context, ggml.I32, 2, 512)
            op = g.mul_mat_id(context, tensor, x, ids)
        else:
            x = g.new_tensor_2d(context, ggml.F32, matrix.columns, 512)
            op = g.mul_mat(context, tensor, x)
        return g.backend_dev_supports_op(self.device, op)


class Ours(Side):
    """The plugin's backend; `native` leaves the blocks where they are."""

    name = "octet"

    def __init__(self, g: ggml.Ggml, threads: int, native: bool):
        """The backend has to be registered."""
        device = g.backend_dev_by_name(b"OCTET")
        if not device:
            raise OctetError("the plugin's device OCTET is not registered")
        super().__init__(g, device, threads)
        self.native = native

    def add(self, matrix: Matrix, blocks: np.ndarray) -> None:
        """Keep a weight."""
        g = self.g
        if self.native:
            # What the loader does with a mapped file, in which other tensors follow.
            context = g.context(8)
            tensor = matrix.new_tensor(g, context)
            buffer_type = g.backend_dev_buffer_type(self.device)
            size = max(matrix.nbytes, g.backend_buft_get_alloc_size(buffer_type, tensor))
            memory = np.empty(size + PAGE, np.uint8)
            begin = -memory.ctypes.data % PAGE
            memory[begin : begin + matrix.nbytes] = blocks.reshape(-1)
            self._memory.append(memory)
            address = memory.ctypes.data + begin
            buffer = g.backend_dev_buffer_from_host_ptr(self.device, address, size, size)
            if not buffer or g.backend_tensor_alloc(buffer, tensor, ctypes.c_void_p(address)):
                raise OctetError("the plugin does not take blocks in place")
        else:
            tensor = self._place(matrix, g.backend_dev_buffer_type(self.device))
            g.set(tensor, blocks)
        self._keep(tensor, "OCTET")
