import com.alibaba.fastjson.JSON;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.SqlFilter;

/**
 * Says what RocketMQ's SQL filter makes of messages: the first line of input is a list of property texts, each further
 * line an expression, all in JSON. Per expression a line of output with a letter per text: T, F, N for null, X for a
 * failed evaluation; or an empty line if the expression does not compile.
 */
public final class SqlFilters {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err); // what a library prints must not look like an answer
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        List<Properties> messages = new ArrayList<>();
        for (Object text : JSON.parseArray(lines.readLine())) {
            messages.add(new Properties(MessageDecoder.string2messageProperties((String) text)));
        }
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(results((String) JSON.parse(line), messages));
        }
        out.flush();
    }

    private static String results(String text, List<Properties> messages) {
        Expression compiled;
        try {
            compiled = new SqlFilter().compile(text);
        } catch (Exception e) {
            return "";
        }
        StringBuilder letters = new StringBuilder();
        for (Properties message : messages) {
            try {
                Object result = compiled.evaluate(message);
                letters.append(result == null ? 'N' : (Boolean) result ? 'T' : 'F');
            } catch (Exception e) {
                letters.append('X');
            }
        }
        return letters.toString();
    }

    private static final class Properties implements EvaluationContext {
        private final Map<String, String> values;

        Properties(Map<String, String> values) {
            this.values = values;
        }

        @Override
        public Object get(String name) {
            return values.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new java.util.HashMap<>(values);
        }
    }
}
