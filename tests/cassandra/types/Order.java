import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import org.apache.cassandra.config.DatabaseDescriptor;
import org.apache.cassandra.db.marshal.AbstractType;
import org.apache.cassandra.db.marshal.TypeParser;
import org.apache.cassandra.utils.ByteBufferUtil;

/** Answers each line "class, tab, hex, tab, hex" with -1, 0 or 1: how Cassandra's own comparator orders the values; with the
 * exception if it cannot. */
public final class Order
{
    public static void main(String[] arguments) throws Exception
    {
        DatabaseDescriptor.clientInitialization();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine())
        {
            String[] asked = line.split("\t", -1);
            AbstractType<?> type = TypeParser.parse(asked[0]);
            ByteBuffer one = ByteBufferUtil.hexToBytes(asked[1]), other = ByteBufferUtil.hexToBytes(asked[2]);
            answers.append("= ");
            try
            {
                answers.append(Integer.signum(type.compare(one, other)));
            }
            catch (RuntimeException error)
            {
                answers.append(error.getClass().getSimpleName());
            }
            answers.append('\n');
        }
        System.out.print(answers);
        System.out.flush();
        System.exit(0);
    }
}
