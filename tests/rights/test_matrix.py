"""The table of deploy/rights against what is enforced: each operation of each role in each folder."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.rights.places import Place
from tests.rights.s3_site import Site
from tests.rights.test_shipper import REFUSED
from tools import ROOT, rights
from writetime.errors import StoreError
from writetime.storage import layout
from writetime.storage.layout import NodeName
from writetime.storage.store import Store

ROLES = rights.roles()


def folders() -> list[str]:
    """All that objects of a pipeline lie in, by the page of their names."""
    page = layout.__doc__ or ""
    found = re.findall(r"^    (\w+)/", page, re.MULTILINE) + re.findall(r"^    \{([\w,]+)\}/", page, re.MULTILINE)[0].split(",")
    return sorted(set(found))


def may(role: Mapping[str, Any], operation: str, folder: str, kind: str) -> bool:
    """What the table says."""

    def has(*operations: str) -> bool:
        return any(place in role[each] for each in operations for place in ("*", folder))

    if operation == "list":
        return bool(role["list"])
    if operation == "read":
        return has("read") or (kind == "s3" and has("look", "create", "write"))
    if operation == "create":
        return has("create", "write")
    if operation == "delete":
        return has("delete") or (kind != "s3" and has("write"))
    return has("write")


def attempts(store: Store, there: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each operation on an object, deletion last."""
    yield "list", lambda: list(store.list(there))
    yield "read", lambda: store.read(there)
    yield "create", lambda: store.put(f"{there}-new", b"new", if_generation=0)
    yield "overwrite", lambda: store.put(there, b"there")
    yield "delete", lambda: store.delete(there)


def is_allowed(attempt: Callable[[], object]) -> bool:
    with contextlib.suppress(StoreError):
        attempt()
        return True
    with pytest.raises(StoreError, match=REFUSED):
        attempt()
    return False


@pytest.mark.parametrize("name", ROLES)
def test_what_is_enforced_is_what_the_table_says(place: Place, node: NodeName, name: str) -> None:
    role = ROLES[name]
    root, store = place.root(), place.become(name, node if role["own"] else None, cluster=node.cluster)
    # By name: on S3 a whole listing is followed by looks; here it is to be judged by itself.
    listed: Callable[[str], object] = lambda there: list(store.names(there))  # noqa: E731
    differs = []
    for folder in folders():
        there = f"{folder}/{node.path}/there"
        root.put(there, b"there")
        for operation, attempt in attempts(store, there):
            allowed = is_allowed((lambda: listed(there)) if operation == "list" else attempt)  # noqa: B023
            if allowed != may(role, operation, folder, place.kind):
                differs.append(f"{operation} in {folder}/: {'allowed' if allowed else 'refused'}")
    assert differs == []


def test_the_table_knows_all_folders() -> None:
    known = {place for role in ROLES.values() for operation in rights.OPERATIONS for place in role[operation]} - {"*"}
    assert known <= set(folders())
    assert set(folders()) == {place for role in ROLES.values() for place in (*role["create"], *role["write"])}


def test_the_files_are_the_tables() -> None:
    assert [str(path.relative_to(rights.FOLDER)) for path in rights.stale()] == [], "run: python -m tools.rights"


def test_the_documentation_shows_them() -> None:
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert rights.table() in page, "docs/security.md has another table than tools.rights.table()"
    place, statement = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL))
    shown = json.loads((rights.FOLDER / "s3" / "shipper.json").read_text(encoding="utf-8"))["Statement"]
    assert statement in shown
    assert place in next(each for each in shown if each["Sid"] == "Create")["Resource"]


def test_the_policies_fit_the_services_limits() -> None:
    """6,144 characters of a managed policy, white space not counted (AWS); managed folders fifteen deep
    (Google)."""
    for path in sorted((rights.FOLDER / "s3").glob("*.json")):
        assert len(re.sub(r"\s", "", path.read_text(encoding="utf-8"))) <= 6144, path
    for role in ROLES.values():
        assert all(grant["folder"].count("/") <= 15 for grant in rights.gcs_grants(role))


@pytest.mark.s3
@pytest.mark.parametrize("name", ROLES)
def test_amazons_grammar_takes_the_policies_as_they_are(s3: Site, name: str) -> None:
    """As policies of a role: of a user they may have 2,048 characters in all."""
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    s3.iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}))
    text = (rights.FOLDER / "s3" / f"{name}.json").read_text(encoding="utf-8")
    s3.iam.put_role_policy(RoleName=name, PolicyName="rights", PolicyDocument=text)
    with pytest.raises(Exception, match="MalformedPolicyDocument"):
        s3.iam.put_role_policy(RoleName=name, PolicyName="rights", PolicyDocument=text.replace("Effect", "Affect"))
