package writetime.judge;

import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.io.PrintStream;
import java.io.Writer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Collectors;
import java.util.stream.Stream;

import org.apache.cassandra.config.DatabaseDescriptor;

/**
 * What Cassandra's own CommitLogReader makes of segments. Needs no node; the version is the one on the class path.
 *
 * <pre>
 * dump FOLDER OUT              every mutation of the folder's segments as a line of JSON in OUT; a summary on stdout
 * each FOLDER                  a path per line on stdin, and on stdout a line of JSON with all that the reader delivers of that file, damaged or not
 * bench FOLDER PASSES          decode the folder's segments that often on one thread; a line of JSON per pass
 * bench FOLDER                 the same, a pass for each line on stdin
 * </pre>
 *
 * FOLDER is where the schema is learnt from: all system_schema mutations in its segments, before anything else is done.
 */
public final class Judge
{
    // Cassandra speaks on stdout when it is not asked to; what is said here must stay readable by machines.
    private static final PrintStream OUT = System.out;

    public static void main(String[] arguments) throws Exception
    {
        System.setOut(System.err);
        DatabaseDescriptor.toolInitialization(false);
        Since6.initialize();
        Reader.surviveOutOfMemory();
        List<Path> segments = segments(Path.of(arguments[1]));
        Learner learner = new Learner();
        for (Path segment : segments)
            new Reader().read(segment, (mutation, size, position, descriptor, crc) -> learner.take(mutation));
        learner.register();
        switch (arguments[0])
        {
            case "dump" -> dump(segments, Path.of(arguments[2]));
            case "each" -> each();
            case "bench" -> bench(segments, arguments.length > 2 ? Integer.parseInt(arguments[2]) : Integer.MAX_VALUE, arguments.length > 2);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        OUT.flush();
        // Cassandra's threads would keep the program alive.
        System.exit(0);
    }

    /** Segments of a folder in the order of their ids. */
    private static List<Path> segments(Path folder) throws IOException
    {
        try (Stream<Path> files = Files.list(folder))
        {
            return files.filter(file -> file.getFileName().toString().matches("CommitLog-\\d+-\\d+\\.log"))
                        .sorted(Comparator.comparingLong(Judge::idOf))
                        .collect(Collectors.toList());
        }
    }

    private static long idOf(Path segment)
    {
        String name = segment.getFileName().toString();
        return Long.parseLong(name.substring(name.lastIndexOf('-') + 1, name.length() - ".log".length()));
    }

    private static void dump(List<Path> segments, Path out) throws Exception
    {
        Reader reader = new Reader();
        try (Writer writer = Files.newBufferedWriter(out, StandardCharsets.UTF_8))
        {
            for (Path segment : segments)
                reader.read(segment, (mutation, size, position, descriptor, crc) -> {
                    writer.write(Lines.line(mutation, size, position, descriptor, null));
                    writer.write('\n');
                });
        }
        OUT.println(Lines.report(null, List.of(), reader));
    }

    private static void each() throws Exception
    {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Writer writer = new BufferedWriter(new OutputStreamWriter(OUT, StandardCharsets.UTF_8));
        for (String name = in.readLine(); name != null; name = in.readLine())
        {
            Reader reader = new Reader();
            List<String> lines = new ArrayList<>();
            reader.read(Path.of(name), (mutation, size, position, descriptor, crc) -> lines.add(Lines.line(mutation, size, position, descriptor, crc)));
            reader.removeSavedMutations();
            writer.write(Lines.report(name, lines, reader));
            writer.write('\n');
            writer.flush();
        }
    }

    private static void bench(List<Path> segments, int passes, boolean unasked) throws Exception
    {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        long bytes = 0;
        for (Path segment : segments)
            bytes += Files.size(segment);
        for (int pass = 1; pass <= passes && (unasked || in.readLine() != null); pass++)
        {
            Tally tally = new Tally();
            long begun = System.nanoTime();
            // The plain reader: nothing of ours stands between it and the bytes.
            for (Path segment : segments)
                Reader.iterate(segment, tally);
            OUT.println(tally.report(pass, segments.size(), bytes, (System.nanoTime() - begun) / 1e9));
            OUT.flush();
        }
    }
}
