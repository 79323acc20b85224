import com.taobao.metamorphosis.client.consumer.ConsisHashStrategy;
import com.taobao.metamorphosis.client.consumer.DefaultLoadBalanceStrategy;
import com.taobao.metamorphosis.client.consumer.LoadBalanceStrategy;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;

/**
 * Shares of partitions by the classes of the MetaQ 1.4.6.2 client. A line of input is STRATEGY|OWN ID|MEMBER,...|BROKER:COUNT,...;
 * both lists are sorted here as ConsumerZooKeeper sorts them. A line of output is the input line, | and BROKER-NUMBER,... of the share, sorted.
 */
public final class Metaq1Shares {
    private static LoadBalanceStrategy strategy(String name) {
        switch (name) {
            case "DEFAULT": return new DefaultLoadBalanceStrategy();
            case "CONSIST": return new ConsisHashStrategy();
            default: throw new IllegalArgumentException(name);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, false, "UTF-8");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\\|", -1);
            List<String> members = new ArrayList<>(Arrays.asList(parts[2].split(",")));
            List<String> partitions = new ArrayList<>();
            for (String one : parts[3].split(",")) {
                String[] place = one.split(":");
                for (int number = 0; number < Integer.parseInt(place[1]); number++) {
                    partitions.add(place[0] + "-" + number);
                }
            }
            Collections.sort(members);
            Collections.sort(partitions);
            List<String> share = new ArrayList<>(strategy(parts[0]).getPartitions("t", parts[1], members, partitions));
            Collections.sort(share); // that of CONSIST comes out of a HashSet
            output.println(line + "|" + String.join(",", share));
        }
        output.flush();
    }
}
