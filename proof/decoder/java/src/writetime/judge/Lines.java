package writetime.judge;

import java.io.IOException;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;

import org.apache.cassandra.db.ClusteringPrefix;
import org.apache.cassandra.db.DeletionTime;
import org.apache.cassandra.db.LivenessInfo;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.RangeTombstone;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;
import org.apache.cassandra.utils.ByteBufferUtil;

/**
 * Mutations as lines of JSON, the ones that `writetime dump --json` makes: positions and times as numbers, bytes in hex, nothing of what is absent.
 */
final class Lines
{
    private static final JsonFactory JSON = new JsonFactory();
    private static final int MESSAGING_VERSION_60 = 14;

    private final StringWriter text = new StringWriter();
    private final JsonGenerator json;

    private boolean hasEpochs;

    private Lines() throws IOException
    {
        json = JSON.createGenerator(text);
    }

    /** One mutation; with the CRC-32 of its bytes unless that is null. */
    static String line(Mutation mutation, int size, int position, CommitLogDescriptor segment, Long crc)
    {
        try
        {
            Lines lines = new Lines();
            lines.hasEpochs = segment.getMessagingVersion() >= MESSAGING_VERSION_60;
            lines.mutation(mutation, size, position, segment.id, crc);
            return lines.finish();
        }
        catch (IOException error)
        {
            throw new UncheckedIOException(error);
        }
    }

    /** What became of a file or a folder: its mutations' lines (for a file), what was passed over, what went wrong. */
    static String report(String file, List<String> mutations, Reader reader) throws IOException
    {
        Lines lines = new Lines();
        JsonGenerator json = lines.json;
        json.writeStartObject();
        if (file != null)
        {
            json.writeStringField("file", file);
            json.writeArrayFieldStart("mutations");
            for (String line : mutations)
                json.writeRawValue(line);
            json.writeEndArray();
        }
        json.writeObjectFieldStart("unknown");
        for (Map.Entry<String, Integer> entry : reader.unknown.entrySet())
            json.writeNumberField(entry.getKey(), entry.getValue());
        json.writeEndObject();
        json.writeArrayFieldStart("problems");
        for (Reader.Problem problem : reader.problems)
        {
            json.writeStartObject();
            json.writeStringField("file", problem.file());
            json.writeStringField("reason", problem.reason());
            json.writeBooleanField("permissible", problem.permissible());
            json.writeStringField("message", problem.message());
            json.writeEndObject();
        }
        json.writeEndArray();
        json.writeEndObject();
        return lines.finish();
    }

    private String finish() throws IOException
    {
        json.close();
        return text.toString();
    }

    private void mutation(Mutation mutation, int size, int position, long segmentId, Long crc) throws IOException
    {
        json.writeStartObject();
        json.writeNumberField("seg", segmentId);
        json.writeNumberField("pos", position);
        json.writeNumberField("size", size);
        if (crc != null)
            json.writeNumberField("crc", crc);
        json.writeStringField("ks", mutation.getKeyspaceName());
        json.writeBooleanField("cdc", mutation.trackedByCDC());
        if (hasEpochs)
            json.writeNumberField("flags", Since6.flags(mutation));
        hex("pk", mutation.key().getKey());
        json.writeArrayFieldStart("updates");
        for (PartitionUpdate update : mutation.getPartitionUpdates())
            update(update);
        json.writeEndArray();
        json.writeEndObject();
    }

