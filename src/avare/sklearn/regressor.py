"""AvareRegressor: least squares and Huber regression."""

from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import RegressorMixin, _fit_context
from sklearn.utils._param_validation import Interval, StrOptions

from avare.problems import Huber, LeastSquares, Linear
from avare.problems.base import Vector
from avare.sklearn.base import LinearEstimator


class AvareRegressor(RegressorMixin, LinearEstimator):
    r"""Linear regression with squared errors or the Huber loss, fitted to a certified accuracy.

    It minimises :math:`C \sum_i s_i \ell(y_i, w \cdot a_i + b) + \frac{1 - r}{2} |w|^2 + r |w|_1` with
    :math:`r` = `l1_ratio`. For "squared_error" :math:`\ell` is half of the squared residual, as in
    ``Ridge(alpha=1 / C)``. X need not be scaled, and uneven `sample_weight` costs nothing.
    Newton's method, or dual coordinate ascent, fits the model and certifies the result (`gap_`). With another `sampler`
    or a `batch_size`, `avare.saga` does.

    Parameters
    ----------
    loss : str, default="squared_error"
        "squared_error" or "huber".
    C : float, default=1.0
        Inverse of the strength of the penalty; ``np.inf`` for none. Coefficients that the data do not determine
        (copied columns, or more columns than examples) are then any that fit, not those of least norm as of
        ``LinearRegression``. A large C, such as 1e6 for columns of scale 1, comes close to these.
    epsilon : float, default=1.35
        The residual from which the Huber loss is linear, in the units of y.
    l1_ratio : float, default=0.0
        The share of the l1 penalty, from 0 (l2) to 1.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised.
    max_iter : int, default=1000
        Most steps of Newton's method, or epochs.
    tol : float, default=3e-5
        Stop when the objective is certified to be above its minimum by at most tol^2 times that of the best constant
        model.
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
    coef_ : array of shape (n_features,)
    intercept_ : float
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
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = AvareRegressor(random_state=0).fit(X, y)
    >>> round(model.intercept_)
    152
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **LinearEstimator._parameter_constraints,
        "loss": [StrOptions({"squared_error", "huber"})],
        "epsilon": [Interval(Real, 0, None, closed="neither")],
    }

    def __init__(
        self,
        loss: str = "squared_error",
        *,
        C: float = 1.0,
        epsilon: float = 1.35,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 3e-5,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
        sampler: str = "Calibrated",
        batch_size: int | str = "auto",
    ) -> None:
        self.loss = loss
        self.C = C
        self.epsilon = epsilon
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
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
            Numbers.
        sample_weight : array-like or None, default=None
            One number per example, not negative.
        """
        X, y, weight = self._read(X, y, sample_weight, reset=True, y_numeric=True)
        centre = np.average(y, weights=weight) if self.loss == "squared_error" else np.median(y)
        self._fit_from(X, y, weight, self._start((1, X.shape[1]), centre, again=self.warm_start))
        self._count(X.shape[0])
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Take in more examples of a stream: one epoch over them, with steps that fall with the number seen.

        Parameters
        ----------
        X : array or sparse matrix
            As for `fit`.
        y : array-like
            Numbers.
        sample_weight : array-like or None, default=None
            As for `fit`.
        """
        first = not hasattr(self, "coef_")
        X, y, weight = self._read(X, y, sample_weight, reset=first, y_numeric=True)
        weight, share = self._share(X.shape[0], weight)
        start = self._start((1, X.shape[1]), np.median(y), again=True)
        self._fit_from(X, y, weight, start, share)
        self._count(getattr(self, "n_seen_", 0) + X.shape[0], self._next_moments)
        return self

    def predict(self, X: Any) -> Vector:
        """Return the prediction for each example."""
        return self._outputs(X).ravel()

    def _fit_from(self, X: Any, y: Any, weight: Any, start: Vector, share: float | None = None) -> None:
        kind: type[Linear] = LeastSquares if self.loss == "squared_error" else Huber
        options = {"delta": self.epsilon} if kind is Huber else {}
        problem = self._problem(kind, X, np.asarray(y, dtype=np.float64), weight, **options)
        table, self.n_iter_ = self._solve(problem, start.ravel(), share)
        coefficients, intercepts = self._split(table)
        self.coef_, self.intercept_ = coefficients[0], float(intercepts[0])
