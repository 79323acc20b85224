import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * Says what RocketMQ's own classes hold after reading a JSON text: per line of input `class TAB text`, one line of
 * output, the object written again with its nulls, or an empty line if it was refused.
 */
public final class Fastjson {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err); // what a library prints must not look like an answer
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int tab = line.indexOf('\t');
            out.println(read(Class.forName(line.substring(0, tab)), line.substring(tab + 1)));
        }
        out.flush();
    }

    private static String read(Class<?> type, String text) {
        try {
            Object value = RemotingSerializable.decode(text.getBytes(StandardCharsets.UTF_8), type);
            return JSON.toJSONString(value, SerializerFeature.WriteMapNullValue, SerializerFeature.MapSortField);
        } catch (Exception e) {
            return "";
        }
    }
}
