#!/bin/bash
# Switch CDC on in the image's own cassandra.yaml, then go on as the image does. Small segments, so that one fills up soon:
# what is synced is shipped every ten seconds, and the whole segment, for the archive, when it is full.
set -euo pipefail
yaml=/etc/cassandra/cassandra.yaml
set_option() {
    # Only the image's own folder is writable for this user, hence no `sed -i` of a mounted file.
    if grep -qE "^#? ?$1:" "$yaml"; then
        sed -i -E "s|^#? ?$1:.*|$1: $2|" "$yaml"
    else
        echo "$1: $2" >>"$yaml"
    fi
}
set_option cdc_enabled true
set_option cdc_raw_directory /var/lib/cassandra/cdc_raw
set_option commitlog_segment_size 1MiB
exec docker-entrypoint.sh cassandra -f
