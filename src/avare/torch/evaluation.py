"""Evaluation mode for a while: without Dropout, and with BatchNorm's running statistics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook


@contextmanager
def evaluation_mode() -> Iterator[None]:
    """Put any module in evaluation mode when it is called; restore the modes at the end.

    >>> import torch
    >>> dropout = nn.Dropout()
    >>> with evaluation_mode():
    ...     same = dropout(torch.ones(3))
    >>> same, dropout.training
    (tensor([1., 1., 1.]), True)
    """
    switched: list[nn.Module] = []

    def switch(module: nn.Module, _: Any) -> None:
        if module.training:
            found = [each for each in module.modules() if each.training]
            switched.extend(found)
            for each in found:
                each.training = False

    handle = register_module_forward_pre_hook(switch)
    try:
        yield
    finally:
        handle.remove()
        for each in switched:
            each.training = True
