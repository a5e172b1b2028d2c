"""The paper's own numbers, from `paper.toml`, which states their source."""

import tomllib
from importlib import resources
from typing import Any


def paper() -> dict[str, Any]:
    """What the paper prints, and how near we must come to it.

    Under "table" its Table 1 by dataset; under "last_epoch" what its figures show at the last
    epoch, by step rule, dataset, measure and sampler (relative error and suboptimality as log10);
    under "tolerance" what may differ; under "order" which samplers must come in which order.

    >>> paper()["table"]["mnist"]["gain_at_optimum"]
    5.08
    """
    return tomllib.loads(resources.files("avare.report").joinpath("paper.toml").read_text(encoding="utf-8"))
