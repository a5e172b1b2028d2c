"""Whether kernels are compiled as they should be."""

import inspect
from types import ModuleType

from numba.core.dispatcher import Dispatcher


def assert_kernels_release_the_gil_and_are_cached(module: ModuleType) -> None:
    kernels = [value for _, value in inspect.getmembers(module, lambda value: isinstance(value, Dispatcher))]
    assert kernels
    for kernel in kernels:
        assert kernel.targetoptions["nogil"]
        assert type(kernel._cache).__name__ != "NullCache"
