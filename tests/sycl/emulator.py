"""A Battlemage for the host side, without the card: it runs the kernels' own compiled IR.

What SYCL is to the host (sycl/host/driver.h) is here the offline compiler and the executor of
sycl/offline. So the host's code, unchanged, chooses, builds and launches the very kernels that a
card would run. A program that was not compiled for Battlemage as the host asks for it, and an
argument that is not what the kernel takes, are errors.
"""

import ctypes
import subprocess
from ctypes import POINTER, c_char_p, c_int32, c_size_t, c_uint64, c_void_p
from pathlib import Path

import numpy as np
from device import kernel
from offline import KERNELS, PLAIN
from offline.execute import Buffer
from offline.variants import all_variants, with_128_registers


class Info(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char * 256),
        ("driver", ctypes.c_char * 128),
        ("architecture", ctypes.c_char * 32),
        ("memory", c_uint64),
        ("max_allocation", c_uint64),
        ("int8_8x16x32", c_int32),
    )


class Source(ctypes.Structure):
    _fields_ = (
        ("text", c_char_p),
        ("include_names", POINTER(c_char_p)),
        ("include_texts", POINTER(c_char_p)),
        ("n_includes", c_int32),
        ("options", POINTER(c_char_p)),
        ("n_options", c_int32),
    )


class Argument(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("size", c_size_t))


SIZES = POINTER(c_size_t)
# In the order of octet_gpu_driver, behind its version.
FUNCTIONS = {
    "error": (c_void_p,),
    "count": (c_int32, c_int32),
    "info": (c_int32, c_int32, c_int32, POINTER(Info)),
    "open": (c_void_p, c_int32, c_int32),
    "close": (None, c_void_p),
    "free_memory": (c_uint64, c_void_p),
    "allocate": (c_void_p, c_void_p, c_size_t, c_int32),
    "release": (None, c_void_p, c_void_p),
    "copy": (c_int32, c_void_p, c_void_p, c_void_p, c_size_t),
    "launch": (c_int32, c_void_p, c_void_p, SIZES, SIZES, POINTER(Argument), c_int32),
    "wait": (c_int32, c_void_p),
    "build": (c_void_p, c_void_p, POINTER(Source)),
    "load": (c_void_p, c_void_p, c_void_p, c_size_t),
    "contents": (c_void_p, c_void_p, SIZES),
    "free_program": (None, c_void_p),
    "kernel": (c_void_p, c_void_p, c_char_p),
}
TYPES = {name: ctypes.CFUNCTYPE(*types) for name, types in FUNCTIONS.items()}


class Table(ctypes.Structure):
    _fields_ = (("version", c_int32), *TYPES.items())


def make_driver(folder: Path) -> Path:
    """The library of driver.cpp."""
    out = folder / "driver.so"
    source = Path(__file__).with_name("driver.cpp")
    subprocess.run(["g++", "-shared", "-fPIC", source, "-o", out], check=True)
    return out


class Emulator:
    """Devices whose functions are put into the library at `driver`, in place of the last ones'."""

    def __init__(self, driver: Path, devices=1, dpas=True, architecture=b"bmg-g21"):
        """`devices` of one architecture, with or without the int8 product."""
        self.devices, self.dpas, self.architecture = devices, dpas, architecture
        self.launched: list[tuple[str, int]] = []  # variant and queue
        self.broken: set[str] = set()  # files that do not compile
        self._why = ctypes.create_string_buffer(400)
        self._memory: dict[int, Buffer] = {}
        self._variants: dict[int, object] = {}  # by the number of a program
        every = all_variants()
        every += [with_128_registers(v) for v in every if v.esimd]
        self._by_options = {(v.file, frozenset(v.options)): v for v in every}
        self._table = Table(1, *(TYPES[name](self._guarded(name)) for name in TYPES))
        library = ctypes.CDLL(str(driver))
        library.octet_test_set_table(ctypes.byref(self._table))

    def _guarded(self, name):
        """The method of that name; if it raises, the host hears of a failure."""
        function, failed = getattr(self, name), -1 if name == "count" else 0

        def call(*arguments):
            try:
                return function(*arguments)
            except Exception as why:
                self._why.value = str(why).replace("\n", " ").encode()[:399]
                return failed

        return call

    def error(self):
        return ctypes.addressof(self._why)

    def count(self, cpu):
        return 0 if cpu else self.devices

    def info(self, cpu, index, out):
        fields = (b"Emulated", b"1.0", self.architecture, 12 << 30, 4 << 30, int(self.dpas))
        out[0] = Info(*fields)
        return 1

    def open(self, cpu, index):
        return 1 + index

    def close(self, queue):
        pass

    def free_memory(self, queue):
        return 12 << 30

    def allocate(self, queue, size, host):
        # Its end, to the next multiple of 64, is at a page that nobody may touch.
        buffer = Buffer(np.full(-(-size // 64) * 64, 0xA5, np.uint8))
        self._memory[buffer.address] = buffer
        return buffer.address

    def release(self, queue, memory):
        del self._memory[memory]

    def copy(self, queue, to, source, size):
        ctypes.memmove(to, source, size)
        return 1

    def wait(self, queue):
        return 1

    def build(self, queue, source):
        s = source[0]
        options = frozenset(s.options[i].decode() for i in range(s.n_options))
        files = [p for folder in (KERNELS, PLAIN) for p in folder.glob("*.cpp")]
        file = next(p for p in files if p.read_bytes() == s.text)
        if file.name in self.broken:
            raise ValueError(f"{file.name} is broken")
        if file.parent == PLAIN:
            options -= {"-DOCTET_GRF=128"}  # it does not look at that
            options |= {"-DOCTET_GRF=256"}
        variant = self._by_options.get((file.name, options))
        if not variant or variant.folder != file.parent:
            raise KeyError(f"{file} is not compiled for Battlemage with {sorted(options)}")
        given = {s.include_names[i].decode(): s.include_texts[i] for i in range(s.n_includes)}
        for header in variant.folder.glob("*.h"):
            if given.get(header.name) != header.read_bytes():
                raise KeyError(f"{header.name} is not what was compiled for Battlemage")
        number = 1 + len(self._variants)
        self._variants[number] = variant
        return number

    def load(self, queue, data, size):
        raise ValueError("nothing is kept")

    def contents(self, program, size):
        raise ValueError("nothing is kept")

    def free_program(self, program):
        pass

    def kernel(self, program, name):
        if self._variants[program].kernel != name.decode():
            raise KeyError(f"there is no kernel {name.decode()}")
        return program

    def launch(self, queue, number, size, local, arguments, count):
        variant = self._variants[number]
        run = kernel(variant)
        given = []
        for i in range(count):
            a = arguments[i]
            kind = {0: "ptr", 4: "i32"}[a.size]
            if i >= len(run.kinds) or run.kinds[i] != kind:
                raise TypeError(f"{variant.name}: argument {i} is no {kind}")
            given.append(
                Pointer(a.data or 0) if kind == "ptr" else c_int32.from_address(a.data).value
            )
        if local[0] != 1 or size[1] % local[1] or local[1] != group_of(variant):
            raise ValueError(f"{variant.name}: a range of {size[:2]} in groups of {local[:2]}")
        run.launch((size[0], size[1]), local[1], *given)
        self.launched.append((variant.name, queue))
        return 1


class Pointer(Buffer):
    """Memory that the host named."""

    def __init__(self, address: int):
        self.address = address


def group_of(variant) -> int:
    """Work-items of a group, as launch.h says."""
    return 8 if "-wg" in variant.name else 16 if variant.name == "sum" else 1
