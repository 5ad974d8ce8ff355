"""libggml-octet.so as seen from Python: where it is and the few functions it offers us."""

import ctypes
import json
import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import OctetError, one_line

if TYPE_CHECKING:
    from .header import Header

NAME = "libggml-octet.so"
USUAL_CONTEXT = 512  # tokens, llama_cpp.Llama's default


def path() -> Path:
    """Where the library is installed: beside this file."""
    return Path(__file__).parent / NAME


class Library:
    """The opened library. Stays open for good: the backend's code must never go away."""

    def __init__(self, where: Path):
        """Open it. Call after llama_cpp is imported, so that its ggml is already in the process."""
        if not where.is_file():
            raise OctetError(f"{where} is missing: reinstall llama-octet (pip install llama-octet)")
        if not os.access(where, os.R_OK):
            raise OctetError(f"{where} cannot be read: check its permissions")
        if _cut_short(where):
            raise OctetError(f"{where} is damaged: reinstall llama-octet (pip install llama-octet)")
        try:
            lib = ctypes.CDLL(str(where))
            self._error = lib.octet_error
            self._begin = lib.octet_model_begin_read
            self._end = lib.octet_model_end
            self._faults = lib.octet_model_faults
            self._status = lib.octet_status
            self._layout = lib.octet_layout
            self._decide = lib.octet_decide
            self._crossovers = lib.octet_crossovers
            self._keep = lib.octet_crossover_keep
            self._set_stock = lib.octet_set_stock
            self._use_gpus = lib.octet_use_gpus
        except (OSError, AttributeError) as why:
            raise OctetError(f"{where} cannot be loaded: {one_line(why)}") from why
        self.path = where
        text = [ctypes.c_char_p, ctypes.c_size_t]
        names, ints = ctypes.POINTER(ctypes.c_char_p), ctypes.POINTER(ctypes.c_int32)
        doubles = ctypes.POINTER(ctypes.c_double)
        for function, restype, *argtypes in (
            (self._error, ctypes.c_char_p),
            (
                self._begin,
                ctypes.c_int,
                *(ctypes.c_char_p, ctypes.c_int, ctypes.c_int64),
                *(names, names, ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_uint64)),
                *(ints, ints, ctypes.c_int, ctypes.c_int),
            ),
            (self._end, None),
            (self._faults, ctypes.c_size_t, *text),
            (self._status, ctypes.c_size_t, *text),
            (self._layout, ctypes.c_size_t, *text),
            (
                self._decide,
                ctypes.c_size_t,
                *(ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)),
                *text,
            ),
            (self._crossovers, ctypes.c_size_t, *text),
            (
                self._keep,
                ctypes.c_int,
                *(ctypes.c_char_p, ctypes.c_int, ctypes.c_int, doubles, doubles, doubles),
            ),
            (self._set_stock, None, ctypes.c_char_p),
            (self._use_gpus, None, *[ctypes.c_char_p] * 4),
        ):
            function.restype, function.argtypes = restype, argtypes

    def error(self) -> str:
        """Why the last call failed; empty if it did not."""
        return one_line((self._error() or b"").decode("utf-8", "replace"))

    def model_begin(self, model: str, found: "Header", threads: int = 0, context: int = 0) -> None:
        """Announce the model this thread is about to load, with how many threads it will run and
        for how many tokens it has room (0: not known)."""
        n = len(found.tensors)
        text, numbers = ctypes.c_char_p * n, ctypes.c_int32 * n
        shapes = [dimension for t in found.tensors for dimension in _four(t.shape)]
        listed = [(t.rotation, t.scale_group) for t in found.tensors]
        failed = self._begin(
            os.fsencode(model),
            found.seed,
            n,
            text(*(t.name.encode() for t in found.tensors)),
            text(*(t.type.encode() for t in found.tensors)),
            (ctypes.c_int64 * (4 * n))(*shapes),
            (ctypes.c_uint64 * n)(*(t.bytes for t in found.tensors)),
            numbers(*(-1 if rotation is None else rotation for rotation, _ in listed)),
            numbers(*(-1 if group is None else group for _, group in listed)),
            threads,
            context,
        )
        if failed:
            raise OctetError(self.error() or f"{model}: the backend does not take its metadata")

    def model_end(self) -> None:
        """The load is over, well or badly."""
        self._end()

    def model_faults(self) -> list[dict]:
        """The announced model's weights that contradict their file: [{"name", "fault"}, …]."""
        return self._json(self._faults)

    def status(self) -> dict:
        """Settings, kernels that ran, tensors of the loaded models."""
        return self._json(self._status)

    def layout(self) -> dict:
        """What becomes of the announced model's weights, and why: {"layout", "reason"}."""
        return self._json(self._layout)

    def decide(self, name: str, type_name: str, shape) -> dict:
        """The path a tensor would take, and why: {"path", "reason"}; and the "label" of what
        `auto` wants measured ("": nothing), "measured" or not."""
        ne = (ctypes.c_int64 * 4)(*_four(shape))
        return self._json(self._decide, name.encode(), type_name.encode(), ne)

    def set_stock(self, description: str) -> None:
        """In which ggml and how stock runs: part of what a measurement depends on."""
        self._set_stock(description.encode())

    def use_gpus(self, found, why_not: str) -> None:
        """Before registering: where the GPU's driver is (gpu.Gpu), or why there is none."""
        if found is None:
            self._use_gpus(None, None, None, why_not.encode())
        else:
            places = (found.driver, found.sources, found.cache)
            self._use_gpus(*(os.fsencode(place) for place in places), b"")

    def crossovers(self) -> dict:
        """The measurements that are known: {"folder", "entries": […]} (plugin/backend/api.h)."""
        return self._json(self._crossovers)

    def keep_crossover(self, label: str, samples: list, layout: str = "packed") -> str:
        """Keep [rows, our ms, stock's ms] of a layer in a layout for the announced model's threads.

        Few samples, or none, are kept as well: the time did not suffice for more.

        Returns why the cache folder does not have it, "" if it does. OctetError if these are no
        timings.
        """
        columns = [
            (ctypes.c_double * len(samples))(*column) for column in zip(*samples, strict=True)
        ] or [(ctypes.c_double * 0)()] * 3
        if len(columns) != 3:
            raise OctetError(f"{label}: these are no timings")
        failed = self._keep(label.encode(), layout == "packed", len(samples), *columns)
        if failed == 1:
            raise OctetError(self.error())
        return self.error() if failed else ""

    def _json(self, function, *arguments) -> dict:
        # The answer can grow between the two calls: another thread may be loading a model.
        size = 1 << 16
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = function(*arguments, buffer, size)
            if needed <= size:
                return json.loads(buffer.value.decode("utf-8", "replace") or "{}")
            size = needed + 4096


def _four(shape) -> list[int]:
    """A shape in ggml's four dimensions."""
    return [*map(int, shape), 1, 1, 1, 1][:4]


def _cut_short(where: Path) -> bool:
    """Whether an ELF file ends before its own contents do.

    The dynamic linker does not look: it maps such a file, and the process dies of touching it.
    Whatever else is wrong with the file the linker finds out, and says.
    """
    with open(where, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(64)
        if len(head) < 64 or head[:4] != b"\x7fELF":
            return True
        if head[4:6] != b"\x02\x01":  # not 64-bit, little-endian: another machine's
            return False
        # e_phoff, e_shoff, and the sizes and counts of both tables
        programs, sections = struct.unpack_from("<QQ", head, 32)
        program, count, section, section_count = struct.unpack_from("<HHHH", head, 54)
        if sections + section * section_count > size or program != 56:
            return True
        file.seek(programs)
        table = file.read(program * count)
    if len(table) < program * count:
        return True
    for i in range(count):
        offset, _, _, length = struct.unpack_from("<QQQQ", table, program * i + 8)
        if offset + length > size:
            return True
    return False
