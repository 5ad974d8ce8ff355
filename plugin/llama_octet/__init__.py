"""Rotated int8 and codebook-expert inference inside an unmodified llama-cpp-python.

    import llama_octet
    llm = llama_octet.Llama("model.gguf")   # takes what llama_cpp.Llama takes
    llama_octet.status()                    # what ran, and where

Importing this package loads nothing: llama_cpp and the backend library come in with `load()` or
with the first `Llama`.
"""

from importlib.metadata import PackageNotFoundError, version

from .errors import ModelError, OctetError
from .registration import load, status

try:
    __version__ = version("llama-octet")
except PackageNotFoundError:  # run from a source tree
    __version__ = "0.1.0"

__all__ = ["Llama", "ModelError", "OctetError", "__version__", "load", "status"]


def __getattr__(name: str):
    # `Llama` derives from llama_cpp.Llama, and importing that takes half a second and can fail:
    # both are put off until somebody asks for it.
    if name == "Llama":
        from .model import Llama

        globals()["Llama"] = Llama
        return Llama
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