    private void update(PartitionUpdate update) throws IOException
    {
        json.writeStartObject();
        json.writeStringField("table", update.metadata().name);
        json.writeStringField("id", update.metadata().id.asUUID().toString());
        // Of an update without content the reader forgets it.
        if (hasEpochs && !update.isEmpty())
            json.writeNumberField("epoch", Since6.epoch(update));
        deletion("pdel", update.deletionInfo().getPartitionDeletion());
        if (update.deletionInfo().hasRanges())
        {
            json.writeArrayFieldStart("rts");
            for (Iterator<RangeTombstone> ranges = update.deletionInfo().rangeIterator(false); ranges.hasNext();)
                range(ranges.next());
            json.writeEndArray();
        }
        if (!update.staticRow().isEmpty())
        {
            json.writeObjectFieldStart("static");
            json.writeBooleanField("static", true);
            row(update.staticRow());
            json.writeEndObject();
        }
        json.writeArrayFieldStart("rows");
        for (Row row : update)
        {
            json.writeStartObject();
            clustering(row.clustering());
            row(row);
            json.writeEndObject();
        }
        json.writeEndArray();
        json.writeEndObject();
    }

    private void range(RangeTombstone range) throws IOException
    {
        json.writeStartObject();
        times(range.deletionTime());
        bound("start", range.deletedSlice().start());
        bound("end", range.deletedSlice().end());
        json.writeEndObject();
    }

    private void bound(String name, ClusteringPrefix<?> bound) throws IOException
    {
        json.writeObjectFieldStart(name);
        json.writeStringField("kind", bound.kind().name());
        clustering(bound);
        json.writeEndObject();
    }

    private void clustering(ClusteringPrefix<?> prefix) throws IOException
    {
        json.writeArrayFieldStart("ck");
        for (int i = 0; i < prefix.size(); i++)
            hex(prefix.bufferAt(i));
        json.writeEndArray();
    }

    private void row(Row row) throws IOException
    {
        LivenessInfo liveness = row.primaryKeyLivenessInfo();
        if (!liveness.isEmpty())
        {
            json.writeObjectFieldStart("live");
            json.writeNumberField("ts", liveness.timestamp());
            if (liveness.isExpiring())
            {
                json.writeNumberField("ttl", liveness.ttl());
                json.writeNumberField("ldt", liveness.localExpirationTime());
            }
            json.writeEndObject();
        }
        deletion("del", row.deletion().time());
        json.writeArrayFieldStart("cells");
        for (ColumnData data : row)
        {
            if (data instanceof ComplexColumnData complex)
                complex(complex);
            else
                cell((Cell<?>) data);
        }
        json.writeEndArray();
    }

    private void complex(ComplexColumnData data) throws IOException
    {
        if (!data.complexDeletion().isLive())
        {
            json.writeStartObject();
            json.writeStringField("col", data.column().name.toString());
            deletion("complexDeletion", data.complexDeletion());
            json.writeEndObject();
        }
        for (Cell<?> cell : data)
            cell(cell);
    }

    private void cell(Cell<?> cell) throws IOException
    {
        boolean expires = cell.ttl() != Cell.NO_TTL;
        json.writeStartObject();
        json.writeStringField("col", cell.column().name.toString());
        json.writeNumberField("ts", cell.timestamp());
        if (cell.path() != null)
            hex("path", cell.path().get(0));
        if (cell.isTombstone())
            json.writeBooleanField("tombstone", true);
        if (expires)
            json.writeNumberField("ttl", cell.ttl());
        if (expires || cell.isTombstone())
            json.writeNumberField("ldt", cell.localDeletionTime());
        if (cell.isCounterCell())
            json.writeBooleanField("counter", true);
        hex("value", cell.buffer());
        json.writeEndObject();
    }

    private void deletion(String name, DeletionTime deletion) throws IOException
    {
        if (deletion.isLive())
            return;
        json.writeObjectFieldStart(name);
        times(deletion);
        json.writeEndObject();
    }

    private void times(DeletionTime deletion) throws IOException
    {
        json.writeNumberField("ts", deletion.markedForDeleteAt());
        json.writeNumberField("ldt", deletion.localDeletionTime());
    }

    private void hex(String name, ByteBuffer bytes) throws IOException
    {
        json.writeFieldName(name);
        hex(bytes);
    }

    private void hex(ByteBuffer bytes) throws IOException
    {
        if (bytes == null)
            json.writeNull();
        else
            json.writeString(ByteBufferUtil.bytesToHex(bytes));
    }
}
