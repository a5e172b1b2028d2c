"""Random numbers for compiled kernels, taken from a ``numpy.random.Generator``.

Numba accepts a ``Generator``, but unpacking it costs roughly ten microseconds
a call: as much as a whole batch of draws. A kernel therefore gets a *source*: the
addresses of the bit generator's own ``next_double`` function and of its state, both
part of NumPy's public interface (``BitGenerator.ctypes``). The numbers are the same
that ``generator.random()`` would give, and the generator's state advances with
them. To resume, it is enough to save and restore this state.
"""

import copy
import ctypes
from typing import Any, TypeAlias, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from avare._compilation import lean

Seed: TypeAlias = int | np.random.SeedSequence | np.random.BitGenerator | np.random.Generator | None
Source: TypeAlias = tuple[int, int]


def uniform_source(generator: np.random.Generator) -> Source:
    """Return the source from which kernels draw; ``generator`` must exist as long as the source is used.

    >>> import numpy as np
    >>> generator = np.random.default_rng(7)
    >>> next_uniform(uniform_source(generator)) == np.random.default_rng(7).random()
    True
    """
    interface = generator.bit_generator.ctypes
    function = ctypes.cast(interface.next_double, ctypes.c_void_p).value
    return cast(int, function), interface.state_address


def derive(generator: np.random.Generator, count: int) -> list[np.random.Generator]:
    """Return generators whose numbers depend only on the current state of another, which does not advance.

    The children of ``Generator.spawn`` depend on the seed and on earlier calls instead, so that a restored state would
    give different ones.

    >>> import numpy as np
    >>> generator = np.random.default_rng(7)
    >>> one, other = derive(generator, 2)
    >>> one.random() == derive(generator, 1)[0].random() != other.random()
    True
    """
    words = copy.deepcopy(generator).integers(2**32, size=8, dtype=np.uint32)
    return [np.random.default_rng(seed) for seed in np.random.SeedSequence(words.tolist()).spawn(count)]


@intrinsic
def _call_next_double(_context: Any, source: Any) -> Any:  # pragma: no cover - emits machine code; its effect is tested
    """Emit the call ``next_double(state)`` through the two addresses of ``source``."""

    def emit(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        function_type = ir.FunctionType(ir.DoubleType(), [pointer])
        function = builder.inttoptr(builder.extract_value(arguments[0], 0), function_type.as_pointer())
        state = builder.inttoptr(builder.extract_value(arguments[0], 1), pointer)
        return builder.call(function, [state])

    return types.float64(source), emit


def _next_uniform_interpreted(source: Source) -> float:
    """The same call made from Python, for ``NUMBA_DISABLE_JIT=1``."""
    function, state = source
    return float(ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_void_p)(function)(state))


@lean
def _next_uniform_compiled(source: Source) -> float:
    return _call_next_double(source)


next_uniform = _next_uniform_interpreted if numba.config.DISABLE_JIT else _next_uniform_compiled
"""``next_uniform(source)``: the next number in [0, 1), from Python or inside a kernel."""
