import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "sycl"))


@pytest.fixture(scope="session")
def offline():
    """What compiles, disassembles and runs device code without a device; skips where it is not."""
    from offline import OfflineError
    from offline.ocloc import ocloc

    try:
        for package in ("intel-sycl-rt", "intel-opencl-rt"):
            metadata.version(package)
    except metadata.PackageNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed: pip install '.[test-sycl]'")
    if not shutil.which("clang-19"):
        pytest.skip("clang-19 is not installed; it compiles the kernels' IR for this machine")
    try:
        return ocloc()
    except OfflineError as error:
        pytest.skip(str(error))
