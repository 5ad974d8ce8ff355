"""The checks a file has to pass before llama.cpp sees it.

llama.cpp trusts a file more than we do; a damaged one can end the process. And it does not know
our metadata.
"""

from dataclasses import dataclass

from .errors import ModelError, OctetError
from .gguf_tools.reader import Model

VERSION = 1  # of octet's metadata, see docs/format.md
GUARD = "octet"  # the architecture of files that only this project can run


@dataclass(frozen=True)
class Header:
    """What loading needs to know of a file."""

    architecture: str | None
    base_architecture: str | None  # None: octet did not make it
    context_length: int | None  # what the model was trained for

    @property
    def guarded(self) -> bool:
        """Whether stock llama.cpp refuses the file, as it should."""
        return self.architecture == GUARD


def read(path: str) -> Header:
    """Check a GGUF file (all parts of it); ModelError, one line, if it must not be loaded."""
    try:
        with Model(path) as model:
            architecture, base = model.text("general.architecture"), _base(model, path)
            length = model.get(f"{base or architecture}.context_length")
            length = length if isinstance(length, int) and length > 0 else None
            header = Header(architecture, base, length)
    except ModelError:
        raise
    except OctetError as why:
        raise ModelError(str(why)) from why
    if header.guarded and header.base_architecture is None:
        raise ModelError(f"{path}: architecture 'octet' without octet.version: convert it again")
    return header


def _base(model: Model, path: str) -> str | None:
    version = model.get("octet.version")
    if version is None:
        return None
    if version != VERSION:
        raise ModelError(
            f"{path}: octet.version is {version!r}, this release reads {VERSION}: "
            "upgrade llama-octet or convert the model again"
        )
    base = model.text("octet.base_architecture")
    if not base:
        raise ModelError(f"{path}: octet.base_architecture is missing: convert the model again")
    return base
