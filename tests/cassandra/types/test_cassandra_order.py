"""Order and equality of values against Cassandra's own comparators, in all their spellings."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from proof.decoder.judge import VERSION
from proof.harness.classpath import classpath
from proof.harness.node import access
from tests.cassandra.types.test_byte_comparable import RAW
from tests.cassandra.types.test_canonical import SPELLINGS, spell
from tests.cassandra.types.typed import kind_of
from tools.java import java
from writetime.cassandra.types.byte_comparable import encoder
from writetime.cassandra.types.compound import CollectionType, CustomType, TupleType, UdtType, VectorType
from writetime.cassandra.types.marshal import NATIVE_CLASSES, ReversedType
from writetime.cassandra.types.native import CqlType

SIGNS = ("-1", "0", "1")
CLASSES = {cql: name for name, cql in NATIVE_CLASSES.items()}


def class_of(kind: CqlType) -> str:
    """The class of a frozen type with its parameters, as Cassandra writes it."""
    if isinstance(kind, CustomType | ReversedType):
        return kind.java_class
    if isinstance(kind, VectorType):
        return f"VectorType({class_of(kind.element)} , {kind.dimension})"
    if isinstance(kind, CollectionType):
        return f"FrozenType({kind.kind.capitalize()}Type({','.join(map(class_of, kind.elements))}))"
    if isinstance(kind, TupleType):
        return f"TupleType({','.join(map(class_of, kind.fields))})"
    if isinstance(kind, UdtType):
        fields = ",".join(f"{name.encode().hex()}:{class_of(field)}" for name, field in kind.known_fields.items())
        return f"FrozenType(UserType({kind.keyspace},{kind.name.encode().hex()},{fields}))"
    return CLASSES[str(kind)]


def signs(asked: list[tuple[str, bytes, bytes]]) -> list[str]:
    """How Cassandra orders the pairs: -1, 0 or 1, or the exception that it throws."""
    jars = os.pathsep.join(map(str, classpath(VERSION)))
    lines = "".join(f"{kind}\t{one.hex()}\t{other.hex()}\n" for kind, one, other in asked)
    command = [java(), *access(), "-cp", jars, str(Path(__file__).with_name("Order.java"))]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    # Cassandra logs there, too.
    return [line[2:] for line in done.stdout.splitlines() if line.startswith("= ")]


@pytest.mark.cassandra
def test_values_are_equal_exactly_if_cassandra_says_so() -> None:
    values = {text: [data for spellings in SPELLINGS[text] for data in spellings] for text in SPELLINGS}
    for text, more in RAW.items():
        values[text] = list(dict.fromkeys([*values.get(text, []), *more]))
    pairs = [(text, one, other) for text in values for one in values[text] for other in values[text]]
    found = signs([(class_of(kind_of(text)), one, other) for text, one, other in pairs])
    # It has no order for lists with nulls.
    assert {text for (text, _, _), sign in zip(pairs, found, strict=True) if sign not in SIGNS} <= {"frozen<list<int>>"}
    for (text, one, other), sign in zip(pairs, found, strict=True):
        if sign not in SIGNS:
            continue
        kind = kind_of(text)
        left, right = encoder(kind)(one), encoder(kind)(other)
        assert str((left > right) - (left < right)) == sign, (text, one, other)
        assert (spell(kind, one) == spell(kind, other)) == (sign == "0"), (text, one, other)
