"""Built-in definitions of the tables in `system_schema` and `system`: the union of the columns of 3.11 to
6.0.

Every node's log contains mutations of these tables. Their ids are computed, so they are the same everywhere:
UUIDv3 of keyspace name and table name without a namespace (SystemKeyspace, SchemaKeyspace:
TableId.forSystemTable). An update names its columns, so one union of columns decodes every version. The other
system keyspaces (system_auth, …) are ordinary: their schema is in system_schema, and their ids are computed
in the same way.
"""

from __future__ import annotations

import hashlib
from typing import Final
from uuid import UUID

from writetime.cassandra.schema.model import Column, ColumnKind, Table

SYSTEM_KEYSPACES: Final = frozenset(
    {
        "system",
        "system_accord",
        "system_auth",
        "system_cluster_metadata",
        "system_distributed",
        "system_schema",
        "system_traces",
        "system_views",
        "system_virtual_schema",
    }
)

BUILT_IN: Final = frozenset({"system", "system_schema"})
"""Keyspaces that are defined here and never learnt."""


def system_table_id(keyspace: str, name: str) -> UUID:
    """The id of a system table (Java: UUID.nameUUIDFromBytes of both names)."""
    digest = hashlib.md5(f"{keyspace}{name}".encode(), usedforsecurity=False).digest()
    return UUID(bytes=digest, version=3)


_TABLE_OPTIONS = """
    id uuid, flags frozen<set<text>>, cdc boolean, default_time_to_live int, gc_grace_seconds int, comment text,
    extensions frozen<map<text, blob>>, caching frozen<map<text, text>>, compaction frozen<map<text, text>>,
    compression frozen<map<text, text>>, bloom_filter_fp_chance double, crc_check_chance double, read_repair_chance double,
    dclocal_read_repair_chance double, min_index_interval int, max_index_interval int, memtable_flush_period_in_ms int,
    speculative_retry text, additional_write_policy text, read_repair text, memtable text, allow_auto_snapshot boolean,
    incremental_backups boolean, fast_path frozen<map<text, text>>, auto_repair frozen<map<text, text>>
"""

_SYSTEM_SCHEMA = f"""
keyspaces         | keyspace_name text | | durable_writes boolean, replication frozen<map<text, text>>,
                    fast_path frozen<map<text, text>>, replication_type text
tables            | keyspace_name text | table_name text | {_TABLE_OPTIONS}
views             | keyspace_name text | view_name text
                  | base_table_id uuid, base_table_name text, where_clause text, include_all_columns boolean, {_TABLE_OPTIONS}
columns           | keyspace_name text | table_name text, column_name text
                  | column_name_bytes blob, kind text, position int, clustering_order text, type text
dropped_columns   | keyspace_name text | table_name text, column_name text | dropped_time timestamp, kind text, type text
types             | keyspace_name text | type_name text | field_names frozen<list<text>>, field_types frozen<list<text>>
indexes           | keyspace_name text | table_name text, index_name text | kind text, options frozen<map<text, text>>
triggers          | keyspace_name text | table_name text, trigger_name text | options frozen<map<text, text>>
functions         | keyspace_name text | function_name text, argument_types frozen<list<text>>
                  | argument_names frozen<list<text>>, body text, language text, return_type text, called_on_null_input boolean
aggregates        | keyspace_name text | aggregate_name text, argument_types frozen<list<text>>
                  | final_func text, initcond text, return_type text, state_func text, state_type text
column_masks      | keyspace_name text | table_name text, column_name text
                  | function_keyspace text, function_name text, function_argument_types frozen<list<text>>,
                    function_argument_values frozen<list<text>>, function_argument_nulls frozen<list<boolean>>
"""

