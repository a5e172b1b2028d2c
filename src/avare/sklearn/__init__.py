"""Linear models with scikit-learn's interface and a certified accuracy. Needs ``pip install 'avare[sklearn]'``."""

from avare._optional import require

require("sklearn", "avare.sklearn", "sklearn")

from avare.sklearn.classifier import AvareClassifier as AvareClassifier  # noqa: E402  # first the hint what to install
from avare.sklearn.regressor import AvareRegressor as AvareRegressor  # noqa: E402

__all__ = ["AvareClassifier", "AvareRegressor"]
