"""The checks a file has to pass before llama.cpp sees it.

llama.cpp trusts a file more than we do; a damaged one can end the process. And it does not know
our metadata.
"""

from dataclasses import dataclass

from .errors import ModelError, OctetError
from .gguf_tools import metadata
from .gguf_tools.reader import Model


@dataclass(frozen=True)
class Tensor:
    """One tensor as the backend has to know it."""

    name: str
    type: str
    shape: tuple[int, ...]  # the input dimension first
    rotation: int | None = None  # block, 0 for none; None: not written by octet
    scale_group: int | None = None
    bytes: int = 0


@dataclass(frozen=True)
class Header:
    """What loading needs to know of a file."""

    architecture: str | None  # the model's own, also behind the guard
    guarded: bool  # whether stock llama.cpp refuses the file, as it should
    context_length: int | None  # what the model was trained for
    seed: int = 0  # of the rotation
    tensors: tuple[Tensor, ...] = ()


def read(path: str) -> Header:
    """Check a GGUF file (all parts of it); ModelError, one line, if it must not be loaded."""
    try:
        with Model(path) as model:
            octet = metadata.read(model)
            own = octet.base_architecture if octet else model.text("general.architecture")
            length = model.get(f"{own}.context_length")
            listed = octet.tensors if octet else {}
            tensors = tuple(
                Tensor(t.name, t.type.name, t.shape, *listed.get(t.name, (None, None)), t.size)
                for t in model.tensors.values()
            )
    except OctetError as why:
        raise ModelError(str(why)) from why
    if not isinstance(length, int) or length <= 0:
        length = None
    return Header(own, bool(octet and octet.rotated), length, octet.seed if octet else 0, tensors)
