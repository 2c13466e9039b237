"""Google Cloud Storage with accounts that have the grants of deploy/rights/gcs and nothing more: a proxy for
each account before a test server.

What each method of the JSON API asks for is Google's table "IAM permissions for JSON methods"
(https://cloud.google.com/storage/docs/access-control/iam-json), of the methods on objects:

    delete     storage.objects.delete
    get        storage.objects.get
    insert     storage.objects.create, and storage.objects.delete where an object is overwritten
    list       storage.objects.list
    patch      storage.objects.get, storage.objects.update
    rewrite    storage.objects.get of the source, storage.objects.create of the target, and storage.objects.delete where an
               object is overwritten
    update     storage.objects.update

A grant on a managed folder holds for all objects whose names begin with the folder's. An upload in several
requests is asked for its rights when it begins: what goes on with it needs none but the upload's id.

Google's pages leave two things open. Whether the right to overwrite is looked at before `ifGenerationMatch=0`
is: both are tried (`rights_first`). And what is said of a missing object to whom may not list: here, that it
is forbidden.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from tests.rights.forward import Answer, Request, forwarding, send
from tools import rights
from writetime.storage.layout import NodeName, part

_OBJECTS = r"(?:/(?:upload|download))?/storage/v1/b/([^/]+)/o"
_REWRITE = re.compile(r"/storage/v1/b/[^/]+/o/(?P<source>.+)/rewriteTo/b/[^/]+/o/(?P<target>.+)")
_ONE = re.compile(rf"{_OBJECTS}/(?P<name>.+)")
_ALL = re.compile(_OBJECTS)
_OF_ONE = {"GET": ["get"], "DELETE": ["delete"], "PATCH": ["get", "update"], "PUT": ["update"]}

Needed = tuple[str, str]
"""A permission without `storage.objects.`, and the object; of `list` the prefix."""


@dataclass
class Account:
    """What an account may, and the guard before its requests. `grants` are folders and permissions."""

    upstream: str
    bucket: str
    grants: list[tuple[str, frozenset[str]]]
    rights_first: bool = False
    url: str = ""
    refused: list[Needed] = field(default_factory=list)

    def ask(self, request: Request) -> Answer | None:
        """Refuse what the account has no right to."""
        for permission, name in self._needed(request):
            if not self.may(permission, name):
                self.refused.append((permission, name))
                return _forbidden(f"does not have storage.objects.{permission} access to {name!r}")
        return None

    def amend(self, request: Request, answer: Answer) -> Answer:
        """Uploads go on by way of the proxy; who may not list does not learn what is missing."""
        if "location" in answer.headers:
            answer.headers["location"] = answer.headers["location"].replace(self.upstream, self.url)
        found = _ONE.fullmatch(request.path)
        if answer.status == 404 and request.method == "GET" and found and not self.may("list", found["name"]):
            return _forbidden(f"does not have storage.objects.list access to {found['name']!r} (or it may not exist)")
        return answer

    def may(self, permission: str, name: str) -> bool:
        return any(name.startswith(folder) and f"storage.objects.{permission}" in permissions for folder, permissions in self.grants)

    def _needed(self, request: Request) -> Iterator[Needed]:
        if _is_continued(request):
            return
        if match := _REWRITE.fullmatch(request.path):
            yield "get", match["source"]
            yield from self._creation(match["target"], request)
        elif match := _ONE.fullmatch(request.path):
            yield from ((permission, match["name"]) for permission in _OF_ONE[request.method])
        elif _ALL.fullmatch(request.path) and request.method == "POST":
            yield from self._creation(_uploaded(request), request)
        elif _ALL.fullmatch(request.path) and request.method == "GET":
            yield "list", request.query.get("prefix", "")
        else:
            yield "nothing of that kind", request.path

    def _creation(self, name: str, request: Request) -> Iterator[Needed]:
        yield "create", name
        create_only = request.query.get("ifGenerationMatch") == "0"
        if not (create_only and not self.rights_first) and self._is_there(name):
            yield "delete", name

    def _is_there(self, name: str) -> bool:
        return (
            send(
                self.upstream,
                Request("GET", f"/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}", {}, b""),
            ).status
            == 200
        )


def grants(role: str, node: NodeName | None, cluster: str, without: str | None) -> list[tuple[str, frozenset[str]]]:
    """Folders and permissions of a role by the files. `without` leaves out one right, as `operation` or
    `operation:folder`."""
    text = (rights.FOLDER / "gcs" / "grants.json").read_text(encoding="utf-8")
    text = text.replace(rights.CLUSTER, part(cluster))
    if node is not None:
        text = text.replace(rights.OF_PLACEHOLDERS, f"{part(node.datacenter)}/{part(node.host_id)}")
    found = [(grant["folder"], _permissions(grant["role"])) for grant in json.loads(text)[role]]
    return found if without is None else _lacking(found, without)


def _lacking(found: list[tuple[str, frozenset[str]]], without: str) -> list[tuple[str, frozenset[str]]]:
    operation, _, folder = without.partition(":")
    gone = frozenset(rights.GCS_PERMISSIONS[operation])
    left = [(place, may - gone if place.startswith(f"{folder}/" if folder else "") else may) for place, may in found]
    assert left != found, f"{without} is no right of the role"
    return left


def _permissions(role: str) -> frozenset[str]:
    document: dict[str, Any] = json.loads((rights.FOLDER / "gcs" / f"{role}.json").read_text(encoding="utf-8"))
    return frozenset(document["includedPermissions"])


def _is_continued(request: Request) -> bool:
    """Whether it belongs to an upload that has begun."""
    return request.method == "PUT" and request.path.startswith("/upload/")


def _uploaded(request: Request) -> str:
    """The name of the object that an upload is to make: in the query, or in the JSON with which the body
    begins."""
    if "name" in request.query:
        return request.query["name"]
    body = request.body.decode("latin-1")
    return str(json.JSONDecoder().raw_decode(body, body.index("{"))[0]["name"])


def _forbidden(why: str) -> Answer:
    document = {"error": {"code": 403, "message": f"the account {why}", "errors": [{"reason": "forbidden"}]}}
    return Answer(403, json.dumps(document).encode(), {"content-type": "application/json"})


@contextlib.contextmanager
def account(upstream: str, bucket: str, may: list[tuple[str, frozenset[str]]], *, rights_first: bool = False) -> Iterator[Account]:
    """An account's own way to the server: its `url` is what STORAGE_EMULATOR_HOST is to be."""
    assert urlsplit(upstream).path == ""
    made = Account(upstream, bucket, may, rights_first)
    with forwarding(upstream, made) as made.url:
        yield made
