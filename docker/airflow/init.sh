#!/bin/bash
# What has to be there before Airflow's four processes start: its database, the admin's password, folders.
set -euo pipefail
umask 077
mkdir -p /var/lib/writetime/bucket /var/lib/writetime/gcs /var/lib/writetime/warehouse
python -c 'import json, os; json.dump({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}, open("/var/lib/airflow/passwords.json", "w"))'
exec airflow db migrate
