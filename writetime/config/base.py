"""The base of all configuration models: unknown keys are refused, values cannot be changed. Also the spellings
that several keys share: those of Debezium, whose properties are texts of any case, and the URLs of stores."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, SecretStr

from writetime.errors import ConfigError, without_secrets
from writetime.storage import address


class Problem(NamedTuple):
    """What is wrong with a value: the key's path in the YAML, and the reason, without a secret's value."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"`{self.key}`: {self.text}"


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def comma_list(value: Any) -> Any:
    """A text as the list of its parts between commas; anything else unchanged. An empty text is a list of an empty
    part, which keys refuse or which matches nothing: it must not mean that there is no list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


_PART_OF_PATTERN: Final = re.compile(r"""\\. | \[\^?\]?(?:\\.|[^]\\])*\] | \{\d*,\d*\} | "(?:[^"]|"")*" | .""", re.DOTALL | re.VERBOSE)
"""An escape, a set of characters, a number of repetitions, a name in quotes, or any other character."""


def pattern_list(text: str) -> list[str]:
    """A text as its regular expressions or names between commas. A comma in a group, a set, a number of repetitions or a
    name in quotes belongs to it. What is empty is left out, unless there is nothing else: see `comma_list`."""
    found, depth = [""], 0
    for part in _PART_OF_PATTERN.findall(text):
        depth += (part == "(") - (part == ")")
        if part == "," and depth <= 0:
            found.append("")
        else:
            found[-1] += part
    return [part.strip() for part in found if part.strip()] or [""]


def _known_store(url: str) -> str:
    try:
        address.parse(url)
    except ConfigError as error:
        raise ValueError(without_secrets(f"`{error.obj}` is refused: {error.message}")) from None
    return url


def is_secret(name: str) -> bool:
    """Whether an option of that name has a value that nobody may see."""
    return _SECRET_NAME.search(name) is not None


LOGIN_IN_URL: Final = r"://[^/@:\s]*:[^\s]+@"
"""How a URL has a password, also in Java's regular expressions."""


def secrets_of(value: object, name: str = "") -> Iterator[str]:
    """The secrets of a configuration: what is declared as one, what is named as one, and texts that have one in a URL."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    elif isinstance(value, str):
        if is_secret(name) or without_secrets(value) != value:
            yield value
    elif isinstance(value, BaseModel):
        for key in type(value).model_fields:
            yield from secrets_of(getattr(value, key), key)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from secrets_of(each, str(key))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from secrets_of(each, name)


def has_control_characters(text: str) -> bool:
    """Whether a password or a token has a line break or the like, as a file's last line leaves one behind. A key in PEM, or a
    document in JSON, has lines."""
    return not text.startswith(("-----BEGIN", "{")) and any(ord(character) < 0x20 for character in text)


def _single_line(secret: SecretStr) -> SecretStr:
    if has_control_characters(secret.get_secret_value()):
        raise ValueError(SINGLE_LINE)
    return secret


SINGLE_LINE: Final = "has a line break or another control character, which no password has; a file's last line break is often left over"
NAMES_OF_SECRETS: Final = (
    r"passw|passphrase|pwd|[._-]pass$|^pass$|secret|token|credential|jaas|private|salt|user[._]info|oauthbearer\.config|oauthbearer\.extensions|kinit\.cmd|"
    r"authorization|cookie|(?:^|\.)headers?\.|webhook|api[._-]?key|signature|connection[._-]string|key\.pem|(access|account|shared|encryption|decryption|sse)[._-]?key(?!-id)"
)
"""What a name has whose value nobody may see, also in Java's regular expressions. A key in PEM is one; the place of a file is not."""
_SECRET_NAME: Final = re.compile(NAMES_OF_SECRETS, re.IGNORECASE)
Secret = Annotated[SecretStr, AfterValidator(_single_line)]
"""A secret of one line."""
LOWER = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
"""Of a choice in lower case: any case is accepted."""
UPPER = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
"""Of a choice in upper case: any case is accepted."""
COMMAS = BeforeValidator(comma_list)
"""Of a list: a text with commas is accepted."""
StoreUrl = Annotated[str, AfterValidator(_known_store)]
"""URL of a store, or a folder."""
