"""Locks at a fork: the child finds them free, and finds nothing half changed."""

import os
import signal
import threading
import time

import numpy as np
import pytest

import avare
from avare._locks import make_lock

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def in_a_child(work: object) -> bool:
    """Return whether a forked process comes to the end of some work within ten seconds."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        work()  # type: ignore[operator]  # a function without arguments
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_can_use_a_sampler_that_a_thread_is_using() -> None:
    sampler, stop = avare.Calibrated(1000, 16, seed=0), threading.Event()

    def train() -> None:
        while not stop.is_set():
            sampler.update(sampler.sample(), np.ones(16))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        assert all(in_a_child(lambda: sampler.update(sampler.sample(), np.ones(16))) for _ in range(10))
    finally:
        stop.set()
        thread.join()


def test_a_fork_waits_and_no_order_of_locks_is_a_deadlock() -> None:
    first, second = make_lock(), make_lock()
    taken, released = threading.Event(), threading.Event()

    def nest() -> None:
        with first:
            taken.set()
            time.sleep(0.2)  # seconds, in which the fork finds it busy
            with second:
                released.set()

    thread = threading.Thread(target=nest)
    thread.start()
    taken.wait()
    assert in_a_child(lambda: first.acquire() and second.acquire()) and released.is_set()
    thread.join()
    with first, second:  # in the parent they are free too
        pass
