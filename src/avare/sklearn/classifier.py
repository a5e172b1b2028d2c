"""AvareClassifier: logistic regression and a smooth support vector machine."""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, _fit_context
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.extmath import softmax
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from avare.problems import Linear, Logistic, SmoothedHinge, Softmax
from avare.problems.base import Vector
from avare.problems.targets import Encoded, encode
from avare.sklearn.base import LinearEstimator


def _has_probabilities(estimator: Any) -> bool:
    if estimator.loss != "log_loss":
        raise AttributeError(f"probability estimates are not available for loss={estimator.loss!r}")
    return True


class AvareClassifier(ClassifierMixin, LinearEstimator):
    r"""Linear classifier: logistic regression or a smooth support vector machine, fitted to a certified accuracy.

    It minimises the objective of ``LogisticRegression``, :math:`C \sum_i s_i \ell(y_i, w \cdot a_i + b) +
    \frac{1 - r}{2} |w|^2 + r |w|_1` with :math:`r` = `l1_ratio`. X need not be scaled, and uneven `sample_weight` costs
    nothing. Newton's method, or dual coordinate ascent, fits the model and certifies the result (`gap_`). With another
    `sampler` or a `batch_size`, `avare.saga` does.

    Parameters
    ----------
    loss : str, default="log_loss"
        "log_loss", logistic regression, multinomial for more than two classes; or "smoothed_hinge", a support vector
        machine, one-versus-rest for more than two classes.
    C : float, default=1.0
        Inverse of the strength of the penalty; ``np.inf`` for none.
    l1_ratio : float, default=0.0
        The share of the l1 penalty, from 0 (l2) to 1.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    max_iter : int, default=1000
        Most steps of Newton's method, or epochs.
    tol : float, default=3e-5
        Stop when the objective is certified to be above its minimum by at most tol^2 times that of the best constant
        model.
    class_weight : dict, "balanced" or None, default=None
        "balanced", or a dict of a weight per class.
    warm_start : bool, default=False
        Whether `fit` starts from the last coefficients.
    random_state : int, RandomState or None, default=None
        Seed of the draws.
    verbose : int, default=0
        Whether to show the progress.
    sampler : str, default="Calibrated"
        The name of a sampler: see `avare.samplers.names`.
    batch_size : int or str, default="auto"
        Draws per step; "auto" is 32, but at most a hundredth of the examples.

    Attributes
    ----------
    coef_ : array of shape (1, n_features) or (n_classes, n_features)
    intercept_ : array of shape (1,) or (n_classes,)
    classes_ : array
    n_iter_ : int
        Steps of Newton's method, or epochs, of the last fit.
    solver_ : str
        The method of the last fit: "newton", "dual ascent" or "saga".
    gap_ : float
        The objective of the last fit is above its minimum by at most this share of that of the best constant model. NaN
        after `partial_fit`.
    gap_kind_ : str
        "bound" if each coefficient but the intercept has a penalty; "estimate" if not, as the gap then assumes how far
        the minimum can be, or if rounding counts and is estimated; "unknown" after `partial_fit`.
    n_features_in_ : int
    feature_names_in_ : array
        If X had names of columns.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)  # columns of very different scales
    >>> model = AvareClassifier(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.94)
    True
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LinearEstimator._parameter_constraints,
        "loss": [StrOptions({"log_loss", "smoothed_hinge"})],
        "class_weight": [dict, StrOptions({"balanced"}), None],
    }

    def __init__(
        self,
        loss: str = "log_loss",
        *,
        C: float = 1.0,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 3e-5,
        class_weight: Any = None,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        sampler: str = "Calibrated",
        batch_size: int | str = "auto",
    ) -> None:
        self.loss = loss
        self.C = C
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.class_weight = class_weight
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose
        self.sampler = sampler
        self.batch_size = batch_size

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array or sparse matrix
            Array, data frame or sparse matrix (CSR) of shape (n_samples, n_features). A ParquetFile, Table or
            Dataset of pyarrow is decoded part by part to a temporary file, which is then read like an `np.memmap`.
        y : array-like
            Labels.
        sample_weight : array-like or None, default=None
            One number per example, not negative.
        """
        X, y, weight = self._read(X, y, sample_weight, reset=True)
        if y.dtype.kind not in "iu":
            check_classification_targets(y)
        self.classes_, places = encode(y)
        if len(self.classes_) < 2:
            raise ValueError(
                "This solver needs samples of at least 2 classes in the data, but the data contains only one class: "
                f"{self.classes_[0]!r}"
            )
        weight = self._with_classes(weight, places, y)
        self._fit_from(X, places, weight, self._start((self._rows(), X.shape[1]), 0.0, again=self.warm_start))
        self._count(X.shape[0])
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Take in more examples of a stream: one epoch over them, with steps that fall with the number seen.

        Parameters
        ----------
        X : array or sparse matrix
            As for `fit`.
        y : array-like
            Labels, all from `classes`.
        classes : array-like or None, default=None
            All labels of the stream; needed in the first call.
        sample_weight : array-like or None, default=None
            As for `fit`.
        """
        first = not hasattr(self, "coef_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit.")
        X, y, weight = self._read(X, y, sample_weight, reset=first)
        check_classification_targets(y)
        if first:
            self.classes_ = np.unique(classes)
        elif classes is not None and not np.array_equal(self.classes_, np.unique(classes)):
            raise ValueError(
                f"`classes={classes!r}` is not the same as on last call to partial_fit, was: {self.classes_!r}"
            )
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise ValueError(f"y has labels that are not in classes: {unknown!r}")
        places = np.searchsorted(self.classes_, y)
        if isinstance(self.class_weight, str):
            raise ValueError("class_weight 'balanced' is not supported for partial_fit: pass a dict of weights")
        count = X.shape[0]
        weight, share = self._share(count, self._with_classes(weight, places, self.classes_))
        start = self._start((self._rows(), X.shape[1]), 0.0, again=True)
        self._fit_from(X, places, weight, start, share)
        self._count(getattr(self, "n_seen_", 0) + count, self._next_moments)
        return self

    def decision_function(self, X: Any) -> Vector:
        """Return the outputs: one per example for two classes, otherwise one per class."""
        outputs = self._outputs(X)
        return outputs.ravel() if outputs.shape[1] == 1 else outputs

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of each example."""
        outputs = self.decision_function(X)
        places = (outputs > 0.0).astype(int) if outputs.ndim == 1 else outputs.argmax(axis=1)
        return np.asarray(self.classes_[places])

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Vector:
        """Return the probability of each class, in the order of `classes_`."""
        check_is_fitted(self)
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:
            outputs = np.hstack([np.zeros_like(outputs), outputs])
        return np.asarray(softmax(outputs))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> Vector:
        """Return the logarithm of the probability of each class."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))

    def _with_classes(self, weight: Any, places: NDArray[np.int64], labels: Any) -> Any:
        """Return the weights of the examples times the weights of their classes."""
        if self.class_weight is None:
            return weight
        if self.class_weight == "balanced" and weight is not None:
            sums = np.bincount(places, weights=weight, minlength=len(self.classes_))
            each = np.divide(sums.mean(), sums, out=np.zeros(len(sums)), where=sums > 0.0)
        else:
            each = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        return each[places] * (1.0 if weight is None else weight)

    def _rows(self) -> int:
        return 1 if len(self.classes_) == 2 else len(self.classes_)

    def _fit_from(
        self, X: Any, places: NDArray[np.int64], weight: Any, start: Vector, share: float | None = None
    ) -> None:
        fits = []
        for row, (kind, targets) in enumerate(self._parts(places)):
            own = start if kind.target == "classes" else start[row : row + 1]
            fits.append(self._solve(self._problem(kind, X, targets, weight), own.ravel(), share))
        self.coef_, self.intercept_ = self._split(np.vstack([table for table, _ in fits]))
        self.n_iter_ = max(steps for _, steps in fits)

    def _parts(self, places: NDArray[np.int64]) -> list[tuple[type[Linear], Any]]:
        """The problems to solve: one, or one per class."""
        count = len(self.classes_)
        if self.loss == "log_loss":
            return [(Logistic if count == 2 else Softmax, Encoded(np.arange(count), places))]
        rows, two = [1] if count == 2 else range(count), np.array([False, True])
        return [(SmoothedHinge, Encoded(two, (places == row).astype(np.int64))) for row in rows]
