"""The device code of sycl/kernels without the device: compiled, read, executed, modelled.

python -m offline (with sycl/ on the path) is the command. Used by tests and documentation only;
nothing here is installed.
"""

import os
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
PLAIN = KERNELS.parent / "plain"  # kernels that are not ESIMD
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llama-octet" / "offline"


class OfflineError(Exception):
    """Something did not compile, or a kernel did what it must not."""


class Missing(OfflineError):
    """A tool that is needed is not to be had; the message says which and what to do."""
