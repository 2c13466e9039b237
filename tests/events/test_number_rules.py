"""Rules of numbers: what they apply to, and which values fit; no Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from spark_jobs.stages.number_columns import NumberTooLong, as_digits
from tests.examples import examples
from tests.spark_jobs.examples import table
from writetime.config.warehouse import WarehouseConfig
from writetime.events.number_rules import Digits

COLUMNS = {"id": "decimal", "line": "varint", "amount": "decimal", "total": "static varint", "name": "text", "all": "list<decimal>"}
PRICES = table("prices", 1, COLUMNS, clustering=1)


def rules(**given: Any) -> WarehouseConfig:
    return WarehouseConfig.model_validate(given)


def test_the_first_rule_that_matches_decides_and_keys_stay_text() -> None:
    config = rules(decimal={"shop.prices.a*": "decimal(12, 2)", "*.*.*": "decimal(38, 10)"}, varint={"shop.*.*": "DECIMAL(20)"})
    assert config.numbers.of(PRICES) == {"amount": Digits(12, 2), "total": Digits(20, 0)}
    assert config.numbers.rejection_reason(PRICES) is None
    assert rules(decimal={"shop.prices.*": "text", "*.*.*": "decimal(9, 2)"}).numbers.of(PRICES) == {}
    assert rules().numbers.of(PRICES) == {}


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"decimal": {"shop.prices.id": "decimal(9, 2)"}}, "id is part of the primary key"),
        ({"decimal": {"*.prices.total": "decimal(9, 2)"}}, "`warehouse.decimal`: total is varint"),
        ({"varint": {"shop.*.name": "decimal(9)"}}, "`warehouse.varint`: name is text"),
    ],
)
def test_a_rule_that_names_a_column_which_it_does_not_fit_is_rejected_with_the_table(config: dict[str, Any], why: str) -> None:
    assert why in str(rules(**config).numbers.rejection_reason(PRICES))


@pytest.mark.parametrize(
    "config",
    [
        {"decimal": {"a.b.c": "decimal(39, 2)"}},
        {"decimal": {"a.b.c": "decimal(5, 6)"}},
        {"varint": {"a.b.c": "decimal(0)"}},
        {"decimal": {"a.b.c": "double"}},
        {"decimal": {"a.b": "decimal(5, 2)"}},
    ],
)
def test_rules_that_cannot_be_had(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        rules(**config)


FITS = {
    "1.5": "1.50",
    "1.500000": "1.50",
    "-1E+3": "-1000.00",
    "15E-1": "1.50",
    "0E-2147483648": "0.00",
    "0E+400": "0.00",
    "0" * 5000 + "1": "1.00",
    "1." + "0" * 5000: "1.00",
    "-9999.99": "-9999.99",
    "": None,
}
TOO_LONG = {
    "1.505": "1 digits before the point and 3 after",
    "10000": "5 digits before the point and 0 after",
    "1E+2147483647": "2147483648 digits before",
    "1E-2147483647": "0 digits before the point and 2147483647 after",
    "1.00000000000000000000000000000000000000000000000000000000001": "1 digits before the point and 59 after",
    "9" * 5000: "5000 digits before the point and 0 after",
}


def test_numbers_are_the_same_with_the_scale() -> None:
    found = as_digits("amount", pa.array([*FITS, None]), pa.decimal128(6, 2))
    assert [None if value is None else str(value) for value in found.to_pylist()] == [*FITS.values(), None]


@settings(max_examples=examples(300))
@given(
    st.lists(st.none() | st.decimals(-(10**22), 10**22, places=4) | st.decimals(allow_nan=False, allow_infinity=False)),
    st.integers(1, 38),
    st.integers(0, 38),
)
def test_arrow_at_once_is_what_python_says_one_by_one(numbers: list[Decimal | None], precision: int, scale: int) -> None:
    digits = Digits(precision, min(scale, precision))
    texts = [None if number is None else str(number) for number in numbers]
    expected = [digits.fitted(text) if text else None for text in texts]
    fitting = [text for text, number in zip(texts, expected, strict=True) if number is not None or not text]
    found = as_digits("amount", pa.array(fitting, pa.string()), pa.decimal128(*digits))
    assert found.to_pylist() == [None if text is None else Decimal(text) for text in fitting]
    for text, number in zip(texts, expected, strict=True):
        alone = pa.array([text], pa.string())
        if number is None and text:
            with pytest.raises(NumberTooLong):
                as_digits("amount", alone, pa.decimal128(*digits))
        else:
            assert as_digits("amount", alone, pa.decimal128(*digits)).to_pylist() == [number]


@pytest.mark.parametrize("text", TOO_LONG, ids=lambda text: text[:8])
def test_a_number_that_does_not_fit_is_rejected_and_never_rounded(text: str) -> None:
    texts = pa.array(["1.50", text])
    with pytest.raises(NumberTooLong, match=rf"column amount is DECIMAL\(6, 2\), and a value needs {TOO_LONG[text]}"):
        as_digits("amount", texts, pa.decimal128(6, 2))
