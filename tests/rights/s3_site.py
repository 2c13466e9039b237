"""S3 with accounts that have the policies of deploy/rights/s3, and nothing more: versitygw, its IAM service,
and a proxy before them.

The gateway evaluates the policies. What it does not know of a request, the proxy writes into header fields
that the gateway does know as condition keys, and that no signature covers: `s3:if-none-match` travels as
`aws:Referer`, `s3:ObjectCreationOperation` as `aws:UserAgent`. The gateway does not replace policy variables
of tags either: the account's own values stand in their place. As Amazon does, the proxy answers 403 for an
object that is not there to whom may not list.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config

from tests import s3_server
from tests.rights.forward import Answer, Request, forwarding
from tools import rights
from tools.services import ports
from writetime.storage.layout import NodeName, part

BUCKET = "bucket"
_AS_GATEWAY_KNOWS = {"s3:if-none-match": "aws:Referer", "s3:ObjectCreationOperation": "aws:UserAgent"}
_MAKES_NO_OBJECT = ("uploads", "partNumber")
_READY_SECONDS = 30.0


@dataclass(frozen=True)
class Key:
    """An access key of an account."""

    access: str
    secret: str


@dataclass
class Site:
    """The bucket `BUCKET` behind the proxy at `url`. `root` may do everything."""

    url: str
    iam: Any
    root: Key
    lists: set[str] = field(default_factory=set)
    """Access keys whose accounts may list."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Of each request: access key, what it asks for, object ("" of the bucket)."""
    numbers: int = 0

    def account(self, role: str, node: NodeName | None = None, *, cluster: str = "", without: str | None = None) -> Key:
        """An account with the role's policy. `without` leaves out one right, as `operation` or
        `operation:folder`."""
        self.numbers += 1
        name = f"{role}-{self.numbers}"
        tags = {"datacenter": part(node.datacenter), "host_id": part(node.host_id)} if node else {}
        self.iam.create_user(UserName=name, Tags=[{"Key": key, "Value": value} for key, value in tags.items()])
        text = (rights.FOLDER / "s3" / f"{role}.json").read_text(encoding="utf-8")
        policy = fitted(text, part(node.cluster if node else cluster), tags)
        reduced = policy if without is None else lacking(policy, without)
        self.iam.put_user_policy(UserName=name, PolicyName="rights", PolicyDocument=json.dumps(reduced, separators=(",", ":")))
        made = self.iam.create_access_key(UserName=name)["AccessKey"]
        key = Key(made["AccessKeyId"], made["SecretAccessKey"])
        if any("s3:ListBucket" in statement["Action"] for statement in reduced["Statement"]):
            self.lists.add(key.access)
        return key

    # --- the proxy's part

    def ask(self, request: Request) -> Answer | None:
        """Note the request, and say of it what policies ask for."""
        access = _access(request)
        self.asked.append((access, _operation(request), request.path.partition(f"/{BUCKET}/")[2]))
        request.headers.pop("referer", None)
        if (condition := request.headers.get("if-none-match")) is not None and request.method in (
            "PUT",
            "POST",
        ):
            request.headers["referer"] = condition
        makes = request.method in ("PUT", "POST") and not any(key in request.query for key in _MAKES_NO_OBJECT)
        request.headers["user-agent"] = str(makes).lower()
        return None

    def amend(self, request: Request, answer: Answer) -> Answer:
        """Who may not list does not learn what is missing."""
        missing = answer.status == 404 and request.method in ("GET", "HEAD") and b"NoSuchBucket" not in answer.body
        if missing and _access(request) not in self.lists | {self.root.access}:
            body = b"" if request.method == "HEAD" else b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            return Answer(403, body, {"content-type": "application/xml"})
        return answer


def fitted(text: str, cluster: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """A policy as the gateway can evaluate it: placeholders and tags replaced, and condition keys that it
    knows."""
    text = text.replace(rights.BUCKET, BUCKET).replace(rights.CLUSTER, cluster)
    for name, value in tags.items():
        text = text.replace(f"${{aws:PrincipalTag/{name}}}", value)
    for key, known in _AS_GATEWAY_KNOWS.items():
        text = text.replace(f'"{key}"', f'"{known}"')
    policy: dict[str, Any] = json.loads(text)
    return policy


def lacking(policy: dict[str, Any], without: str) -> dict[str, Any]:
    """The policy without one right: `list`, `read`, `write:batches`…"""
    operation, _, folder = without.partition(":")
    name = "Look" if operation == "read" else operation.capitalize()
    statements = []
    for statement in policy["Statement"]:
        if statement["Sid"] != name:
            statements.append(statement)
        elif folder:
            left = [place for place in statement["Resource"] if f"{BUCKET}/{folder}/" not in place]
            assert len(left) == len(statement["Resource"]) - 1, f"{without} is no right of the role"
            statements.append({**statement, "Resource": left})
    assert statements != policy["Statement"], f"{without} is no right of the role"
    return {**policy, "Statement": statements}


def _access(request: Request) -> str:
    match = re.search(r"Credential=([^/]+)/", request.headers.get("authorization", ""))
    return match[1] if match else ""


def _operation(request: Request) -> str:
    if request.path.strip("/") == BUCKET:
        return "list" if "list-type" in request.query else "bucket"
    return {"GET": "read", "HEAD": "read", "PUT": "write", "POST": "write", "DELETE": "delete"}[request.method]


@contextlib.contextmanager
def running(binary: Path, folder: Path) -> Iterator[Site]:
    """Start the servers over `folder`, with one empty bucket."""
    (folder / "iam").mkdir()
    root = Key("tester", "nobody-minds")
    port = ports.any_free()
    # A socket's path has a limit that a test's folder may be beyond.
    with tempfile.TemporaryDirectory() as short, _iam(binary, folder, port, Path(short) / "iam", root):
        options = ("--iam-standalone-endpoint", str(Path(short) / "iam"), "--iam-cache-disable")
        with s3_server.running(binary, folder, *options) as server:
            server.make_bucket(BUCKET)
            session = botocore.session.get_session()
            config = Config(retries={"total_max_attempts": 1})
            endpoint = {"endpoint_url": f"http://127.0.0.1:{port}", "region_name": "us-east-1"}
            iam = session.create_client(
                "iam",
                **endpoint,
                aws_access_key_id=root.access,
                aws_secret_access_key=root.secret,
                config=config,
            )
            site = Site("", iam, root)
            with forwarding(server.url, site) as site.url:
                yield site


@contextlib.contextmanager
def _iam(binary: Path, folder: Path, port: int, private: Path, root: Key) -> Iterator[None]:
    environment = os.environ | {"ROOT_ACCESS_KEY": root.access, "ROOT_SECRET_KEY": root.secret}
    command = [
        str(binary),
        "--port",
        f"127.0.0.1:{port}",
        "--quiet",
        "iam",
        "--dir",
        str(folder / "iam"),
        "--private-ports",
        str(private),
    ]
    log = folder / "iam.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
    try:
        deadline = time.monotonic() + _READY_SECONDS
        while not (private.exists() and _answers(port)):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"versitygw's IAM service is not ready: {log.read_text()}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
