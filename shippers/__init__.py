"""The node agent: ships finished segments from a node's cdc_raw folder into the bucket, and only then deletes them.

    cli       the command, its log and its signals          folder           what lies in cdc_raw; decides, touches nothing
    agent     the loop: look, decide, act                   upload           one segment: put, verify, delete
    node      who the node is                               schema_snapshot  the node's schema as JSON
    lock      one shipper a folder

It runs beside a production database: small, boring, and nothing is ever deleted before the store has confirmed the same bytes.
"""
