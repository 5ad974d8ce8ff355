"""The installed llama-cpp-python: whether it is one we know, and what it consists of."""

import ctypes
import importlib
import platform
import re
from pathlib import Path

from .errors import OctetError, one_line

# The backend declares the runtime's inner structs itself, so only versions it was checked
# against are let in.
SUPPORTED = ("0.3.36",)


def import_llama_cpp():
    """llama_cpp, if it is a version we support. OctetError otherwise."""
    wanted = " or ".join(SUPPORTED)
    install = f"pip install llama-cpp-python=={SUPPORTED[-1]}"
    try:
        package = importlib.import_module("llama_cpp")
    except ModuleNotFoundError as why:
        if why.name != "llama_cpp":
            raise OctetError(f"llama_cpp cannot be imported: {one_line(why)}") from why
        raise OctetError(
            f"llama-cpp-python is not installed; supported: {wanted} ({install})"
        ) from why
    except Exception as why:  # a broken installation fails in many ways
        raise OctetError(
            f"llama_cpp cannot be imported: {one_line(why)}; supported: {wanted} ({install})"
        ) from why
    found = getattr(package, "__version__", "unknown")
    if found not in SUPPORTED:
        raise OctetError(
            f"llama-cpp-python {found} is not supported; supported: {wanted} ({install})"
        )
    return package


def shared_library(package) -> ctypes.CDLL:
    """The libllama of the package. Through it, and only through it, ggml's names lead to the
    copy of ggml that the models run in: the package maps a second one for its own use."""
    return package.llama_cpp._lib


def mapped(name: str) -> Path | None:
    """The file of a library that is mapped into this process, by the beginning of its name."""
    try:
        lines = Path("/proc/self/maps").read_text(errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and Path(parts[5]).name.startswith(name):
            return Path(parts[5])
    return None


def ggml_version(lib: ctypes.CDLL) -> tuple[str, str]:
    """Version and commit of ggml."""
    out = []
    for name in ("ggml_version", "ggml_commit"):
        try:
            function = getattr(lib, name)
        except AttributeError:
            out.append("unknown")
            continue
        function.restype, function.argtypes = ctypes.c_char_p, []
        out.append((function() or b"unknown").decode())
    return out[0], out[1]


def cpu() -> tuple[str, frozenset[str]]:
    """The CPU's name and the feature flags the kernel shows."""
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), frozenset()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return (
        name.group(1).strip() if name else platform.machine(),
        frozenset(flags.group(1).split()) if flags else frozenset(),
    )
