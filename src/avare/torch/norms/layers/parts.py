"""What one use of a parameter adds to the gradient of each example, and the squared norms of the sum.

The gradient of a linear layer at T positions is a sum of T outer products. So is that of a convolution, over
its patches, and that of an embedding, whose left factors are one-hot. Their squared norms can be computed
without writing the gradients out:

    || sum_t a_t b_t' ||^2 = sum_{s,t} (a_s' a_t) (b_s' b_t)
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

_LARGEST = 1 << 22  # numbers in memory at a time: fewer fit into the cache, more use all cores


@dataclass(slots=True, eq=False)
class Dense:
    """Gradients that are small enough to store: of a bias, or of a normalisation.

    >>> Dense(torch.tensor([[3.0, 4.0], [0.0, 1.0]])).rows(slice(1, 2))
    tensor([[0., 1.]])
    """

    values: Tensor
    """The gradients, of shape (batch, size of the parameter)."""

    def rows(self, examples: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self.values[examples]


@dataclass(slots=True, eq=False)
class Outer:
    """Sums over positions of outer products, one for each group of channels.

    >>> outer = Outer(torch.ones(1, 2, 1), torch.full((1, 3, 1), 2.0))  # one example, two outputs, three inputs
    >>> outer.rows(slice(None))
    tensor([[2., 2., 2., 2., 2., 2.]])
    """

    left: Tensor
    """Gradients of the output, of shape ``(batch, groups * outputs, positions)``."""
    right: Tensor
    """What they are multiplied by, usually a view, of shape ``(batch, groups * inputs, *window, positions)``."""
    groups: int = 1

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Number of groups, outputs and inputs per group, and positions."""
        positions = self.left.shape[2]
        inputs = self.right[:1].numel() // max(positions, 1) // self.groups if len(self.right) else 0
        return self.groups, self.left.shape[1] // self.groups, inputs, positions

    def factors(self, examples: slice) -> tuple[Tensor, Tensor]:
        """Return both factors of some examples, in shape (examples * groups, outputs or inputs, positions)."""
        groups, outputs, inputs, positions = self.sizes
        left, right = self.left[examples], self.right[examples]
        count = len(left) * groups
        return left.reshape(count, outputs, positions), right.reshape(count, inputs, positions)

    def rows(self, examples: slice) -> Tensor:
        """Return the gradients of some examples."""
        left, right = self.factors(examples)
        return torch.bmm(left, right.mT).view(len(left) // self.groups, -1)


@dataclass(slots=True, eq=False)
class OneHot:
    """Sums over positions of gradients, each of which belongs to one row of the parameter.

    >>> part = OneHot(torch.tensor([[1, 1]]), torch.tensor([[[2.0], [3.0]]]), height=3)
    >>> part.rows(slice(None))  # an embedding of three rows: the second was used twice
    tensor([[0., 5., 0.]])
    """

    indices: Tensor
    """The row of each position, of shape (batch, positions)."""
    values: Tensor
    """The gradients, of shape (batch, positions, width); zero for padding."""
    height: int
    """Number of rows of the parameter."""

    def rows(self, examples: slice) -> Tensor:
        """Return the gradients of some examples."""
        indices, values = self.indices[examples], self.values[examples]
        result = values.new_zeros(len(values), self.height, values.shape[2])
        return result.scatter_add_(1, indices.unsqueeze(2).expand_as(values), values).flatten(1)


Part: TypeAlias = Dense | Outer | OneHot
"""What one use of a parameter adds to the gradient of each example."""


def squares(parts: Sequence[Part]) -> Tensor | None:
    """Return the squared norm of the sum of the parts per example; None if the gradients must be written out."""
    dense = [part for part in parts if isinstance(part, Dense)]
    if len(dense) == len(parts):
        return square_rows(functools.reduce(torch.add, [part.values for part in dense]))
    outers = [part for part in parts if isinstance(part, Outer)]
    places = [part for part in parts if isinstance(part, OneHot)]
    if len(outers) + len(places) < len(parts) or len({part.sizes[:3] for part in outers}) > 1:
        return None
    if not places:
        return _square_outers(outers)
    indices = torch.cat([part.indices for part in places], dim=1)
    place = OneHot(indices, torch.cat([part.values for part in places], dim=1), places[0].height)
    if not outers:
        return _square_place(place)
    return (_square_outers(outers) + _square_place(place) + 2.0 * _cross(outers, place)).clamp_(min=0.0)


def square_rows(values: Tensor) -> Tensor:
    """Return the sum of squares of each row."""
    return torch.linalg.vector_norm(values.flatten(1), dim=1).square_()


def chunks(count: int, size: int) -> Iterator[slice]:
    """Return ranges of examples that fit into memory, if each example needs ``size`` numbers."""
    step = max(1, _LARGEST // max(size, 1))
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))


def _square_outers(parts: Sequence[Outer]) -> Tensor:
    groups, outputs, inputs, _ = parts[0].sizes
    positions = sum(part.sizes[3] for part in parts)
    count = len(parts[0].left)
    if positions == groups == 1:
        return square_rows(parts[0].left) * square_rows(parts[0].right)
    products = positions * (outputs + inputs) <= outputs * inputs  # products of positions, or gradients: the cheaper
    held = 2 * positions**2 if products else outputs * inputs
    results = []
    for examples in chunks(count, groups * (held + positions * (outputs + inputs))):
        left, right = map(_join, zip(*(part.factors(examples) for part in parts), strict=True))
        if products:
            summed = (torch.bmm(left.mT, left) * torch.bmm(right.mT, right)).sum(dim=(1, 2)).clamp_(min=0.0)
        else:
            summed = square_rows(torch.bmm(left, right.mT))
        results.append(summed.view(-1, groups).sum(dim=1))
    return torch.cat(results)


def _square_place(part: OneHot) -> Tensor:
    """Add the gradients of the same row within each example, then square."""
    indices, values = part.indices, part.values
    if indices.shape[1] == 1:
        return square_rows(values)
    results = []
    for examples in chunks(len(values), 2 * values.shape[1] * values.shape[2]):
        these = values[examples]
        offsets = torch.arange(len(these), device=values.device).unsqueeze(1) * part.height
        keys, order = torch.unique((indices[examples] + offsets).flatten(), return_inverse=True)
        sums = values.new_zeros(len(keys), values.shape[2]).index_add_(0, order, these.flatten(0, 1))
        each = values.new_zeros(len(these))
        results.append(each.index_add_(0, keys // part.height, square_rows(sums)))
    return torch.cat(results)


def _cross(outers: Sequence[Outer], place: OneHot) -> Tensor:
    """Return the inner product of the two sums, for a layer that shares its weight with an embedding."""
    indices, values = place.indices, place.values
    positions = sum(part.sizes[3] for part in outers)
    results = []
    for examples in chunks(len(values), positions * (2 * values.shape[1] + sum(outers[0].sizes[1:3]))):
        left, right = map(_join, zip(*(part.factors(examples) for part in outers), strict=True))
        found = indices[examples].unsqueeze(2).expand(-1, -1, positions)
        results.append((left.gather(1, found) * torch.bmm(values[examples], right)).sum(dim=(1, 2)))
    return torch.cat(results)


def _join(factors: tuple[Tensor, ...]) -> Tensor:
    return factors[0] if len(factors) == 1 else torch.cat(factors, dim=2)
