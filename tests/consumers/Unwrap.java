import io.debezium.transforms.ExtractNewRecordState;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/** Reads records as lines, topic, key and value with tabs between them (an empty one is null), as Kafka Connect does with JsonConverter,
 * sends them through ExtractNewRecordState, and prints what comes out as JSON without schemas: a line each, empty where nothing comes. */
public class Unwrap {
    public static void main(String[] arguments) throws Exception {
        JsonConverter keys = converter(true, true), values = converter(false, true), plain = converter(false, false);
        ExtractNewRecordState<SourceRecord> unwrap = new ExtractNewRecordState<>();
        unwrap.configure(Map.of("delete.tombstone.handling.mode", "rewrite", "add.fields", arguments[0]));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        java.io.PrintStream out = new java.io.PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            SchemaAndValue key = keys.toConnectData(parts[0], bytes(parts[1])), value = values.toConnectData(parts[0], bytes(parts[2]));
            SourceRecord record = new SourceRecord(
                Map.of(), Map.of(), parts[0], null, key.schema(), key.value(), value.schema(), value.value());
            SourceRecord made = unwrap.apply(record);
            byte[] told = made == null ? null : plain.fromConnectData(parts[0], made.valueSchema(), made.value());
            out.println(told == null ? "" : new String(told, StandardCharsets.UTF_8));
        }
    }

    private static byte[] bytes(String text) {
        return text.isEmpty() ? null : text.getBytes(StandardCharsets.UTF_8);
    }

    private static JsonConverter converter(boolean isKey, boolean schemas) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", schemas), isKey);
        return made;
    }
}
