package writetime.judge;

import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.UUID;

import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.cql3.ColumnIdentifier;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.ListType;
import org.apache.cassandra.db.marshal.ReversedType;
import org.apache.cassandra.db.marshal.UTF8Type;
import org.apache.cassandra.db.marshal.UUIDType;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.schema.CQLTypeParser;
import org.apache.cassandra.schema.ColumnMetadata;
import org.apache.cassandra.schema.KeyspaceMetadata;
import org.apache.cassandra.schema.KeyspaceParams;
import org.apache.cassandra.schema.Schema;
import org.apache.cassandra.schema.SchemaConstants;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.schema.TableMetadata;
import org.apache.cassandra.schema.TableParams;
import org.apache.cassandra.schema.Tables;
import org.apache.cassandra.schema.Types;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * Learns tables from the system_schema mutations of a log, and makes them known to Cassandra's Schema.
 *
 * A table is what all mutations under its id say together: columns that were dropped stay, so that their cells are shown; a renamed key column
 * goes. Types are the last ones said. Of several tables that bore one name, all but the last get `_OLD_` and a part of their id appended.
 * A table had cdc if it ever did.
 */
final class Learner
{
    private record Column(String name, String kind, int position, String type, boolean descending)
    {
        boolean isKey()
        {
            return kind.equals("partition_key") || kind.equals("clustering");
        }
    }

    private static final class Table
    {
        final String keyspace;
        final String name;
        final UUID id;
        final Map<String, Column> columns = new TreeMap<>();
        Set<TableMetadata.Flag> flags = EnumSet.of(TableMetadata.Flag.COMPOUND);
        boolean cdc;

        Table(String keyspace, String name, UUID id)
        {
            this.keyspace = keyspace;
            this.name = name;
            this.id = id;
        }
    }

    private record UserType(List<String> names, List<String> types) {}

    private static final long COUNTED = 0x1b255f4def2540a6L;

    private final Map<UUID, Table> tables = new LinkedHashMap<>();
    /** The last table of each name, by keyspace and name. */
    private final Map<List<String>, Table> latest = new HashMap<>();
    private final Map<String, Map<String, UserType>> types = new HashMap<>();

    /** Take in a mutation of any keyspace. */
    void take(Mutation mutation)
    {
        if (!mutation.getKeyspaceName().equals(SchemaConstants.SCHEMA_KEYSPACE_NAME))
            return;
        String keyspace = text(mutation.key().getKey());
        if (SchemaConstants.isLocalSystemKeyspace(keyspace))
            return;
        Collection<PartitionUpdate> updates = mutation.getPartitionUpdates();
        // Columns belong to the table of which the same mutation may be the first to speak.
        for (PartitionUpdate update : updates)
            if (update.metadata().name.equals("tables") || update.metadata().name.equals("views"))
                update.forEach(row -> table(keyspace, update, row));
        for (PartitionUpdate update : updates)
        {
            switch (update.metadata().name)
            {
                case "columns" -> update.forEach(row -> column(keyspace, update, row, isDropped(keyspace, clustering(row, 0), updates)));
                case "types" -> update.forEach(row -> type(keyspace, update, row));
                default -> {}
            }
        }
    }

    private void table(String keyspace, PartitionUpdate update, Row row)
    {
        ByteBuffer id = value(update, row, "id");
        if (id == null)
            return;
        Table table = tables.computeIfAbsent(UUIDType.instance.compose(id), key -> new Table(keyspace, clustering(row, 0), key));
        latest.put(List.of(keyspace, table.name), table);
        if (update.metadata().name.equals("tables"))
            table.flags = flags(update, row);
        ByteBuffer cdc = value(update, row, "cdc");
        table.cdc |= cdc != null && cdc.hasRemaining() && cdc.get(cdc.position()) != 0;
    }

    private static Set<TableMetadata.Flag> flags(PartitionUpdate update, Row row)
    {
        Set<TableMetadata.Flag> flags = EnumSet.noneOf(TableMetadata.Flag.class);
        ColumnMetadata column = update.metadata().getColumn(ByteBufferUtil.bytes("flags"));
        if (column.isComplex())
        {
            ComplexColumnData data = row.getComplexColumnData(column);
            if (data != null)
                data.forEach(cell -> flags.add(flag(text(cell.path().get(0)))));
            return flags;
        }
        ByteBuffer value = value(update, row, "flags");
        if (value != null)
            for (Object flag : (Set<?>) column.type.compose(value))
                flags.add(flag(flag.toString()));
        return flags;
    }

    private static TableMetadata.Flag flag(String name)
    {
        return TableMetadata.Flag.valueOf(name.toUpperCase(Locale.ROOT));
    }

    private void column(String keyspace, PartitionUpdate update, Row row, boolean tableIsDropped)
    {
        Table table = latest.get(List.of(keyspace, clustering(row, 0)));
        if (table == null)
            return;
        String name = clustering(row, 1);
        ByteBuffer type = value(update, row, "type");
        if (type != null)
            table.columns.put(name, new Column(name, text(value(update, row, "kind")), ByteBufferUtil.toInt(value(update, row, "position")), text(type),
                                               text(value(update, row, "clustering_order")).equalsIgnoreCase("desc")));
        else if (!row.deletion().isLive() && !tableIsDropped && table.columns.containsKey(name) && table.columns.get(name).isKey())
            // Key columns cannot be dropped: this one has another name now.
            table.columns.remove(name);
    }

