"""The configuration page matches the models."""

from __future__ import annotations

from tools import configuration


def test_the_page_is_up_to_date() -> None:
    assert configuration.PAGE.read_text(encoding="utf-8") == configuration.page(), "run `python -m tools.configuration`"


def test_every_part_and_every_key_is_there_with_its_name_in_the_yaml() -> None:
    page = configuration.page()
    for part in ("## `cluster`", "## `cluster.cql.tls`", "## `node.ship`", "## `kafka`"):
        assert part in page
    assert "| `topic.prefix` | text | **required** |" in page
    assert "ForwardRef" not in page
    assert "**********" not in page
