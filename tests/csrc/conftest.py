"""Every test of a kernel runs once per instruction set here; test_isas.py names the others."""

import kernels
import pytest


@pytest.fixture(params=kernels.available())
def isa(request) -> str:
    return request.param
