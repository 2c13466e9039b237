"""The node agent: ships finished segments from a node's cdc_raw folder into the bucket, and only then deletes them.

    cli              command, log and signals               folder           what lies in cdc_raw; decides, changes nothing
    agent            the loop: look, decide, act            after_crash      segments that no node writes to any more
    view             one look at all of it                  upload           one segment: put, verify, delete
    guard            free space, and the pace               spill            segments put aside while the store is down
    node             who the node is                        lock             one shipper a folder
    metrics          metrics, /healthz, a note on disk      status           what --status and --dry-run show
    io_priority      niceness, no use of the page cache     schema_snapshot  the node's schema as JSON
    report           the node's status in the bucket        truncations      what the node records of its TRUNCATEs
    open_file_probe  whether a process writes to a file

It runs beside a production database: small, boring, and nothing is ever deleted before the store has confirmed the same bytes.
"""
