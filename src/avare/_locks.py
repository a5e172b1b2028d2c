"""Locks that a forked process can use.

A process that forks while another of its threads holds a lock would pass a locked lock on to the child, where nobody
releases it, and an object that was being changed. So each lock made here is acquired before a fork and released after
it, in both processes: a fork waits until no kernel runs.
"""

import os
import threading
import weakref
from contextlib import ExitStack

_locks: "weakref.WeakSet[threading.RLock]" = weakref.WeakSet()
_registry = threading.Lock()  # guards `_locks`
_held = ExitStack()  # during a fork


def make_lock() -> threading.RLock:
    """Return a reentrant lock that is free in a forked process.

    >>> with make_lock():
    ...     pass
    """
    lock = threading.RLock()
    with _registry:
        _locks.add(lock)
    return lock


def _acquire_all() -> None:
    """Hold all locks. While one is not free, hold none of them, because its owner may need another one."""
    _registry.acquire()
    while True:
        with ExitStack() as held:
            held.callback(_registry.release)
            busy = next((lock for lock in _locks if not _acquired(lock, held)), None)
            if busy is None:
                _held.push(held.pop_all())
                return
        with busy:
            _registry.acquire()


def _acquired(lock: threading.RLock, held: ExitStack) -> bool:
    if free := lock.acquire(blocking=False):
        held.callback(lock.release)
    return free


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_acquire_all, after_in_parent=_held.close, after_in_child=_held.close)
