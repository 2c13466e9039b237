package writetime.judge;

import java.util.Locale;

import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.partitions.PartitionUpdate;
import org.apache.cassandra.db.rows.Cell;
import org.apache.cassandra.db.rows.ColumnData;
import org.apache.cassandra.db.rows.ComplexColumnData;
import org.apache.cassandra.db.rows.Row;

/** Goes over every cell that is handed to it, and does nothing but count: what a consumer cannot do less than. */
final class Tally implements CommitLogReadHandler
{
    private long mutations, updates, rows, cells, valueBytes;

    @Override
    public boolean shouldSkipSegmentOnError(CommitLogReadException error)
    {
        throw new IllegalStateException(error);
    }

    @Override
    public void handleUnrecoverableError(CommitLogReadException error)
    {
        throw new IllegalStateException(error);
    }

    @Override
    public void handleMutation(Mutation mutation, int size, int position, CommitLogDescriptor descriptor)
    {
        mutations++;
        for (PartitionUpdate update : mutation.getPartitionUpdates())
        {
            updates++;
            count(update.staticRow());
            for (Row row : update)
            {
                rows++;
                count(row);
            }
        }
    }

    /** A line of JSON; rates are per second. */
    String report(int pass, int segments, long bytes, double seconds)
    {
        return String.format(Locale.ROOT,
                             "{\"pass\":%d,\"seconds\":%.4f,\"segments\":%d,\"bytes\":%d,\"mutations\":%d,\"updates\":%d,\"rows\":%d,\"cells\":%d,"
                             + "\"value_bytes\":%d,\"mb_per_second\":%.1f,\"mutations_per_second\":%.0f,\"cells_per_second\":%.0f}",
                             pass, seconds, segments, bytes, mutations, updates, rows, cells,
                             valueBytes, bytes / 1e6 / seconds, mutations / seconds, cells / seconds);
    }

    private void count(Row row)
    {
        for (ColumnData data : row)
        {
            if (data instanceof ComplexColumnData complex)
                for (Cell<?> cell : complex)
                    count(cell);
            else
                count((Cell<?>) data);
        }
    }

    private void count(Cell<?> cell)
    {
        cells++;
        valueBytes += cell.valueSize();
    }
}
