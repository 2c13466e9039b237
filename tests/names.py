"""Kinds of names that users choose, and what each store makes of them: the table of docs/names.md.

`python -m tests.names` writes the table. Whether a name is refused is asked of `writetime config check`; that all others
are right is what `tests/spark_jobs/test_names.py` shows, on a folder and on the test servers of S3 and GCS."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import yaml

from writetime.config.pipeline import PipelineConfig, load
from writetime.errors import ConfigError

Where = Literal["cluster", "bucket", "prefix", "table"]
BUCKET: Final = "lake"
STORES: Final = ("folder", "S3", "GCS")
BASES: Final = {"folder": "", "S3": "s3://", "GCS": "gs://"}
PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "names.md"
_BEGIN, _END = "<!-- begin of the table -->\n", "<!-- end of the table -->\n"


@dataclass(frozen=True)
class Kind:
    where: Where
    name: str
    says: str


KINDS: Final = (
    Kind("cluster", "prod", "letters, digits, `_`, `-`, inner dots"),
    Kind("cluster", "Test Cluster", "a space; the default of Cassandra"),
    Kind("cluster", " a ", "spaces at its ends"),
    Kind("cluster", "100% sure", "a percent sign"),
    Kind("cluster", "a%20b", "what looks like an escape"),
    Kind("cluster", "a b", "and what that would stand for"),
    Kind("cluster", "team#1", "`#`"),
    Kind("cluster", "what?", "`?`"),
    Kind("cluster", "eu/west", "a slash"),
    Kind("cluster", "a//b", "two slashes"),
    Kind("cluster", "eu\\west", "a backslash"),
    Kind("cluster", "größe 日本", "beyond ASCII"),
    Kind("cluster", "e\u0301", "a letter in two code points"),
    Kind("cluster", "..", "dots only"),
    Kind("cluster", 'it\'s "x" `y`', "quotes"),
    Kind("cluster", "~+&=;:@,$!()*[]{}^<>|", "other signs"),
    Kind("cluster", "a\tb", "a control character"),
    Kind("cluster", "日" * 23, "more than 200 bytes when escaped"),
    Kind("cluster", "prod.replay.test", "the name of another cluster's replay"),
    Kind("cluster", "prod.told", "the name of another cluster's document"),
    Kind("bucket", "lake.eu-1", "dots and `-`"),
    Kind("bucket", "Lake", "capitals"),
    Kind("bucket", "arn:aws:s3:eu-west-1:123456789012:accesspoint/orders", "an ARN"),
    Kind("bucket", "user:password@lake", "an account"),
    Kind("prefix", "two/levels/", "levels, a slash at the end"),
    Kind("prefix", "a b", "a space"),
    Kind("prefix", " a ", "spaces at its ends"),
    Kind("prefix", "100%", "a percent sign"),
    Kind("prefix", "a%20b", "what looks like an escape"),
    Kind("prefix", "team#1/cdc", "`#`"),
    Kind("prefix", "what?/cdc", "`?`"),
    Kind("prefix", "a//b", "two slashes"),
    Kind("prefix", "a/../b", "`..`"),
    Kind("prefix", "eu\\west", "a backslash"),
    Kind("prefix", "größe/日本", "beyond ASCII"),
    Kind("prefix", "e\u0301", "a letter in two code points"),
    Kind("prefix", "a+b&c=d,e:f@g$h!i(j)~'`\"", "other signs"),
    Kind("prefix", "a;b", "a semicolon"),
    Kind("prefix", "[x]{y}*^|<>", "patterns"),
    Kind("prefix", "a\tb", "a control character"),
    Kind("prefix", "x" * 200 + "/" + "y" * 200 + "/" + "z" * 70, "more than 460 bytes"),
    Kind("table", "orders", "letters, digits, `_`"),
    Kind("table", "Orders", "capitals"),
    Kind("table", "A" * 48, "48 capitals"),
    Kind("table", "a.b c", "what Thrift clients made: signs"),
    Kind("table", "größe", "what Thrift clients made: beyond ASCII"),
)


def configured(kind: Kind, store: str, root: str | Path = "/lake") -> PipelineConfig:
    """A pipeline with that name, as jobs read it from YAML: bucket, state and tables at one place."""
    base, cluster = f"{root}/" if store == "folder" else f"{BASES[store]}{BUCKET}/", "prod"
    if kind.where == "bucket":
        place = f"{BASES[store]}{kind.name}/x"
    else:
        cluster, place = (kind.name, f"{base}clusters") if kind.where == "cluster" else (cluster, base + kind.name)
    catalog = {"uri": "jdbc:sqlite:/c.db", "warehouse": place}
    document = {"pipeline": "p", "cluster": {"name": cluster, "datacenters": ["dc1"]}, "bucket": place, "catalog": catalog}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pipeline.yaml"
        path.write_text(yaml.safe_dump(document, allow_unicode=True), encoding="utf-8")
        return load(path)


def refusal(kind: Kind, store: str) -> str | None:
    """Why `writetime config check` refuses it; None if it does not."""
    try:
        configured(kind, store)
    except ConfigError as error:
        return error.message
    return None


def accepted(where: Where, store: str) -> list[Kind]:
    """The kinds that are not refused."""
    return [kind for kind in KINDS if kind.where == where and not refusal(kind, store)]


def table() -> str:
    lines = ["| | such as | | folder | S3 | GCS | Kafka |", "|---|---|---|---|---|---|---|"]
    before = ""
    for kind in KINDS:
        shown = kind.name if len(kind.name) < 60 else f"{kind.name[:8]}…"
        shown = ascii(shown)[1:-1] if "\t" in shown else shown
        shown = shown.replace("|", "\\|")
        quote = "``" if "`" in shown else "`"
        first = kind.where if kind.where != before else ""
        before = kind.where
        cells = [_cell(kind, store) for store in STORES] + ["topics" if kind.where == "table" else "–"]
        space = " " if "`" in shown else ""
        lines.append(f"| {first} | {quote}{space}{shown}{space}{quote} | {kind.says} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(kind: Kind, store: str) -> str:
    if kind.where == "bucket" and store == "folder":
        return "–"
    if kind.where != "table" and refusal(kind, store):
        return "refused"
    return {"cluster": "store, state", "table": "store, tables"}.get(kind.where, "store, state, tables")


def with_table(page: str) -> str:
    before, _, rest = page.partition(_BEGIN)
    return before + _BEGIN + table() + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
