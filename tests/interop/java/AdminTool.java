import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs commands of mqadmin one after the other in one process, and returns what each prints; or what Dashboard finds. The line
 * protocol is told in ../driver.py.
 */
public final class AdminTool {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            try {
                answer.put("result", request.getString("op").equals("dashboard")
                    ? new Dashboard(request).replay() : printed(request.getJSONArray("arguments")));
            } catch (Throwable e) {
                answer.put("error", e.toString());
            }
            out.println(answer.toJSONString());
        }
        System.exit(0); // threads of clients are not daemons
    }

    private static String printed(JSONArray arguments) throws Exception {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capturing = new PrintStream(printed, true, "UTF-8");
        System.setOut(capturing);
        System.setErr(capturing);
        Commands.run(arguments.toArray(new String[0]));
        capturing.flush();
        return printed.toString("UTF-8");
    }

    private static final class Commands extends MQAdminStartup {
        static void run(String[] arguments) {
            subCommandList.clear(); // some commands keep a client that they have shut down
            main0(arguments, null);
        }
    }
}
