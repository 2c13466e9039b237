"""The commit log, one module per layer of the wire format, outermost first.

    descriptor    the segment's header
    sections      sync markers, which chain the sections of a segment
    unpack        compressed and encrypted sections to the uncompressed segment
      codecs, encryption
    frames        entries: length, two CRCs, body
    mutation      the body: partition updates to `writetime.cassandra.model`
    encode        writes all these layers
    idx           the `_cdc.idx` file of a segment
    segment       descriptor, sections and frames of a whole file
    redact        removes mutations from a segment
    system_mutations   mutations of Cassandra's own tables
    mutation_json, mutation_text, segment_report, update_filter   what `writetime dump` and `verify` print

Parsers take bytes and a position and return a value and the next position. Only `encryption.keystore` and
`files` open a file.
"""
