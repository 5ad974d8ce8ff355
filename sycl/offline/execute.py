"""Runs a compiled kernel's own IR here, on buffers that end at pages nobody may touch."""

import ctypes
import ctypes.util
import hashlib
import mmap
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from . import CACHE, Missing, OfflineError
from .build import Built
from .translate import translate

_RUNTIME = Path(__file__).with_name("runtime.c")
_COMPILER = "clang-19"
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)


class Buffer:
    """Memory between two pages that cannot be touched, its end (or start) right at one of them.

    `array` is a numpy view of it, of the shape and type of what it was made from.
    """

    def __init__(self, array: np.ndarray, at_end: bool = True):
        """Copies `array`. With at_end, the buffer's last byte is the last of its page."""
        array = np.ascontiguousarray(array)
        inner = max(1, -(-array.nbytes // _PAGE)) * _PAGE
        self._map = mmap.mmap(-1, inner + 2 * _PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        for page in (start, start + _PAGE + inner):
            if _libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(_PAGE), 0):
                raise OSError(ctypes.get_errno(), "mprotect")
        offset = _PAGE + (inner - array.nbytes if at_end else 0)
        self.address = start + offset
        self.array = np.frombuffer(self._map, array.dtype, array.size, offset).reshape(array.shape)
        self.array[...] = array


class Kernel:
    """A kernel that can be launched here."""

    def __init__(self, built: Built):
        """Translates and compiles it, unless that was done before."""
        program = translate(built.ir())
        self.name = built.variant.name
        self.local_bytes = program.local_bytes
        self.kinds = program.arguments
        key = hashlib.sha256(program.text.encode() + _RUNTIME.read_bytes() + _cpu()).hexdigest()[
            :24
        ]
        library = CACHE / "programs" / f"{key}.so"
        if not library.exists():
            library.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
                source, built_library = Path(scratch) / "kernel.ll", Path(scratch) / "kernel.so"
                source.write_text(program.text)
                # Nothing may be fused here that the kernel did not fuse.
                command = [_COMPILER, "-w", "-O1", "-march=native", "-ffp-contract=off"]
                command += ["-shared", "-fPIC", source, _RUNTIME, "-o", built_library]
                try:
                    done = subprocess.run(command, capture_output=True, text=True)
                except FileNotFoundError:
                    raise Missing(f"{_COMPILER} is not installed") from None
                if done.returncode:
                    raise OfflineError(f"{self.name} does not compile here: {done.stderr[:2000]}")
                built_library.rename(library)
        self._library = ctypes.CDLL(str(library))
        self._library.octet_launch.restype = ctypes.c_char_p
        self._library.octet_launch.argtypes = [
            *(ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int, ctypes.c_int64),
            ctypes.c_int,
        ]

    def launch(
        self, size: tuple[int, int], group: int, *arguments, descending: bool = False
    ) -> None:
        """Runs the range; arguments are Buffers, None (a null pointer) or integers.

        The work-items of a group run in ascending or descending order between barriers. Raises
        OfflineError if the kernel leaves its memory.
        """
        if len(arguments) != len(self.kinds):
            raise OfflineError(
                f"{self.name} takes {len(self.kinds)} arguments, not {len(arguments)}"
            )
        slots = np.zeros(max(1, len(arguments)), np.int64)
        for i, (argument, kind) in enumerate(zip(arguments, self.kinds, strict=True)):
            if (kind == "ptr") != (argument is None or isinstance(argument, Buffer)):
                raise OfflineError(f"{self.name}: argument {i} has to be a {kind}")
            slots[i] = (
                0 if argument is None else argument.address if kind == "ptr" else int(argument)
            )
        failed = self._library.octet_launch(
            slots.ctypes.data, size[0], size[1], group, self.local_bytes, int(descending)
        )
        if failed:
            raise OfflineError(f"{self.name}: {failed.decode()}")


def _cpu() -> bytes:
    """What -march=native depends on."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return line.encode()
    return b""
