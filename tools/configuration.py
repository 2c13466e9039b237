"""Write docs/configuration.md from the models of writetime.config: `python -m tools.configuration`; with
`--check` only check that it is up to date (exit code 1 if not).

Strategy: every model is a section of the page, with one line per key: its name in the YAML, type, default,
and the description from the model.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, SecretStr
from pydantic.fields import FieldInfo

from writetime.config.pipeline import PipelineConfig

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
_HEAD = """# Configuration

One YAML describes a pipeline; shipper, jobs and DAGs all read it. Unknown keys are refused, and `writetime config check FILE` says
which key is wrong and why: it also makes the clients of Kafka and of a registry, without a connection. A key that is given twice is
refused. Words without quotes are read as in YAML 1.2: `no` and `010` are texts. `${NAME}` in any text is replaced from the
environment: secrets belong there; other forms (`${env:NAME}`, `${NAME:-default}`, `$NAME` as a secret) are refused. Relative paths are
meant from the file's folder.
[pipeline.example.yaml](pipeline.example.yaml) is one to begin with.

This page is made from the models in `writetime/config/` by `python -m tools.configuration`.
"""
_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path", SecretStr: "secret text", ByteSize: "size"}


def page() -> str:
    """The generated page."""
    parts = [_HEAD]
    for path, model in _parts(PipelineConfig, ""):
        about = "" if model.__doc__ is None else " ".join(inspect.cleandoc(model.__doc__).split())
        parts.append(f"## {f'`{path}`' if path else 'The file'}\n\n{about}\n\n| key | type | default | meaning |\n|---|---|---|---|")
        parts[-1] += "".join(f"\n| `{name}` | {kind} | {default} | {meaning} |" for name, kind, default, meaning in _lines(model))
        parts[-1] += "\n"
    return "\n".join(parts)


def main(arguments: list[str]) -> int:
    found = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if "--check" in arguments:
        return int(found != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


def _parts(model: type[BaseModel], path: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """The model and its nested models, by their path in the YAML."""
    # Forward references to models further down in a file are resolved only now.
    model.model_rebuild(force=True)
    yield path, model
    for name, field in model.model_fields.items():
        inner = _model(field.annotation)
        if inner is not None:
            yield from _parts(inner, f"{path}.{field.alias or name}".lstrip("."))


def _model(kind: Any) -> type[BaseModel] | None:
    """The model in a field's type, which may also allow None."""
    for each in (kind, *get_args(kind)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _lines(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        inner = _model(field.annotation)
        key = field.alias or name
        kind = "see below" if inner else _escaped(_kind(field.annotation))
        meaning = field.description or ("" if inner is None or inner.__doc__ is None else inspect.cleandoc(inner.__doc__).split(". ")[0])
        yield key, kind, _default(field, inner), _escaped(_limited(" ".join(meaning.split()), field))


def _kind(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join("null" if each is type(None) else _kind(each) for each in arguments)
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in arguments)
    if origin is list:
        return f"list of {_kind(arguments[0])}"
    if origin is dict:
        return f"mapping to {_kind(arguments[1])}"
    return _NAMES.get(kind, getattr(kind, "__name__", str(kind)))


def _default(field: FieldInfo, inner: type[BaseModel] | None) -> str:
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True)
    if inner is not None:
        return "absent" if default is None else "as below"
    if default is None:
        return "null"
    return f"`{str(default).lower() if isinstance(default, bool) else int(default) if isinstance(default, ByteSize) else default}`"


def _limited(meaning: str, field: FieldInfo) -> str:
    """The meaning, with the limits of a number."""
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = [f"{words[name]} {getattr(each, name)}" for each in field.metadata for name in words if getattr(each, name, None) is not None]
    return f"{meaning} ({', '.join(limits)})" if limits else meaning


def _escaped(text: str) -> str:
    """Escape a table cell: bars, and angle brackets outside of code."""
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace(">", "&gt;") for part in re.split(r"(`[^`]*`)", text)
    ).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
