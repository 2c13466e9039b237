"""Which ids of a schema registry records of topics have: `published/<cluster>.schemas.json`.

Strategy: a record of Kafka names the schema that it was written with by a number, and only the registry says what that
number means. A registry that was lost gives the same numbers to other schemas, and records of before become unreadable, or
are read as something else. So publishing notes each id, with its schema, before it sends a record that has it: the registry
can be checked against that, and filled again from it. Must not know how a registry is asked."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from writetime.pipeline.documents import Document
from writetime.storage import layout
from writetime.storage.store import Store


class UsedSchema(Document):
    """The `text` of a schema, and the subjects that it was registered under."""

    text: str
    subjects: list[str]


class UsedSchemas(Document):
    """By id."""

    ids: dict[int, UsedSchema] = Field(default_factory=dict)

    def of(self, topics: set[str]) -> dict[int, UsedSchema]:
        """Those of keys and values of these topics."""
        wanted = {f"{topic}-{part}" for topic in topics for part in ("key", "value")}
        return {number: used for number, used in sorted(self.ids.items()) if wanted & set(used.subjects)}

    def and_(self, others: Mapping[int, UsedSchema]) -> UsedSchemas:
        """With others, whose subjects are added to those of the same schema."""
        found = dict(self.ids)
        for number, each in others.items():
            before = found.get(number)
            subjects = before.subjects if before is not None and before.text == each.text else []
            found[number] = UsedSchema(text=each.text, subjects=sorted({*each.subjects, *subjects}))
        return UsedSchemas(ids=found)


def read_used(store: Store, cluster: str) -> UsedSchemas:
    return UsedSchemas.read(store, layout.used_schemas(cluster)) or UsedSchemas()


def note_used(store: Store, cluster: str, found: Mapping[int, UsedSchema]) -> None:
    """Note these, beside those that are noted."""

    def change(before: UsedSchemas | None) -> UsedSchemas | None:
        after = (before or UsedSchemas()).and_(found)
        return None if after == before else after

    if found:
        UsedSchemas.update(store, layout.used_schemas(cluster), change)