    private static boolean isDropped(String keyspace, String table, Collection<PartitionUpdate> updates)
    {
        for (PartitionUpdate update : updates)
            if (update.metadata().name.equals("tables") || update.metadata().name.equals("views"))
                for (Row row : update)
                    // A change deletes the row first too, but says the id again.
                    if (clustering(row, 0).equals(table) && !row.deletion().isLive() && value(update, row, "id") == null)
                        return true;
        return false;
    }

    private void type(String keyspace, PartitionUpdate update, Row row)
    {
        ByteBuffer names = value(update, row, "field_names");
        ByteBuffer fields = value(update, row, "field_types");
        if (names == null || fields == null)
            return;
        ListType<String> list = ListType.getInstance(UTF8Type.instance, false);
        types.computeIfAbsent(keyspace, key -> new LinkedHashMap<>()).put(clustering(row, 0), new UserType(list.compose(names), list.compose(fields)));
    }

    /** Make all that was learnt known to Cassandra. */
    void register() throws ReflectiveOperationException
    {
        List<Table> whole = tables.values().stream().filter(Learner::hasKey).toList();
        if (Since6.isThis())
        {
            Map<UUID, TableMetadata> learnt = new HashMap<>();
            for (Table table : whole)
                learnt.put(table.id, metadata(table));
            Since6.teach(learnt);
            return;
        }
        Map<String, Tables.Builder> keyspaces = new LinkedHashMap<>();
        for (Table table : whole)
            keyspaces.computeIfAbsent(table.keyspace, key -> Tables.builder()).add(metadata(table));
        for (Map.Entry<String, Tables.Builder> entry : keyspaces.entrySet())
            load(KeyspaceMetadata.create(entry.getKey(), KeyspaceParams.simple(1), entry.getValue().build()));
    }

    private static boolean hasKey(Table table)
    {
        return table.columns.values().stream().anyMatch(column -> column.kind().equals("partition_key"));
    }

    // The ids that 6.0 makes are a constant and a counter; the start of all others differs.
    private static String distinctive(UUID id)
    {
        String digits = id.toString().replace("-", "");
        return id.getMostSignificantBits() == COUNTED ? digits.substring(24) : digits.substring(0, 8);
    }

    private TableMetadata metadata(Table table)
    {
        boolean replaced = latest.get(List.of(table.keyspace, table.name)) != table;
        String name = replaced ? table.name + "_OLD_" + distinctive(table.id) : table.name;
        TableMetadata.Builder builder = TableMetadata.builder(table.keyspace, name, TableId.fromUUID(table.id))
                                                     .partitioner(DatabaseDescriptor.getPartitioner())
                                                     .flags(table.flags)
                                                     .params(TableParams.builder().cdc(table.cdc).build());
        Types known = userTypes(table.keyspace);
        List<Column> columns = new ArrayList<>(table.columns.values());
        columns.sort(Comparator.comparingInt(Column::position));
        for (Column column : columns)
            add(builder, column, CQLTypeParser.parse(table.keyspace, column.type(), known));
        return builder.build();
    }

    private static void add(TableMetadata.Builder builder, Column column, AbstractType<?> parsed)
    {
        AbstractType<?> type = column.descending() ? ReversedType.getInstance(parsed) : parsed;
        ColumnIdentifier name = ColumnIdentifier.getInterned(column.name(), true);
        switch (column.kind())
        {
            case "partition_key" -> builder.addPartitionKeyColumn(name, type);
            case "clustering" -> builder.addClusteringColumn(name, type);
            case "static" -> builder.addStaticColumn(name, type);
            default -> builder.addRegularColumn(name, type);
        }
    }

    private Types userTypes(String keyspace)
    {
        Types.RawBuilder builder = Types.rawBuilder(keyspace);
        types.getOrDefault(keyspace, Map.of()).forEach((name, type) -> builder.add(name, type.names(), type.types()));
        return builder.build();
    }

    // 4.0 loads a keyspace; later versions transform the schema.
    private static void load(KeyspaceMetadata keyspace) throws ReflectiveOperationException
    {
        Method load;
        try
        {
            load = Schema.class.getMethod("load", KeyspaceMetadata.class);
        }
        catch (NoSuchMethodException later)
        {
            Class<?> transformation = Class.forName("org.apache.cassandra.schema.SchemaTransformation");
            Object add = Class.forName("org.apache.cassandra.schema.SchemaTransformations")
                              .getMethod("addKeyspace", KeyspaceMetadata.class, boolean.class)
                              .invoke(null, keyspace, true);
            Schema.class.getMethod("transform", transformation).invoke(Schema.instance, add);
            return;
        }
        load.invoke(Schema.instance, keyspace);
    }

    private static ByteBuffer value(PartitionUpdate update, Row row, String column)
    {
        ColumnMetadata metadata = update.metadata().getColumn(ByteBufferUtil.bytes(column));
        if (metadata == null || metadata.isComplex())
            return null;
        Cell<?> cell = row.getCell(metadata);
        return cell == null || cell.isTombstone() ? null : cell.buffer();
    }

    private static String clustering(Row row, int index)
    {
        return text(row.clustering().bufferAt(index));
    }

    private static String text(ByteBuffer bytes)
    {
        try
        {
            return ByteBufferUtil.string(bytes);
        }
        catch (CharacterCodingException error)
        {
            throw new IllegalArgumentException(error);
        }
    }
}
