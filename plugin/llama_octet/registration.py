"""Putting the backend into the running llama_cpp, once, and asking it what it did."""

import ctypes
import logging
import threading
from dataclasses import dataclass

from . import amx, gpu, library, runtime
from .errors import OctetError

_lock = threading.RLock()
_loaded: "Loaded | None" = None


@dataclass(frozen=True)
class Loaded:
    """What a successful load() leaves behind."""

    package: object  # llama_cpp
    library: library.Library
    amx: dict


def load() -> Loaded:
    """Register the backend in the running llama_cpp. Calling it again does nothing.

    Models loaded afterwards use it; models that exist already stay as they are. If stock AMX is
    broken in the installed runtime, later models (llama_cpp.Llama included) are loaded without it.
    Raises OctetError, one line, if the runtime is not a supported one, the library cannot be
    loaded, or a switch in the environment has a value it does not take.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            package = runtime.import_llama_cpp()
            opened = library.Library(library.path())
            opened.use_gpus(*gpu.find())
            _register(package, opened)
            _loaded = Loaded(package, opened, amx.protect(package))
            opened.set_stock(_stock(_loaded))
        return _loaded


def status() -> dict:
    """What really ran: settings, calls and rows per kernel, path and reason per tensor.

    Before load() it is just {"loaded": False}.
    """
    with _lock:
        now = _loaded
    if now is None:
        return {"loaded": False}
    lib = runtime.shared_library(now.package)
    version, commit = runtime.ggml_version(lib)
    return {
        "loaded": True,
        **now.library.status(),
        "runtime": {
            "llama_cpp_python": now.package.__version__,
            "ggml_version": version,
            "ggml_commit": commit,
            "libggml": str(runtime.mapped("libggml-base") or ""),
            "stock_amx": now.amx,
        },
    }


def _stock(loaded: Loaded) -> str:
    """What stock's speed depends on: its build, and whether it may use its own weight buffers."""
    version, commit = runtime.ggml_version(runtime.shared_library(loaded.package))
    buffers = "plain buffers" if loaded.amx["state"] == "broken" else "extra buffers"
    built = ""
    file = runtime.mapped("libggml-cpu")
    if file and file.exists():
        stat = file.stat()
        built = f", {stat.st_size} bytes of {stat.st_mtime_ns // 10**9}"
    return f"ggml {version} {commit}, {buffers}{built}"


def _register(package, opened: library.Library) -> None:
    lib = runtime.shared_library(package)
    try:
        by_name, load_file = lib.ggml_backend_reg_by_name, lib.ggml_backend_load
    except AttributeError as why:
        raise OctetError(f"{lib._name} lacks ggml's backend registry") from why
    for function in (by_name, load_file):
        function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
    if by_name(b"OCTET"):
        return  # a program with dynamic backends has brought it in already
    # ggml reports a failure in several lines of its own; ours says it in one.
    log = logging.getLogger("llama-cpp-python")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        registered = load_file(str(opened.path).encode())
    finally:
        log.setLevel(level)
    if not registered:
        raise OctetError(opened.error() or f"{opened.path}: ggml refuses to register it")
