"""The registry of losses, and what each class declares."""

import numpy as np
import pytest
from scipy.special import expit, softmax

from avare import problems
from loss_checks import example
from plain_losses import CASES, Case

every_loss = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def test_losses_are_found_by_name() -> None:
    expected = {
        "softmax": (problems.Softmax, "classes"),
        "logistic": (problems.Logistic, "two classes"),
        "least_squares": (problems.LeastSquares, "numbers"),
        "huber": (problems.Huber, "numbers"),
        "smoothed_hinge": (problems.SmoothedHinge, "two classes"),
    }
    assert set(expected) <= set(problems.names()) and problems.names() == sorted(problems.names())
    for name, (kind, target) in expected.items():
        assert problems.get(name) is kind and kind.target == target
    with pytest.raises(ValueError, match=r"^name = 'hinge': must be one of .*huber, least_squares, "):
        problems.get("hinge")


def test_a_name_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("avare.problems.registry._KINDS", {})

    @problems.register("ridge")
    class Mine(problems.LeastSquares):
        pass

    @problems.register()
    class LeastSquaresToo(problems.LeastSquares):
        pass

    assert problems.names() == ["least_squares_too", "ridge"] and problems.get("ridge") is Mine


@every_loss
def test_the_curvature_at_zero_is_that_of_the_loss_or_a_bound(case: Case) -> None:
    X, y, _ = example(case)
    problem = case.make(X, y)
    at_zero = [np.linalg.eigvalsh(case.derivatives(np.zeros(problem.outputs), target)[2]).max() for target in y]
    if case in (CASES["Huber"], CASES["SmoothedHinge"]):  # 0 wherever the loss is linear
        assert max(at_zero) <= problem.curvature_at_zero == problem.curvature
    else:
        assert max(at_zero) == pytest.approx(problem.curvature_at_zero, rel=1e-12)


@every_loss
def test_the_link_predicts_the_targets(case: Case) -> None:
    X, y, generator = example(case)
    problem = case.make(X, y)
    z = 300.0 * generator.normal(size=(7, problem.outputs))
    if case is CASES["Softmax"]:
        expected = softmax(z, axis=1)
    elif case is CASES["Logistic"]:
        expected = expit(z)
    else:
        expected = z
    assert np.allclose(problem.link(z), expected, rtol=1e-12, atol=1e-15)
    assert np.allclose(problem.link(z[0].tolist()), expected[0], rtol=1e-12, atol=1e-15)
    if problem.classes.size:
        assert problem.classes.tolist() == sorted(set(y))
