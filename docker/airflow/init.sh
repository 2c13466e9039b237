#!/bin/bash
# What has to be there before Airflow's four processes start: folders, the database, the admin's password. Its first run also makes
# airflow.cfg with random keys in the volume that all four share.
set -euo pipefail
umask 077
mkdir -p /var/lib/writetime/bucket /var/lib/writetime/gcs /var/lib/writetime/warehouse
passwords=/var/lib/airflow/passwords.json
if [[ -n ${AIRFLOW_ADMIN_PASSWORD:-} || ! -f $passwords ]]; then
    python - "$passwords" <<'PYTHON'
import json, os, secrets, sys

with open(sys.argv[1], "w") as file:
    json.dump({"admin": os.environ.get("AIRFLOW_ADMIN_PASSWORD") or secrets.token_urlsafe(12)}, file)
PYTHON
fi
exec airflow db migrate
