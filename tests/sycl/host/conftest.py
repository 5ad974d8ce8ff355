"""Tests of the GPU's host side on a central processor: real SYCL, real launches, plain kernels."""

import importlib.util
import os
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
    skip = pytest.mark.skip(reason="intel-sycl-rt and intel-opencl-rt are not installed")
    for item in items:
        if "driver" in getattr(item, "fixturenames", ()):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """The compiled driver, with OpenCL for central processors in reach."""
    from llama_octet import gpu

    cache = tmp_path_factory.mktemp("driver")
    os.environ["OCL_ICD_FILENAMES"] = str(gpu.prefix() / "lib/libintelocl.so")
    before = os.environ.get("OCTET_CACHE_DIR")
    os.environ["OCTET_CACHE_DIR"] = str(cache)
    try:
        return gpu.driver(gpu.prefix())
    finally:
        os.environ.pop("OCTET_CACHE_DIR")
        if before is not None:
            os.environ["OCTET_CACHE_DIR"] = before
