"""The table of docs/warehouse.md that says what happens if people touch tables, topics, catalog, registry and bucket: each row is
shown by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from tests.test_rooms import parsed

ROOT: Final = Path(__file__).resolve().parent
PAGE: Final = ROOT.parent / "docs" / "warehouse.md"
HEADING: Final = "## By whom else tables and topics are touched"
GROUPS: Final = ("tables", "catalog", "bucket", "topics", "registry")


def rows() -> list[list[str]]:
    (section,) = re.findall(rf"^{HEADING}$(.*?)^## ", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_each_row_says_what_happens_and_names_tests_that_exist() -> None:
    groups = set()
    for what, *others in rows():
        if what.startswith("**"):
            groups.add(what.strip("*"))
            continue
        happens, todo, tests = others
        assert happens, what
        assert todo or happens.startswith("nothing"), what
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", tests)
        assert named, what
        for file, test in named:
            assert (ROOT / file).exists(), f"{what}: {file}"
            assert any(getattr(node, "name", "") == test for node in parsed(ROOT / file).body), f"{what}: {file}::{test}"
    assert groups <= set(GROUPS)
