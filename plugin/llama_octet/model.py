"""`Llama`: llama_cpp's own class, which lets converted files through the architecture guard."""

import contextlib
import ctypes
import os
import signal
import threading

from . import crossover, header, registration, runtime
from .errors import ModelError, OctetError, one_line
from .library import USUAL_CONTEXT

_llama_cpp = runtime.import_llama_cpp()

# One load at a time: llama_cpp redirects the process's stderr while it loads.
_loading = threading.RLock()

_GGML_LOG_ERROR = 4


class Llama(_llama_cpp.Llama):
    """A `llama_cpp.Llama` whose int8 and codebook tensors run in this project's kernels.

    Takes every argument `llama_cpp.Llama` takes, and any GGUF it takes; a file made by
    `octet convert` as well. A file that cannot be loaded is a ModelError: one line that says why.
    """

    def __init__(self, model_path, *args, checked: header.Header | None = None, **kwargs):
        """Check the file, register the backend if that has not been done, load.

        `checked`: what `header.read(model_path)` gave, if the caller has read it already.
        """
        # llama_cpp's destructor needs this even if construction ends before its own line.
        self._stack = contextlib.ExitStack()
        path = os.fspath(model_path)
        found = checked or header.read(path)
        loaded = registration.load()
        if found.guarded:
            overrides = dict(kwargs.get("kv_overrides") or {})
            overrides.setdefault("general.architecture", found.architecture)
            kwargs["kv_overrides"] = overrides
        library, threads = loaded.library, _count(kwargs.get("n_threads_batch"))
        context = _count(kwargs.get("n_ctx", USUAL_CONTEXT) or found.context_length)
        with _loading, _announced(library, path, found, threads, context):
            if not kwargs.get("vocab_only"):
                crossover.prepare(library, found, threads)
            with _interrupt_waits(), _errors_of_this_thread() as said:
                try:
                    super().__init__(path, *args, **kwargs)
                except (ValueError, RuntimeError) as why:
                    if isinstance(why, OctetError):
                        raise
                    detail = library.error() or _reason(said)
                    text = one_line(why)
                    if path not in text:
                        text = f"{path}: {text}"
                    raise ModelError(f"{text}: {detail}" if detail else text) from why
            self._refuse_faults(path, library)

    def _refuse_faults(self, path, library):
        """A weight whose data contradict the file is an error now, not at the first token."""
        for weight in library.model_faults():
            self.close()
            raise ModelError(f"{path}: {weight['name']} {weight['fault']}")


def _count(value) -> int:
    """An argument of llama_cpp's that is a number of something; 0 if it says none."""
    return value if isinstance(value, int) and 0 < value < 1 << 31 else 0


@contextlib.contextmanager
def _announced(library, path, found, threads, context):
    """What this thread loads meanwhile are the weights of this file."""
    library.model_begin(path, found, threads, context)
    try:
        yield
    finally:
        library.model_end()


@contextlib.contextmanager
def _interrupt_waits():
    """Ctrl-C while a model loads is raised after it: in a callback from C it would be lost."""
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    came = []
    signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
    if came:
        usual(*came[0])


def _reason(lines: list[str]) -> str:
    """The most telling line of what llama.cpp said, without the function's name before it."""
    for line in lines:
        _, marker, rest = one_line(line).partition("error loading model: ")
        # This one only repeats that it failed; the cause is in an earlier line.
        if marker and "failed to load model" not in rest:
            return rest
    return one_line(lines[0]) if lines else ""


@contextlib.contextmanager
def _errors_of_this_thread():
    """Collects llama.cpp's error lines; everything still reaches whoever listened before."""
    low = _llama_cpp.llama_cpp
    lines: list[str] = []
    before, data = low.llama_log_callback(), ctypes.c_void_p()
    low.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    me = threading.get_ident()

    @low.llama_log_callback
    def listen(level, text, user_data):
        if level == _GGML_LOG_ERROR and threading.get_ident() == me:
            lines.append(text.decode("utf-8", "replace"))
        if before:
            before(level, text, data)

    low.llama_log_set(listen, None)
    try:
        yield lines
    finally:
        low.llama_log_set(before, data)
