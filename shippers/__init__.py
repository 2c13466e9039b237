"""The node agent: ships finished segments from a node's cdc_raw folder into the bucket, and only then deletes them.

    cli       the command, its log and its signals          folder           what lies in cdc_raw; decides, touches nothing
    agent     the loop: look, decide, act                   after_crash      what no node writes to any more; asks `writer`
    view      one look at all of it                         upload           one segment: put, verify, delete
    guard     how much room is left, and the pace           spill            segments put aside while the store is down
    node      who the node is                               lock             one shipper a folder
    seen      metrics, /healthz, a note for --status        status           what --status and --dry-run show
    gentle    niceness, and the page cache left alone       schema_snapshot  the node's schema as JSON
    report    the node's status in the bucket               truncations      what the node records of its TRUNCATEs

It runs beside a production database: small, boring, and nothing is ever deleted before the store has confirmed the same bytes.
"""
