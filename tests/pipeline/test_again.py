"""What a person is told to run for a table that has lost something."""

from __future__ import annotations

import shlex

import pytest

from writetime.pipeline.again import command


@pytest.mark.parametrize("table", ["shop.orders", "shop.We ird", "shop.a; reboot", "shop.$(id)`id`'"])
def test_names_of_tables_which_any_node_can_write_are_one_word_to_a_shell(table: str) -> None:
    assert shlex.split(command(table, with_events=False)) == ["writetime", "again", table, "--rows"]
    assert shlex.split(command(table)) == ["writetime", "again", table]


def test_a_plain_name_is_as_it_is() -> None:
    assert command("shop.orders") == "writetime again shop.orders"
