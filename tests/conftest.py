"""Hypothesis draws the same examples at each run; with NUMBA_DISABLE_JIT=1, fewer of them."""

import numba
from hypothesis import HealthCheck, settings

settings.register_profile(
    "avare",
    derandomize=True,
    deadline=None,
    max_examples=10 if numba.config.DISABLE_JIT else 100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("avare")