_SYSTEM = """
IndexInfo                 | table_name text | index_name text | value blob
available_ranges          | keyspace_name text | | ranges set<blob>
available_ranges_v2       | keyspace_name text | | full_ranges set<blob>, transient_ranges set<blob>
batches                   | id timeuuid | | mutations list<blob>, version int
batchlog                  | id uuid | | data blob, version int, written_at timestamp
built_views               | keyspace_name text | view_name text | status_replicated boolean
compaction_history        | id timeuuid |
                          | bytes_in bigint, bytes_out bigint, columnfamily_name text, compacted_at timestamp,
                            compaction_properties frozen<map<text, text>>, keyspace_name text, rows_merged map<int, bigint>
consensus_migration_state | row_key blob | cf_id uuid, consensus_migrated_at_epoch bigint
                          | consensus_max_hlc bigint, consensus_target tinyint
hints                     | target_id uuid | hint_id timeuuid, message_version int | mutation blob
local                     | key text |
                          | bootstrapped text, broadcast_address inet, broadcast_port int, cluster_name text, cql_version text,
                            data_center text, gossip_generation int, host_id uuid, listen_address inet, listen_port int,
                            native_protocol_version text, partitioner text, rack text, release_version text, rpc_address inet,
                            rpc_port int, schema_version uuid, thrift_version text, tokens set<text>, truncated_at map<uuid, blob>
local_metadata_log        | epoch bigint | | entry_id bigint, kind int, transformation blob
metadata_snapshots        | epoch bigint | | snapshot blob
paxos                     | row_key blob | cf_id uuid
                          | in_progress_ballot timeuuid, in_progress_read_ballot timeuuid, most_recent_commit blob,
                            most_recent_commit_at timeuuid, most_recent_commit_version int, proposal blob, proposal_ballot timeuuid,
                            proposal_version int
paxos_repair_history      | keyspace_name text | table_name text | points frozen<list<frozen<tuple<blob, timeuuid>>>>
peer_events               | peer inet | | hints_dropped map<timeuuid, int>
peer_events_v2            | peer inet | peer_port int | hints_dropped map<timeuuid, int>
peers                     | peer inet |
                          | data_center text, host_id uuid, preferred_ip inet, rack text, release_version text, rpc_address inet,
                            schema_version uuid, tokens set<text>
peers_v2                  | peer inet | peer_port int
                          | data_center text, host_id uuid, native_address inet, native_port int, preferred_ip inet, preferred_port int,
                            rack text, release_version text, schema_version uuid, tokens set<text>
prepared_statements       | prepared_id blob | | logged_keyspace text, query_string text
range_xfers               | token_bytes blob | | requested_at timestamp
repairs                   | parent_id timeuuid |
                          | cfids set<uuid>, coordinator inet, coordinator_port int, last_update timestamp, participants set<inet>,
                            participants_wp set<text>, ranges set<blob>, repaired_at timestamp, started_at timestamp, state int
size_estimates            | keyspace_name text | table_name text, range_start text, range_end text
                          | mean_partition_size bigint, partitions_count bigint
sstable_activity          | keyspace_name text, columnfamily_name text, generation int | | rate_120m double, rate_15m double
sstable_activity_v2       | keyspace_name text, table_name text, id text | | rate_120m double, rate_15m double
table_estimates           | keyspace_name text | table_name text, range_type text, range_start text, range_end text
                          | mean_partition_size bigint, partitions_count bigint
top_partitions            | keyspace_name text | table_name text, top_type text
                          | last_update timestamp, top frozen<list<frozen<tuple<text, bigint>>>>
transferred_ranges        | operation text, keyspace_name text | peer inet | ranges set<blob>
transferred_ranges_v2     | operation text, keyspace_name text | peer inet, peer_port int | ranges set<blob>
view_builds_in_progress   | keyspace_name text | view_name text, start_token text, end_token text | keys_built bigint, last_token text
views_builds_in_progress  | keyspace_name text | view_name text | generation_number int, last_token text
"""


def _tables(keyspace: str, definitions: str) -> dict[UUID, Table]:
    """Parse lines `name | partition key | clustering | columns`; an indented line continues the previous
    one."""
    lines: list[str] = []
    for line in definitions.splitlines():
        if line[:1].isspace() and lines:
            lines[-1] += line
        elif line.strip():
            lines.append(line)
    tables = (_table(keyspace, line) for line in lines)
    return {table.id: table for table in tables}


def _table(keyspace: str, line: str) -> Table:
    name, partition_key, clustering, regular = (part.strip() for part in line.split("|"))
    columns = {
        column.name: column
        for column in (
            *_columns(partition_key, "partition_key"),
            *_columns(clustering, "clustering"),
            *_columns(regular, "regular"),
        )
    }
    return Table(keyspace, name, system_table_id(keyspace, name), columns)


def _columns(text: str, kind: ColumnKind) -> list[Column]:
    columns: list[Column] = []
    depth, part = 0, ""
    for char in text + ",":
        depth += (char == "<") - (char == ">")
        if char == "," and depth == 0:
            if part.strip():
                name, type_text = part.split(maxsplit=1)
                columns.append(Column(name, kind, type_text.strip(), -1 if kind == "regular" else len(columns)))
            part = ""
        else:
            part += char
    return columns


SCHEMA_TABLES: Final[dict[UUID, Table]] = _tables("system_schema", _SYSTEM_SCHEMA)
LOCAL_TABLES: Final[dict[UUID, Table]] = _tables("system", _SYSTEM)
CLUSTER_METADATA_LOG: Final[Table] = _table(
    "system_cluster_metadata", "distributed_metadata_log | epoch bigint | | entry_id bigint, kind int, transformation blob"
)
"""Written at each schema change since 6.0, by nodes whose CREATE of it may be in a segment that was not kept."""
ERASED: Final[Table] = _table("system", "writetime_erased | filler blob | |")
"""Not a Cassandra table: mutations erased from a segment are replaced by a mutation of it
(`writetime.cassandra.commitlog.redact`)."""
TABLES: Final[dict[UUID, Table]] = {**SCHEMA_TABLES, **LOCAL_TABLES, CLUSTER_METADATA_LOG.id: CLUSTER_METADATA_LOG, ERASED.id: ERASED}
"""All tables by id."""

LOCAL: Final[Table] = LOCAL_TABLES[system_table_id("system", "local")]
"""`system.local`: a node's metadata about itself (tokens, host_id, truncated_at, …)."""
