"""Every test of a kernel runs once per instruction set; those that are not here say so."""

import kernels
import pytest


@pytest.fixture(params=kernels.ISAS)
def isa(request) -> str:
    if request.param not in kernels.available():
        here = ", ".join(kernels.available())
        pytest.skip(f"{request.param} is not in this build or not on this machine (here: {here})")
    return request.param
