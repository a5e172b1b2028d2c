"""The registry of losses, and what each class declares."""

import pytest

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
    for near, meant in (("squared", "least_squares"), ("Softmax", "softmax"), ("smoothed hinge", "smoothed_hinge")):
        with pytest.raises(ValueError, match=rf"did you mean '{meant}'\?$"):
            problems.get(near)


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
def test_the_classes_are_the_labels_in_order(case: Case) -> None:
    X, y, _ = example(case)
    problem = case.make(X, y)
    if problem.classes.size:
        assert problem.classes.tolist() == sorted(set(y))
