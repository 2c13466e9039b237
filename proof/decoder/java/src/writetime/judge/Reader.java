package writetime.judge;

import java.io.IOException;
import java.lang.reflect.Constructor;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import java.util.zip.CRC32;

import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.commitlog.CommitLogDescriptor;
import org.apache.cassandra.db.commitlog.CommitLogPosition;
import org.apache.cassandra.db.commitlog.CommitLogReadHandler;
import org.apache.cassandra.db.commitlog.CommitLogReader;
import org.apache.cassandra.schema.TableId;
import org.apache.cassandra.utils.JVMStabilityInspector;

/**
 * Cassandra's CommitLogReader, told to go on after every error, and to hand out a checksum of each mutation's bytes.
 *
 * What went wrong is kept: errors as the reader tells them, and whatever it threw.
 */
final class Reader
{
    /** Takes a mutation: the length of its bytes, where its entry ends, its segment, the CRC-32 of its bytes. */
    interface Taker
    {
        void take(Mutation mutation, int size, int position, CommitLogDescriptor segment, long crc) throws IOException;
    }

    /** `reason` and `permissible` as Cassandra says them. */
    record Problem(String file, String reason, boolean permissible, String message) {}

    private static final int ALL = -1;
    private static final Method READ = readMethod();

    final List<Problem> problems = new ArrayList<>();
    /** How many mutations were passed over because of a table that nobody knows, by its id. */
    final Map<String, Integer> unknown = new TreeMap<>();

    /** Read a file to its end, or as far as Cassandra goes. Throws nothing of what the file can be the cause of. */
    void read(Path file, Taker taker) throws IOException
    {
        Checking reader = new Checking();
        String name = file.getFileName().toString();
        try
        {
            invoke(reader, new Handler(name, taker, reader), file);
        }
        catch (InvocationTargetException thrown)
        {
            if (thrown.getCause() instanceof TakerFailed failed)
                throw failed.cause;
            problems.add(new Problem(name, "THROWN", false, thrown.getCause().toString()));
        }
        for (Map.Entry<TableId, AtomicInteger> entry : reader.getInvalidMutations())
            unknown.merge(entry.getKey().toString(), entry.getValue().get(), Integer::sum);
    }

    /** Read a file with the reader as it is. */
    static void iterate(Path file, Tally tally) throws Exception
    {
        invoke(new CommitLogReader(), tally, file);
    }

    /** Cassandra ends the JVM when memory runs out; a length that a damaged file claims is no reason for it. */
    static void surviveOutOfMemory()
    {
        JVMStabilityInspector.replaceKiller(new JVMStabilityInspector.Killer()
        {
            @Override
            public void killCurrentJVM(Throwable thrown, boolean quiet)
            {
            }
        });
    }

    /** The reader saves every mutation that it cannot decode as a file of its own. */
    void removeSavedMutations() throws IOException
    {
        if (problems.isEmpty())
            return;
        List<Path> saved;
        try (Stream<Path> files = Files.list(Path.of(System.getProperty("java.io.tmpdir"))))
        {
            saved = files.filter(file -> file.getFileName().toString().matches("mutation.*dat")).toList();
        }
        for (Path file : saved)
            Files.delete(file);
    }

    private static void invoke(CommitLogReader reader, CommitLogReadHandler handler, Path file) throws InvocationTargetException
    {
        try
        {
            READ.invoke(reader, handler, cassandraFile(file), ALL, true);
        }
        catch (IllegalAccessException error)
        {
            throw new LinkageError("CommitLogReader.readCommitLogSegment", error);
        }
    }

    // 4.0 takes java.io.File, later versions a class of their own that is made from one.
    private static Method readMethod()
    {
        for (Method method : CommitLogReader.class.getMethods())
        {
            Class<?>[] types = method.getParameterTypes();
            if (method.getName().equals("readCommitLogSegment") && types.length == 4 && types[2] == int.class && types[3] == boolean.class)
                return method;
        }
        throw new LinkageError("CommitLogReader.readCommitLogSegment");
    }

    private static Object cassandraFile(Path file)
    {
        Class<?> type = READ.getParameterTypes()[1];
        if (type == java.io.File.class)
            return file.toFile();
        try
        {
            Constructor<?> constructor = type.getConstructor(java.io.File.class);
            return constructor.newInstance(file.toFile());
        }
        catch (ReflectiveOperationException error)
        {
            throw new LinkageError(type.getName(), error);
        }
    }

    private static final class Checking extends CommitLogReader
    {
        private final CRC32 crc = new CRC32();

        @Override
        protected void readMutation(CommitLogReadHandler handler, byte[] buffer, int size, CommitLogPosition from, int position, CommitLogDescriptor descriptor)
        throws IOException
        {
            crc.reset();
            crc.update(buffer, 0, size);
            super.readMutation(handler, buffer, size, from, position, descriptor);
        }
    }

    private final class Handler implements CommitLogReadHandler
    {
        private final String file;
        private final Taker taker;
        private final Checking reader;

        Handler(String file, Taker taker, Checking reader)
        {
            this.file = file;
            this.taker = taker;
            this.reader = reader;
        }

        @Override
        public boolean shouldSkipSegmentOnError(CommitLogReadException error)
        {
            tell(error);
            return false;
        }

        @Override
        public void handleUnrecoverableError(CommitLogReadException error)
        {
            tell(error);
        }

        @Override
        public void handleMutation(Mutation mutation, int size, int position, CommitLogDescriptor descriptor)
        {
            try
            {
                taker.take(mutation, size, position, descriptor, reader.crc.getValue());
            }
            catch (IOException error)
            {
                throw new TakerFailed(error);
            }
        }

        private void tell(CommitLogReadException error)
        {
            problems.add(new Problem(file, error.reason.name(), error.permissible, error.getMessage()));
        }
    }

    private static final class TakerFailed extends RuntimeException
    {
        private final IOException cause;

        TakerFailed(IOException cause)
        {
            super(cause);
            this.cause = cause;
        }
    }
}
