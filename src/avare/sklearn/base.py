"""What the classifier and the regressor share: parameters, checks of input, and the fit."""

import math
import tempfile
import warnings
from functools import lru_cache, partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, csr_matrix, issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import assert_all_finite, check_array, check_random_state, check_X_y
from sklearn.utils._param_validation import Interval, StrOptions, validate_parameter_constraints
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from avare import _validation as validation
from avare import samplers
from avare._progress import Line
from avare.linear import Gap, constant_model, gap_at
from avare.linear.solver import solve
from avare.problems import Linear
from avare.problems.base import Vector
from avare.problems.matrix import parts_of
from avare.sklearn.stream import Moments, merge, moments_of, one_epoch
from avare.solvers import saga
from avare.solvers.arguments import DEFAULT, default_batch_size

_KINDS = [np.float64, np.float32]
_BOOLEAN = [bool, np.bool_]  # scikit-learn's own names of constraints would be parsed in each fit
_CAUTION = 0.5  # the step of `partial_fit` falls with this power of the number of examples seen


def _schema(X: Any) -> Any:
    """Return the schema of a ParquetFile, Array or Dataset of pyarrow, all of whose columns are numbers, or None."""
    if not hasattr(X, "iter_batches") and not hasattr(X, "to_batches"):
        return None
    schema = getattr(X, "schema_arrow", X.schema)
    for field in schema:
        if not str(field.type).startswith(("int", "uint", "float", "double", "halffloat", "decimal", "bool")):
            raise ValueError(f"column {field.name!r} of X has type {field.type}: must hold numbers")
    return schema


def _mapped(X: Any) -> NDArray[Any]:
    """Decode a ParquetFile, Array or Dataset of pyarrow, part by part, to a file that is mapped into memory."""
    with tempfile.TemporaryFile() as file:
        for batch in (X.iter_batches if hasattr(X, "iter_batches") else X.to_batches)():
            columns = [column.to_numpy(zero_copy_only=False) for column in batch.columns]
            kind = np.float32 if all(column.dtype == np.float32 for column in columns) else np.float64
            np.column_stack(columns).astype(kind, copy=False).tofile(file)
        if file.tell() == 0:
            raise ValueError(f"Found array with 0 sample(s) in {X!r} while a minimum of 1 is required.")
        return np.memmap(file, dtype=kind, mode="r").reshape(-1, len(columns))


def _is_plain(X: Any, y: Any) -> bool:
    """Whether scikit-learn's checks would change nothing, unless X has numbers that are not finite.

    They take longer than the fit of a small model.
    """
    if not (type(X) is np.ndarray or type(X) in (csr_array, csr_matrix)) or type(y) is not np.ndarray:
        return False
    if X.dtype not in _KINDS or y.dtype.kind not in "iuf" or X.ndim != 2 or y.shape != X.shape[:1] or 0 in X.shape:
        return False
    values = X if type(X) is np.ndarray else X.data
    return bool(values.flags.c_contiguous and math.isfinite(y.sum()))


@lru_cache(maxsize=32, typed=True)
def _check_parameters(kind: type[BaseEstimator], *values: Any) -> None:
    """Check parameters as scikit-learn does; but it takes longer than a small fit, so valid ones are remembered."""
    parameters = dict(zip(kind._parameter_constraints, values, strict=True))
    validate_parameter_constraints(kind._parameter_constraints, parameters, kind.__name__)


def _say(line: Line, step: int, objective: float, gap: float) -> None:
    line.say(f"step {step}: objective {objective:.6g}, gap {gap:.3g}")


