"""The base of all configuration models: unknown keys are refused, values cannot be changed. Also the spellings
that several keys share: those of Debezium, whose properties are texts of any case, and the URLs of stores."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from writetime.storage import is_store, not_a_store


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def comma_list(value: Any) -> Any:
    """A text as the list of its parts between commas; anything else unchanged. An empty text is a list of an empty
    part, which keys refuse or which matches nothing: it must not mean that there is no list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _known_store(url: str) -> str:
    if not is_store(url):
        raise ValueError(not_a_store(url))
    return url


LOWER = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""Of a choice in lower case: any case is accepted."""
UPPER = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
"""Of a choice in upper case: any case is accepted."""
COMMAS = BeforeValidator(comma_list)
"""Of a list: a text with commas is accepted."""
StoreUrl = Annotated[str, AfterValidator(_known_store)]
"""URL of a store, or a folder."""
