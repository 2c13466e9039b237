"""The node agent: uploads completed segments from a node's cdc_raw folder to the bucket, then deletes them
locally.

    cli              command, logging and signals         folder           classifies the files of cdc_raw
    agent            the main loop                        after_crash      segments that no node writes to any more
    scan             one scan of all folders              upload           one segment: put, verify, delete
    tail             parts of growing segments            spill            moves segments while the store is unavailable
    disk_space       free space and rate limit            lock             one shipper per folder
    node_identity    identity of the node, CQL            status           output of --status and --dry-run
    metrics          metrics, /healthz, status file       schema_snapshot  the node's schema as JSON
    report           the node's status in the bucket      truncations      the node's truncation records
    cdc_settings     the node's CDC settings              filler           fills segments of idle nodes
    io_priority      niceness, no page cache              open_file_probe  whether a file is open for writing
    systemd          notifications to systemd

It runs on a production database node: nothing is deleted before the store has confirmed the same bytes.
"""
