"""Write the files of deploy/rights from its one table, roles.json: `python -m tools.rights`.

    s3/<role>.json         an identity policy of AWS, for the role or user that the machine is attached to
    gcs/<name>.json        a custom role of Google Cloud, as `gcloud iam roles create <name> --file` takes it
    gcs/grants.json        which role is granted on which managed folder ("" is the bucket), role by role of the table

Strategy: a role's row says in which folders (the first part of a name, see `writetime.storage.layout`) it
looks (size, checksum and metadata of objects), reads, creates, writes (creates and replaces) and deletes;
`"*"` is the whole bucket, `own` narrows each folder to what one node ships there. Who lists, lists the
bucket: on S3 only the right to list without a condition lets an account learn that an object is missing.

The services differ in what that takes. On S3 to look is to read, a listing says too little of an object, and
each write is followed by a look. On Google Cloud Storage the answers to listing and writing say all, so
neither needs a further right; but to replace is to delete and to create. Knows no store and asks no service.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from tools import ROOT

FOLDER: Final = ROOT / "deploy" / "rights"
BUCKET: Final = "EXAMPLE-BUCKET"
CLUSTER: Final = "EXAMPLE-CLUSTER"
"""What a person replaces in the files: by names as they stand in the bucket, percent-escaped."""
OF_TAGS: Final = "${aws:PrincipalTag/datacenter}/${aws:PrincipalTag/host_id}"
OF_PLACEHOLDERS: Final = "EXAMPLE-DATACENTER/EXAMPLE-HOST-ID"
OPERATIONS: Final = ("look", "read", "create", "write", "delete")
_UPLOAD: Final = ["s3:PutObject", "s3:AbortMultipartUpload"]
S3_ACTIONS: Final = {
    "look": ["s3:GetObject"],
    "create": _UPLOAD,
    "write": _UPLOAD,
    "delete": ["s3:DeleteObject"],
}
"""`read` is `look`, and what is created or written is looked at."""
GCS_PERMISSIONS: Final = {
    "list": ["storage.objects.list"],
    "look": [],
    "read": ["storage.objects.get"],
    "create": ["storage.objects.create"],
    # Google has no permission to replace: it takes deleting and creating.
    "write": ["storage.objects.create", "storage.objects.delete"],
    "delete": ["storage.objects.delete"],
}
Role = Mapping[str, Any]


def roles() -> dict[str, Role]:
    """The table, by role."""
    found: dict[str, Role] = json.loads((FOLDER / "roles.json").read_text(encoding="utf-8"))
    return found


def files(table: Mapping[str, Role]) -> dict[str, str]:
    """Path below `FOLDER` to content, for all generated files."""
    made = {f"s3/{name}.json": s3_policy(role) for name, role in table.items()}
    grants = {name: gcs_grants(role) for name, role in table.items()}
    used = {grant["role"] for each in grants.values() for grant in each}
    made |= {f"gcs/{name}.json": gcs_role(name) for name in sorted(used)}
    return {path: f"{json.dumps(content, indent=2)}\n" for path, content in {**made, "gcs/grants.json": grants}.items()}


def s3_policy(role: Role) -> dict[str, Any]:
    """The identity policy of a role."""
    statements = []
    if role["list"]:
        statements.append(_allow("List", ["s3:ListBucket"], [f"arn:aws:s3:::{BUCKET}"]))
    looked_at = {folder for operation in ("look", "read", "create", "write") for folder in role[operation]}
    wanted = {**role, "look": ["*"] if "*" in looked_at else sorted(looked_at)}
    for operation, actions in S3_ACTIONS.items():
        if folders := wanted[operation]:
            places = [f"arn:aws:s3:::{BUCKET}/{_place(role, folder, OF_TAGS)}*" for folder in folders]
            statements.append(_allow(operation.capitalize(), actions, places))
    if role["create"]:
        # PutObject and the end of an upload in parts make an object: not without `If-None-Match: *`. Parts
        # have no such header.
        conditions = {"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}}
        replace = {
            "Sid": "NeverReplace",
            "Effect": "Deny",
            "Action": ["s3:PutObject"],
            "Resource": [f"arn:aws:s3:::{BUCKET}/*"],
        }
        statements.append({**replace, "Condition": conditions})
    return {"Version": "2012-10-17", "Statement": statements}


def gcs_grants(role: Role) -> list[dict[str, str]]:
    """The custom roles granted to a role of the table, and the managed folder of each; "" is the bucket."""
    wanted: dict[str, list[str]] = {}
    for operation in ("list", *OPERATIONS):
        folders = ["*"] * role["list"] if operation == "list" else role[operation]
        for folder in folders if GCS_PERMISSIONS[operation] else []:
            wanted.setdefault(_place(role, folder, OF_PLACEHOLDERS), []).append(operation)
    return [{"folder": place, "role": _named(operations)} for place, operations in sorted(wanted.items())]


def gcs_role(name: str) -> dict[str, Any]:
    """The custom role of that name."""
    operations = [operation for operation in GCS_PERMISSIONS if operation.capitalize() in name]
    permissions = sorted({permission for operation in operations for permission in GCS_PERMISSIONS[operation]})
    return {
        "title": name,
        "description": f"writetime: {', '.join(operations)} objects",
        "stage": "GA",
        "includedPermissions": permissions,
    }


def _named(operations: list[str]) -> str:
    """The custom role for these operations. Writing includes deleting."""
    left = [operation for operation in operations if not (operation == "delete" and "write" in operations)]
    return f"writetime{''.join(operation.capitalize() for operation in left)}"


def _allow(name: str, actions: list[str], resources: list[str]) -> dict[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": actions, "Resource": resources}


def _place(role: Role, folder: str, node: str) -> str:
    """The prefix of the object names; "" is the whole bucket."""
    if folder == "*":
        return ""
    return f"{folder}/{CLUSTER}/{node}/" if role["own"] else f"{folder}/"


def table() -> str:
    """The table for docs/security.md."""
    lines = ["| who | lists | reads | creates | creates and replaces | deletes |", "|---|---|---|---|---|---|"]
    for role in roles().values():
        looks = f"; looks at {_shown(role, 'look')}" if role["look"] else ""
        cells = [role["who"], "the bucket" if role["list"] else "–", _shown(role, "read") + looks]
        lines.append(f"| {' | '.join([*cells, *(_shown(role, each) for each in ('create', 'write', 'delete'))])} |")
    return "\n".join(lines)


def _shown(role: Role, operation: str) -> str:
    if role[operation] == ["*"]:
        return "all"
    return ", ".join(f"`{folder}/`" for folder in role[operation]) or "–"


def stale() -> Iterator[Path]:
    """Files that differ from the table, are missing, or are not generated from it."""
    wanted = {FOLDER / path: content for path, content in files(roles()).items()}
    there = {path for kind in ("s3", "gcs") for path in (FOLDER / kind).glob("*")}
    for path in sorted(there | wanted.keys()):
        if path not in there or path not in wanted or path.read_text(encoding="utf-8") != wanted[path]:
            yield path


def write() -> None:
    """Write the files, and delete those that are not generated from the table."""
    wanted = files(roles())
    for old in stale():
        old.unlink(missing_ok=True)
    for path, content in wanted.items():
        (FOLDER / path).parent.mkdir(exist_ok=True)
        (FOLDER / path).write_text(content, encoding="utf-8")


if __name__ == "__main__":
    write()
    sys.exit(0)
