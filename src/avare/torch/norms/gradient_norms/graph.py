"""What autograd's graph says about a forward pass: where parameters are used."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from avare.torch.norms.gradient_norms.uses import tensors_of


def parameter_uses(output: Any) -> Counter[nn.Parameter]:
    """Count the operations of a forward pass that take each parameter. Some microseconds per operation."""
    return Counter(source.variable for source in _sources(output) if hasattr(source, "variable"))


def in_backward() -> bool:
    """Whether autograd is in a backward pass, where checkpoints run parts of the model again."""
    return bool(torch._C._current_graph_task_id() >= 0)


def _sources(output: Any) -> Iterator[Any]:
    """Return what each operation that led to an output took: operations or parameters."""
    stack = [each.grad_fn for each in tensors_of(output) if each.grad_fn is not None]
    visited = set(stack)
    while stack:
        for source, _ in stack.pop().next_functions:
            if source is None:
                continue
            yield source
            if source not in visited and not hasattr(source, "variable"):
                visited.add(source)
                stack.append(source)
