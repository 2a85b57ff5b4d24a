"""Functions of datasets, which workers in other processes import, and what consumers in processes of their own do."""

import time
from typing import Any

import numpy as np

import fedstack

# Elements come slowly enough for something to happen meanwhile.
PAUSE = 0.0003


@fedstack.python_computation([np.int64], np.int64)
def slowly(x: Any) -> Any:
    time.sleep(PAUSE)
    return x


@fedstack.python_computation([np.int64], np.int64)
def fails_at_500(x: Any) -> Any:
    if x == 500:
        raise ValueError("no 500")
    return x
