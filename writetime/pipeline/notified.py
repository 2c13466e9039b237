"""What people were notified of, while it lasts: each occurrence is notified once, and again if it comes again.

Recorded in the bucket once a notice was sent. Airflow has no order of runs with and without a logical date in which what an
earlier run has sent could be found, and a notifier may fail. Knows neither Airflow nor what is notified."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from writetime.pipeline.documents import Document
from writetime.storage.store import Store


class Notified(Document):
    """`waiting`: what waits for people, by name, with a number that differs between two occurrences of a name."""

    waiting: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def still(cls, store: Store, name: str, found: Mapping[str, int]) -> set[str]:
        """The names in `found` of which people were notified. `name`: of the object. What is over is forgotten."""

        def change(before: Notified | None) -> Notified | None:
            lasting = {each: number for each, number in before.waiting.items() if found.get(each) == number} if before else {}
            return None if before is None or lasting == before.waiting else Notified(waiting=lasting)

        known = cls.update(store, name, change)
        return set(known.waiting if known else ())

    @classmethod
    def record(cls, store: Store, name: str, found: Mapping[str, int]) -> None:
        """People were notified of these, too."""
        cls.update(store, name, lambda before: cls(waiting={**(before.waiting if before else {}), **found}))