class LinearEstimator(BaseEstimator):
    """A linear model that minimises C times the sum of the losses plus a penalty."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "C": [Interval(Real, 0, None, closed="right")],
        "l1_ratio": [Interval(Real, 0, 1, closed="both")],
        "fit_intercept": _BOOLEAN,
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "warm_start": _BOOLEAN,
        "random_state": [Interval(Integral, 0, 2**32 - 1, closed="both"), np.random.RandomState, None],
        "verbose": [Interval(Integral, 0, None, closed="left"), *_BOOLEAN],
        "sampler": [str],  # a name known when `fit` is called
        "batch_size": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
    }

    classes_: NDArray[Any]  # of a classifier

    def _validate_params(self) -> None:
        try:
            values = (getattr(self, name) for name in self._parameter_constraints)
            _check_parameters(type(self), *values)  # type: ignore[arg-type]  # a class has a hash
        except TypeError:  # a parameter is wrong, or has no hash
            super()._validate_params()

    def _read(self, X: Any, y: Any, sample_weight: Any, *, reset: bool, **options: Any) -> tuple[Any, Any, Any]:
        """Check the data as scikit-learn's own linear models do."""
        validation.choice("sampler", self.sampler, samplers.names())
        if reset and _is_plain(X, y) and not hasattr(self, "feature_names_in_"):
            self.n_features_in_ = X.shape[1]
            return X, y, self._read_weight(X, sample_weight)
        schema = _schema(X)
        mapped = isinstance(X, np.memmap) or schema is not None  # checked in parts: it need not fit into memory
        options = {"accept_sparse": "csr", "dtype": _KINDS, "order": "C", "ensure_all_finite": not mapped, **options}
        if schema is None:
            X, y = validate_data(self, X, y, reset=reset, **options)
        else:
            validate_data(self, schema.empty_table(), reset=reset, skip_check_array=True)  # names of columns
            X, y = check_X_y(_mapped(X), y, estimator=self, **options)
        for part in parts_of(X) if mapped else ():
            assert_all_finite(X[part], input_name="X")
        if options.get("y_numeric") and y.dtype.kind not in "iuf":
            y = y.astype(np.float64)  # or an error that names a value
        return X, y, self._read_weight(X, sample_weight)

    def _read_weight(self, X: Any, weight: Any) -> Any:
        if weight is None:
            return None
        is_plain = type(weight) is np.ndarray and weight.dtype == np.float64 and weight.shape == X.shape[:1]
        if is_plain and weight.min() >= 0.0 and 0.0 < weight.sum() < math.inf:
            return weight  # the checks would change nothing
        return _check_sample_weight(weight, X, dtype=np.float64, ensure_non_negative=True)

    def _problem(self, kind: type[Linear], X: Any, y: Any, weight: Any, **options: Any) -> Linear:
        strength = 0.0 if math.isinf(self.C) else 1.0 / self.C
        if math.isinf(strength):
            raise ValueError(f"C = {self.C}: must be at least 1e-307, so that 1 / C is finite")
        penalty = {"l2": strength * (1.0 - self.l1_ratio), "l1": strength * self.l1_ratio}
        options |= {"sample_weight": weight, "bias": "free" if self.fit_intercept else False}
        try:
            return kind(X, y, **penalty, **options)
        except ValueError:
            assert_all_finite(X.data if issparse(X) else X, input_name="X")  # scikit-learn's message
            raise

    def _solve(self, problem: Linear, start: Vector, share: float | None) -> tuple[Vector, int]:
        """Minimise; return the coefficients and the number of iterations. With a share of the rows: one epoch."""
        if share is not None:
            return self._solve_part(problem, start, share)
        if self.sampler != DEFAULT or not isinstance(self.batch_size, str):
            return self._solve_by_saga(problem, start)
        return self._solve_by_newton(problem, start)

    def _batch(self, n: int) -> int:
        return default_batch_size(n) if isinstance(self.batch_size, str) else int(min(self.batch_size, n))

    def _solve_part(self, problem: Linear, start: Vector, share: float) -> tuple[Vector, int]:
        part, known = moments_of(problem, share), self._moments
        if known is None:  # of the rows before, if there are any, this part is all that is known
            known = part._replace(weight=part.weight * (1.0 / share - 1.0), squares=part.squares * (1.0 / share - 1.0))
        self._next_moments = merge(known, part)
        own = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        seed = np.random.SeedSequence([own, getattr(self, "n_seen_", 0)])  # other draws for each part
        batch = self._batch(problem.n)
        run = one_epoch(problem, self._next_moments, self.sampler, batch, start.copy(), share**_CAUTION, seed)
        self.solver_, self.gap_, self.gap_kind_ = "saga", math.nan, "unknown"
        return problem.coefficients(run.x), run.epochs

    def _solve_by_saga(self, problem: Linear, start: Vector) -> tuple[Vector, int]:
        if self.fit_intercept and not start.any():
            start.reshape(problem.outputs, problem.width)[:, -1] = constant_model(problem)[0][:, -1]
        run = saga(
            problem,
            self.sampler,
            epochs=self.max_iter,
            tol=self.tol,
            batch_size=self._batch(problem.n),
            start=start,
            evaluate="never",
            progress=bool(self.verbose),
            seed=check_random_state(self.random_state).randint(np.iinfo(np.int32).max),
        )
        limit, warns = f"max_iter = {self.max_iter} epochs", run.status == "finished"
        gap = gap_at(problem, problem.coefficients(run.x))
        self._report(problem, "saga", gap, problem.best_constant(), limit, warns=warns)
        return problem.coefficients(run.x), run.epochs

    def _solve_by_newton(self, problem: Linear, start: Vector) -> tuple[Vector, int]:
        again = self.warm_start and hasattr(self, "coef_")
        table = start.reshape(problem.outputs, problem.width) if again else None
        with Line(f"fitting {type(self).__name__}", shown=bool(self.verbose)) as line:
            say = partial(_say, line) if self.verbose else None
            found = solve(problem, tol=self.tol**2, start=table, steps=self.max_iter, callback=say)
        limit = f"max_iter = {self.max_iter} steps" if found.status == "finished" else "what rounding allows"
        gap, warns = Gap(found.gap, found.gap_kind), found.status != "converged"
        self._report(problem, found.method, gap, found.scale, limit, warns=warns)
        return found.table, found.steps

    def _report(self, problem: Linear, solver: str, gap: Gap, constant: float, limit: str, *, warns: bool) -> None:
        """Say which solver ran and how far it came; warn if it did not come as far as it should."""
        share = gap.value / constant if constant > 0.0 else gap.value
        self.solver_, self.gap_, self.gap_kind_ = solver, share, gap.kind
        if warns and self.tol > 0.0 and not share <= self.tol**2:
            why = f"the objective may be above its minimum by {100.0 * share:.2g} % of that of a constant model"
            if math.isinf(share):
                why = "there may be no minimum, as if columns separate the classes and C is infinite: pass a smaller C"
            for k in np.flatnonzero(problem.class_weights()[1] == 0.0)[:1]:
                label = self.classes_.tolist()[k]
                why = f"class {label!r} has no weight, so that there is no minimum: leave its examples out"
            text = f"{solver} did not converge to tol = {self.tol:g} within {limit}: {why}"
            warnings.warn(text, ConvergenceWarning, stacklevel=6)

    _moments: Moments | None = None
    _next_moments: Moments | None = None

    def _share(self, count: int, weight: Any) -> tuple[Vector, float]:
        """Return the weights of a part of a stream, for all examples so far, and its share of them."""
        share = count / (getattr(self, "n_seen_", 0) + count)
        return np.full(count, 1.0 / share) if weight is None else weight / share, share

    def _count(self, seen: int, moments: Moments | None = None) -> None:
        """Note how many examples the model has seen, after they were taken in."""
        self.n_seen_, self._moments, self._next_moments = seen, moments, None

    def _start(self, shape: tuple[int, int], intercepts: Any, *, again: bool) -> Vector:
        """The first coefficients: from the last fit if ``again``, otherwise 0 with the given intercepts."""
        table = np.zeros((shape[0], shape[1] + int(self.fit_intercept)))
        if again and hasattr(self, "coef_") and np.atleast_2d(self.coef_).shape == shape:
            table[:, : shape[1]] = self.coef_
            intercepts = self.intercept_
        if self.fit_intercept:
            table[:, -1] = intercepts
        return table

    def _outputs(self, X: Any) -> Vector:
        check_is_fitted(self)
        if (schema := _schema(X)) is None:
            X = validate_data(self, X, reset=False, accept_sparse="csr")
        else:
            validate_data(self, schema.empty_table(), reset=False, skip_check_array=True)
            X = check_array(_mapped(X), estimator=self)
        return np.asarray(safe_sparse_dot(X, np.atleast_2d(self.coef_).T, dense_output=True) + self.intercept_)

    def _split(self, table: Vector) -> tuple[Vector, Vector]:
        """Return coefficients and intercepts."""
        if self.fit_intercept:
            return table[:, :-1].copy(), table[:, -1].copy()
        return table.copy(), np.zeros(len(table))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags
