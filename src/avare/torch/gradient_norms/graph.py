"""What autograd's graph says about a forward pass: where parameters are used, and what is broadcast."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from avare.torch.gradient_norms.uses import tensors_of

POSITIONS = (
    "pass positions that all examples share once per example, as torch.arange(T).expand(n, T), or leave them out by "
    "exclude="
)
_BROADCASTING = ("AddBackward0", "SubBackward0", "MulBackward0", "DivBackward0", "ExpandBackward0")


def parameter_uses(output: Any, vectors: dict[Any, tuple[str, torch.Size]]) -> Counter[nn.Parameter]:
    """Count the operations of a forward pass that take each parameter. Some microseconds per operation.

    Parameters
    ----------
    output
        What the model returned.
    vectors
        By their operation, the outputs of embeddings whose input was a vector, with title and shape. If one is
        broadcast over the examples, a ``ValueError`` names it.
    """
    uses: Counter[nn.Parameter] = Counter()
    for node, source in _edges(output):
        if hasattr(source, "variable"):
            uses[source.variable] += 1
        elif vectors:
            _check_broadcast(node, source, vectors)
    return uses


def in_backward() -> bool:
    """Whether autograd is in a backward pass, where checkpoints run parts of the model again."""
    return bool(torch._C._current_graph_task_id() >= 0)


def _edges(output: Any) -> Iterator[tuple[Any, Any]]:
    """Return the operations that led to an output, each paired with what it took: operations or parameters."""
    stack = [each.grad_fn for each in tensors_of(output) if each.grad_fn is not None]
    visited = set(stack)
    while stack:
        node = stack.pop()
        for source, _ in node.next_functions:
            if source is None:
                continue
            yield node, source
            if source not in visited and not hasattr(source, "variable"):
                visited.add(source)
                stack.append(source)


def _check_broadcast(node: Any, source: Any, vectors: dict[Any, tuple[str, torch.Size]]) -> None:
    """Raise an error if an operation broadcasts the output of an embedding over a dimension before its first."""
    if node.name() not in _BROADCASTING:
        return
    unsqueezed = source.name() == "UnsqueezeBackward0"  # as in embedding(positions)[None]
    origin = source.next_functions[0][0] if unsqueezed else source
    if origin not in vectors:
        return
    title, shape = vectors[origin]
    result, taken = _shape_of(node), _shape_of(source)
    if len(result) > len(shape) and result[0] > 1 and shape[0] > 1 and not (unsqueezed and taken[:1] == shape[:1]):
        raise ValueError(f"{title}: its output is broadcast over the examples, so no example has its own; {POSITIONS}")


def _shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of an operation's result; empty if PyTorch does not say."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[0].shape) if metadata else ()
