"""Compiler settings: numba, without the GIL, for a generic CPU of the architecture, so that one cache serves
all machines.

By default numba compiles for the CPU it runs on, and the cache misses on any other. It reads its settings
from the environment on import; if it was imported earlier, they are set in its configuration, which works
until the first compilation.

The cache has the machine code of an outermost function and everything it calls, but numba only checks whether
the file of that function has changed. Code that works on pointers must match its callers, so the cache stamp
covers all sources that are compiled in (`SOURCES`).
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
"""The sources of compiled functions and their constants, as paths in the package."""


def intrinsic(function: Callable[..., Any]) -> Any:
    """Decorator of functions that emit compiler instructions."""
    return numba_intrinsic(function)


def compiled(function: _F) -> _F:
    return cast(_F, njit(nogil=True)(function))


def compiled_and_kept(function: _F, *, further: Sequence[str] = ()) -> _F:
    """Decorator of outermost functions only: they include all others, so there is one file of machine code to
    load. `further`: their sources in addition to `SOURCES`.

    Without a writable cache folder, for example for a user without a home, each process compiles.
    """
    try:
        kept: Any = njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return compiled(function)
    file = kept._cache._cache_file
    file._source_stamp = (file._source_stamp, sources_digest(), *((digest(further),) if further else ()))
    return cast(_F, kept)


def sources_digest() -> str:
    """The digest of `SOURCES`; changes with any of them."""
    return digest(SOURCES)


def digest(sources: Sequence[str]) -> str:
    """The digest of the contents of sources, given as paths in the package."""
    package = Path(__file__).parents[1]
    # The loader can also read from a zip file.
    loader: Any = __spec__.loader
    return hashlib.sha256(b"\0".join(loader.get_data(str(package / name)) for name in sources)).hexdigest()
