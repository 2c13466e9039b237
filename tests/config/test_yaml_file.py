"""A YAML as it is written: nothing is dropped, and no word is taken for something else."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from writetime.config.pipeline import load
from writetime.config.yaml_file import Refused, Unquoted, read
from writetime.errors import ConfigError


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("010", "010"),
        ("0x1F", "0x1F"),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("1:30:00.5", "1:30:00.5"),
        ("no", "no"),
        ("On", "On"),
        ("YES", "YES"),
        ("off", "off"),
        ("2026-02-30", "2026-02-30"),
        ("2026-02-28", "2026-02-28"),
        ("2026-02-28 10:00:00", "2026-02-28 10:00:00"),
        ("=", "="),
        (".inf", ".inf"),
        (".NaN", ".NaN"),
    ],
)
def test_what_yaml_1_1_takes_for_something_else_is_a_text(word: str, value: str) -> None:
    found = read(f"a: {word}\nb: [{word}]\n").values
    assert found == {"a": value, "b": [value]}
    assert isinstance(found["a"], Unquoted)
    # In quotes there is no doubt.
    assert type(read(f"a: '{word}'\n").values["a"]) is str
    assert read(f"{word}: 7\n").values == {word: 7}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("0", 0),
        ("-7", -7),
        ("10", 10),
        ("0.5", 0.5),
        ("5.", 5.0),
    ],
)
def test_what_both_versions_agree_on(word: str, value: Any) -> None:
    (found,) = read(f"a: {word}\n").values.values()
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", r"`a` is given twice, on lines 1 and 3"),
        ("a: 1\n'a': 3\n", r"`a` is given twice, on lines 1 and 2"),
        ("a:\n  b:\n    c: 1\n    d: 2\n    c: 1\n", r"`a\.b\.c` is given twice, on lines 3 and 5"),
        ("a:\n- b: 1\n- b: 1\n  b: 2\n", r"`a\[1\]\.b` is given twice, on lines 3 and 4"),
        ("a: {8: x, '8': y}\n", r"`a\.8` is given twice, on line 1"),
        ("x: &x\n  b: 1\na:\n  <<: *x\n  b: 2\n", r"`a\.b` is given twice, on lines 2 and 5"),
        ("x: &x {b: 1}\ny: &y {b: 1}\na: {<<: [*x, *y]}\n", r"`a\.b` is given twice, on lines 1 and 2"),
        ("x: &x {b: 1}\na:\n  <<: *x\n  <<: *x\n", r"`a\.b` is given twice"),
        ("a: {<<: 7}\n", r"`a\.<<` on line 1 merges what is no mapping"),
        ("a: &a {b: *a}\n", r"alias on line 1 contains itself"),
        ("a: !!binary AAAA\n", r"`a` on line 1 has a tag"),
        ("a: !own x\n", r"`a` on line 1 has a tag"),
        ("a: !!set {b}\n", r"`a` on line 1 has a tag"),
        ("a: {[b]: c}\n", r"a key of `a` on line 1 is a list"),
        ("~: c\n", r"a key of `the file` on line 1 is empty"),
        ("a: " + "[" * 150 + "]" * 150, r"nested too deeply on line 1"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{n}: &{n} [{', '.join([f'*{o}'] * 10)}]\n" for o, n in zip("abcde", "bcdef", strict=True)),
            "more than 100000",
        ),
    ],
)
def test_what_would_be_lost_or_cannot_be_read_is_refused(text: str, said: str) -> None:
    with pytest.raises(Refused, match=said):
        read(text)


def test_merges_and_aliases_that_lose_nothing_are_read() -> None:
    found = read("x: &x {b: 1}\na: {<<: *x, c: 2}\nd: *x\n")
    assert found.values == {"x": {"b": 1}, "a": {"b": 1, "c": 2}, "d": {"b": 1}}
    assert found.line(("a", "c")) == 2
    assert found.line(("a", "unknown", "key")) == 2
    assert found.line(("unknown",)) is None


# PyYAML writes line breaks of Unicode as they are, in quotes in which it then reads them as spaces.
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x85\u2028\u2029"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_yaml_writes_is_read_as_it_was(document: dict[str, Any]) -> None:
    """Texts that would be something else are written in quotes."""
    text = yaml.safe_dump(document, allow_unicode=True)
    if "? " not in text:  # a key that is long or has line breaks
        assert read(text).values == document


SECRETS = {
    "a colon": "password: hunter2: x\n",
    "an open quote": 'password: "hunter2\n',
    "a reserved character": "password: @hunter2\n",
    "an alias": "password: *hunter2\n",
    "an anchor": "password: &hunter2 *hunter2\n",
    "a tag": "password: !hunter2 x\n",
    "a tab": "\tpassword: hunter2\n",
    "a control character": "password: hunter2\x01\n",
    "an open list": "password: [hunter2\n",
}


@pytest.mark.parametrize("line", SECRETS.values(), ids=SECRETS.keys())
def test_no_line_of_a_file_is_in_its_error(tmp_path: Path, line: str) -> None:
    """Errors of YAMLs are logged, and shown in Airflow; the line that is wrong may hold a password."""
    path = tmp_path / "orders.yaml"
    path.write_text(f"pipeline: orders\n{line}", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"orders\.yaml: .*(line \d|control character)") as error:
        load(path)
    assert "hunter2" not in "".join(traceback.format_exception(error.value))
