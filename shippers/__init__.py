"""The node agent: uploads completed segments from a node's cdc_raw folder to the bucket, then deletes them
locally.

    cli              command, logging and signals         folder           classifies the files of cdc_raw
    agent            the main loop                        after_crash      segments that no node writes to any more
    scan             scans of all folders                 lock             one shipper per folder
    completed        completed segments: rate, retries    upload           one segment: put, verify, delete
    growing          growing segments: which are due      tail             parts of one growing segment
    relief           when segments are spilled            spill            moves segments while the store is unavailable
    disk_space       free space and rate limit            status           output of --status and --dry-run
    node_identity    identity of the node, CQL            schema_snapshot  the node's schema as JSON
    metrics          metrics, /healthz, status file       truncations      the node's truncation records
    report           the node's status in the bucket      open_file_probe  whether a file is open for writing
    cdc_settings     the node's CDC settings              log              the log, which delays nothing
    io_priority      niceness, no page cache              systemd          notifications to systemd
    loaded           SSTables loaded past the log         write_times      last writes with impossible times
    listing          what is kept of folders between      sign_off         until when a node's log is shipped
                     scans
    tried            segments whose upload failed         state_file       files of the state folder

It runs on a production database node: nothing is deleted before the store has confirmed the same bytes.
"""
