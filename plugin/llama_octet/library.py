"""libggml-octet.so as seen from Python: where it is and the few functions it offers us."""

import ctypes
import json
import os
import struct
from pathlib import Path

from .errors import OctetError, one_line

NAME = "libggml-octet.so"


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
            self._begin = lib.octet_model_begin
            self._end = lib.octet_model_end
            self._status = lib.octet_status
            self._decide = lib.octet_decide
        except (OSError, AttributeError) as why:
            raise OctetError(f"{where} cannot be loaded: {one_line(why)}") from why
        self.path = where
        text = [ctypes.c_char_p, ctypes.c_size_t]
        self._error.restype, self._error.argtypes = ctypes.c_char_p, []
        self._begin.restype, self._begin.argtypes = ctypes.c_int, [ctypes.c_char_p]
        self._end.restype, self._end.argtypes = None, []
        self._status.restype, self._status.argtypes = ctypes.c_size_t, text
        self._decide.restype = ctypes.c_size_t
        self._decide.argtypes = [
            ctypes.c_char_p,
            ctypes.c_char_p,
            ctypes.POINTER(ctypes.c_int64),
            *text,
        ]

    def error(self) -> str:
        """Why the last call failed; empty if it did not."""
        return one_line((self._error() or b"").decode("utf-8", "replace"))

    def model_begin(self, model: str) -> None:
        """Announce the model this thread is about to load."""
        if self._begin(os.fsencode(model)) != 0:
            raise OctetError(self.error() or f"{model}: the backend cannot read its metadata")

    def model_end(self) -> None:
        """The load is over, well or badly."""
        self._end()

    def status(self) -> dict:
        """Settings, kernels that ran, tensors of the loaded models."""
        return self._json(self._status)

    def decide(self, name: str, type_name: str, shape) -> dict:
        """The path a tensor would take, and why: {"path", "reason"}."""
        ne = (ctypes.c_int64 * 4)(1, 1, 1, 1)
        for i, n in enumerate(shape):
            ne[i] = int(n)
        return self._json(self._decide, name.encode(), type_name.encode(), ne)

    def _json(self, function, *arguments) -> dict:
        # The answer can grow between the two calls: another thread may be loading a model.
        size = 1 << 16
        while True:
            buffer = ctypes.create_string_buffer(size)
            needed = function(*arguments, buffer, size)
            if needed <= size:
                return json.loads(buffer.value.decode("utf-8", "replace") or "{}")
            size = needed + 4096


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
