"""Who may write an object when: the table of docs/bucket.md, against what drivers beside each other write."""

from __future__ import annotations

from typing import Any

import pytest

from proof.interleavings.jobs import SteppingStore, installed
from proof.interleavings.scenario import ALL, Stage
from proof.interleavings.schedule import Deviations
from proof.interleavings.writes import RULES, allowed, rows, rules_of


def test_the_table_names_known_rules() -> None:
    assert all(rules <= RULES for _, rules in rows())
    assert rules_of("batches/ring/0000000003/sealed.json") == {"once"}
    assert not allowed(frozenset({"once"}), None)
    assert not allowed(frozenset({"once"}), 7)
    assert not allowed(frozenset({"generation"}), None)
    with pytest.raises(LookupError, match="has no row for unknown/"):
        rules_of("unknown/ring.json")


def test_drivers_write_as_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, set[int | None]] = {}

    def noted(method: str, at: int) -> None:
        real = getattr(SteppingStore, method)

        def write(store: SteppingStore, *names: Any, if_generation: int | None = None, **about: Any) -> Any:
            found.setdefault(names[at], set()).add(if_generation)
            return real(store, *names, if_generation=if_generation, **about)

        monkeypatch.setattr(SteppingStore, method, write)

    noted("put", 0)
    noted("copy", 1)
    with installed() as here:
        stage = Stage(here)
        for scenario in ALL.values():
            stage.play(scenario, Deviations([]))
    assert len({name.partition("/")[0] for name in found}) > 10
    rules = {name: rules_of(name) for name in found}
    wrong = {name: (rules[name], each) for name, generations in found.items() for each in generations if not allowed(rules[name], each)}
    assert wrong == {}
