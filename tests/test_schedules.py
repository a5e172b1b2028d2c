import pickle

import numpy as np
import pytest

from avare import schedules


def test_floor_is_the_papers() -> None:
    n, m, delta, c = 50, 7, 0.6, 80.0
    schedule = schedules.floor(n, m, delta, c)
    for t in (1, 2, 100, 10_000):
        assert np.isclose(schedule(t), 1.0 / (c ** (1 - delta / 3) * (c + m * (t - 1)) ** (delta / 3)), rtol=1e-13)
    many = np.array([1, 5, 1000])
    assert np.array_equal(schedule(many), [schedule(each) for each in many.tolist()])


@pytest.mark.parametrize("n", [1, 7, 1000, 10**8])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_floor_starts_uniform_and_falls_to_p_min(n: int, share: float) -> None:
    p_min = share / n
    schedule = schedules.floor(n, 10, 0.7, p_min=p_min)
    assert np.isclose(schedule(1), 1.0 / n, rtol=1e-12)
    values = schedule(np.array([1, 10, 100, 10**12]))
    assert (np.diff(values) < 0.0).all() if share < 1.0 else (values == p_min).all()
    assert (values >= p_min).all()


def test_step_sizes_are_the_papers() -> None:
    n, smoothness, mu, m = 30, 1.7, 0.4, 5
    step = schedules.inverse_time(n, smoothness, mu, m)
    for t in (1, 9, 1000):
        assert np.isclose(step(t), m / (2 * n * smoothness + m * mu * t), rtol=1e-14)
    assert np.isclose(schedules.polynomial(2.0, 3.0, 0.33)(8), 2.0 / 10.0**0.33, rtol=1e-14)
    assert schedules.constant(0.25)(1) == schedules.constant(0.25)(10**9) == 0.25
    assert np.array_equal(schedules.constant(0.25)(np.array([1, 2])), [0.25, 0.25])


def test_schedules_compare_and_pickle() -> None:
    schedule = schedules.floor(10, 2, 0.5)
    assert schedule == schedules.floor(10, 2, 0.5) != schedules.floor(10, 2, 0.6)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert schedules.floor(10, p_min=0.1, c=np.inf) == schedules.floor(10, p_min=0.1)
    assert schedules.constant(2.0)([1, 2]).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("name", "arguments", "error", "message"),
    [
        ("floor", {"n": 0}, ValueError, "n = 0: must be at least 1"),
        ("floor", {"n": 1.5}, TypeError, "n = 1.5: must be an integer"),
        ("floor", {"n": True}, TypeError, "n = True: must be an integer"),
        ("floor", {"n": 10, "batch_size": 0}, ValueError, "batch_size = 0"),
        ("floor", {"n": 10, "delta": 0.0}, ValueError, "delta = 0.0: must be above 0"),
        ("floor", {"n": 10, "delta": 1.1}, ValueError, "delta = 1.1: must be at most 1"),
        ("floor", {"n": 10, "delta": None}, TypeError, "delta = None: must be a number"),
        ("floor", {"n": 10, "c": 9.9}, ValueError, r"c = 9.9: must be at least .* = 10"),
        ("floor", {"n": 10, "c": 11.0, "p_min": 0.02}, ValueError, r"c = 11.0: must be at least .* = 12.5"),
        ("floor", {"n": 10, "c": 1.1e7}, ValueError, "c = 11000000.0: must be at most a million times"),
        ("floor", {"n": 10, "c": np.inf}, ValueError, "c = inf: must be finite"),
        ("floor", {"n": 10, "p_min": 0.11}, ValueError, "p_min = 0.11: must be at most 1/n = 0.1"),
        ("floor", {"n": 10, "p_min": -0.1}, ValueError, "p_min = -0.1"),
        ("inverse_time", {"n": 10, "smoothness": -1, "strong_convexity": 1}, ValueError, "smoothness = -1.0"),
        ("inverse_time", {"n": 10, "smoothness": 0, "strong_convexity": 0}, ValueError, "one must be above 0"),
        ("polynomial", {"scale": 0, "offset": 1, "power": 0.5}, ValueError, "scale = 0.0: must be above 0"),
        ("polynomial", {"scale": 1, "offset": 0.5, "power": 0.5}, ValueError, "offset = 0.5: must be at least 1"),
        ("polynomial", {"scale": 1, "offset": 1, "power": 1.5}, ValueError, "power = 1.5: must be at most 1"),
        ("constant", {"value": float("nan")}, ValueError, "value = nan: must be finite"),
    ],
)
def test_refuses_bad_input(name: str, arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(schedules, name)(**arguments)


@pytest.mark.parametrize("t", [0, -3, np.array([1, 0])])
def test_steps_count_from_one(t: int) -> None:
    with pytest.raises(ValueError, match="steps count from 1"):
        schedules.constant(1.0)(t)
