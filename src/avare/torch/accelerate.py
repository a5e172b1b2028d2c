"""What `Accelerator.prepare` expects of a loader: it moves batches, and says which one is the last of its epoch."""

from collections.abc import Iterator
from typing import Any

from accelerate.state import GradientState, PartialState
from accelerate.utils import send_to_device


class Prepared(Iterator[Any]):
    """The batches of one iteration, on the device of this process.

    Accelerate asks ``end_of_dataloader`` of the loader in use, so that accumulated gradients are applied at the end of
    an epoch.

    Parameters
    ----------
    batches
        Those of the loader.
    is_over
        A function that says whether all batches of the epoch have been received.
    """

    remainder = -1  # every batch is full: `gather_for_metrics` drops nothing
    end_of_dataloader = False

    def __init__(self, batches: Iterator[Any], is_over: Any) -> None:
        self._batches, self._is_over = batches, is_over
        self._state, self._device = GradientState(), PartialState().device

    def __next__(self) -> Any:
        if self not in self._state.dataloader_references:
            self._state._add_dataloader(self)
        try:
            batch = send_to_device(next(self._batches), self._device)
        except BaseException:
            self._state._remove_dataloader(self)
            raise
        self.end_of_dataloader = bool(self._is_over())
        return batch

    def __del__(self) -> None:
        self._state._remove_dataloader(self)
