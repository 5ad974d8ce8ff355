"""Tests of the GPU's host side on a central processor: real SYCL, real launches, plain kernels."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "csrc"))


def pytest_collection_modifyitems(items):
    """Skip what needs SYCL for central processors where that is not installed."""
    if importlib.util.find_spec("llama_octet") is None:
        return
    from llama_octet import gpu

    where = gpu.prefix()
    if where and (where / "lib/libintelocl.so").is_file():
        return
    skip = pytest.mark.skip(
        reason="intel-sycl-rt and intel-opencl-rt are not installed (pip install '.[test-sycl]')"
    )
    for item in items:
        if "found" in getattr(item, "fixturenames", ()):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """What the package finds of SYCL, its driver compiled, for central processors."""
    from llama_octet import gpu

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OCTET_CACHE_DIR", str(tmp_path_factory.mktemp("gpu")))
        patch.setenv("OCTET_SYCL_DEVICE", "cpu")
        patch.setenv("OCL_ICD_FILENAMES", str(gpu.prefix() / "lib/libintelocl.so"))
        device, why = gpu.find()
        assert device, why
        yield device
