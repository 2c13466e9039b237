"""Arguments of compiled code are there as long as it runs."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from writetime.kernels.pointers import call


def test_what_only_the_arguments_hold_lives_as_long_as_the_call() -> None:
    held: list[weakref.ref[Any]] = []

    def array() -> Any:
        made = np.arange(3)
        held.append(weakref.ref(made))
        return made

    def run(words: Any) -> None:
        assert [each() is not None for each in held] == [True, True]
        assert words[0] == held[0]().__array_interface__["data"][0]
        assert words[1] == 5

    call(run, (array(), 5, (array(),)))
    assert [each() for each in held] == [None, None]
