"""How this package compiles: numba, without the GIL, for a plain CPU of its kind, so that one cache serves all machines of a cluster.

numba would by default compile for the very CPU at hand and miss its cache on any other. It takes its settings from the environment when it
is imported; where somebody else has imported it before, they are set behind its back, which counts until it compiles for the first time.

The cache holds machine code of whatever went into an outermost function, but numba asks only whether the file of that one has changed. What
runs on pointers must not be older than those who call it: so its stamp covers the sources of all that goes in (`SOURCES`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

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

SOURCES: Final = (
    *(f"kernels/{name}.py" for name in ("mutation_kernel", "compiled", "crc", "segment_walk", "pointers")),
    *(f"cassandra/commitlog/{name}.py" for name in ("frames", "mutation", "sections", "segment")),
    "cassandra/types/vint.py",
    "cassandra/model.py",
)
"""What compiled functions are made of, their constants included, by its place in the package."""


def intrinsic(function: Callable[..., Any]) -> Any:
    """For functions that give instructions to the compiler."""
    return numba_intrinsic(function)


def compiled(function: _F) -> _F:
    return cast(_F, njit(nogil=True)(function))


def compiled_and_kept(function: _F, *, further: Sequence[str] = ()) -> _F:
    """For an outermost function only: it has the others inside, so that one file of machine code is all there is to load. What it is made
    of beyond `SOURCES` is named in `further`.

    Where no folder can be written to, as for a user without a home, each process compiles for itself.
    """
    try:
        kept: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return compiled(function)
    file = kept._cache._cache_file
    file._source_stamp = (file._source_stamp, sources_digest(), *((digest(further),) if further else ()))
    return cast(_F, kept)


def sources_digest() -> str:
    """Changes with any of `SOURCES`."""
    return digest(SOURCES)


def digest(sources: Sequence[str]) -> str:
    """Of the contents of sources, by their places in the package."""
    package = Path(__file__).parents[1]
    # The loader knows its way into a zip file, too.
    loader: Any = __spec__.loader
    return hashlib.sha256(b"\0".join(loader.get_data(str(package / name)) for name in sources)).hexdigest()
