"""How a compiled loop draws from a sampler: by kernels that the sampler brings.

A sampler that brings kernels gives three things:

- a **state**, a ``NamedTuple`` of arrays and numbers, its property ``kernels``;
- ``draw(state, step, source, indices, probabilities, weights)``, which fills the three arrays with the next batch,
  when `step` batches have been drawn before;
- ``learn(state, indices, norms)``, which takes in the norms of a batch.

`register_kernels` joins them. A loop calls `draw_into` and `learn_from` with any such state; Numba chooses the version
by the state's type when the loop is compiled. `Sampler.sample` and `Sampler.update` call the same kernels.

Both functions are compiled by Numba. For all randomness they use ``next_uniform(source)``, a number in [0, 1).
"""

from collections.abc import Callable
from typing import Any

import numba

from avare._compilation import ByType, lean
from avare._compilation import kernel as kernel
from avare._randomness import next_uniform as next_uniform

_DRAW, _LEARN = ByType("draw_into"), ByType("learn_from")
draw_into, learn_from = _DRAW.function, _LEARN.function


def register_kernels(
    state: type, *, draw: Callable[..., None], learn: Callable[[Any, Any, Any], None] | None = None
) -> None:
    """Declare the compiled kernels of a sampler.

    Parameters
    ----------
    state : type
        The ``NamedTuple`` that they take first.
    draw : callable
        ``draw(state, step, source, indices, probabilities, weights)``, compiled by `kernel` or a plain function,
        which is then compiled. It must not fail.
    learn : callable or None, default=None
        ``learn(state, indices, norms)``, likewise; for a sampler that learns nothing, `learn_nothing`. By default
        the sampler learns in Python, by its method ``learn``, and no compiled loop can use it.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> class First(NamedTuple):
    ...     n: int
    >>> def draw(state, step, source, indices, probabilities, weights):
    ...     indices[:] = 0
    ...     probabilities[:] = 1.0
    ...     weights[:] = 1.0 / len(indices)
    >>> register_kernels(First, draw=draw, learn=learn_nothing)
    >>> can_learn(First(5))
    True
    """
    _DRAW.version(state)(_compiled(draw))
    if learn is not None:
        _LEARN.version(state)(_compiled(learn))


def can_learn(state: Any) -> bool:
    """Whether a state has a compiled `learn`, so that a compiled loop can use it."""
    return type(state) in _LEARN.versions


def learns(state: Any) -> bool:
    """Whether a state has a compiled `learn` that changes something."""
    return _LEARN.versions.get(type(state), learn_nothing) is not learn_nothing


@kernel
def step_into(state, step, source, given, norms, indices, probabilities, weights):
    """Learn from checked norms and fill the arrays with the next batch."""
    learn_from(state, given, norms)
    draw_into(state, step, source, indices, probabilities, weights)


def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    compiled: Callable[..., None] = function if numba.extending.is_jitted(function) else kernel(function)
    return compiled


@lean
def learn_nothing(state, indices, norms):
    """Ignore the norms, for samplers whose distribution is fixed."""
