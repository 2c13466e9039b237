"""How this package compiles: numba, without the GIL, for a plain CPU of its kind, so that one cache serves all machines of a cluster.

numba would by default compile for the very CPU at hand and miss its cache on any other. It takes its settings from the environment when it
is imported; where somebody else has imported it before, they are set behind its back, which counts until it compiles for the first time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

os.environ.setdefault("NUMBA_CPU_NAME", "generic")
os.environ.setdefault("NUMBA_CPU_FEATURES", "")

import numpy as np
import numpy.typing as npt
from numba import config, njit
from numba import types as numba_types
from numba.extending import intrinsic as numba_intrinsic

types: Any = numba_types
for _name in ("CPU_NAME", "CPU_FEATURES"):
    setattr(config, _name, os.environ[f"NUMBA_{_name}"])
Bytes = npt.NDArray[np.uint8]
Int32s = npt.NDArray[np.int32]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
_F = TypeVar("_F", bound=Callable[..., Any])


def intrinsic(function: Callable[..., Any]) -> Any:
    """For functions that give instructions to the compiler."""
    return numba_intrinsic(function)


def compiled(function: _F) -> _F:
    return cast(_F, njit(nogil=True)(function))


def compiled_and_kept(function: _F) -> _F:
    """For an outermost function only: it has the others inside, so that one file of machine code is all there is to load."""
    return cast(_F, njit(nogil=True, cache=True)(function))
