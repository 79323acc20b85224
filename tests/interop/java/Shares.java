import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.*;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Shares by RocketMQ's own classes. A line of input is STRATEGY|OWN ID|MEMBER,...|BROKER:QUEUE ID,...; both lists are
 * sorted here as RebalanceImpl sorts them. A line of output is the input line, | and BROKER:QUEUE ID,... of the share.
 * Machine rooms: MACHINE_ROOM consumes those of the rooms r1 and r3; for MACHINE_ROOM_NEARBY a room is what stands before
 * "@" in a broker's name, and before "-" in a member's id.
 */
public class Shares {
    private static final String TOPIC = "t";

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "AVG": return new AllocateMessageQueueAveragely();
            case "AVG_BY_CIRCLE": return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH": return new AllocateMessageQueueConsistentHash();
            case "MACHINE_ROOM":
                AllocateMessageQueueByMachineRoom rooms = new AllocateMessageQueueByMachineRoom();
                rooms.setConsumeridcs(new HashSet<>(Arrays.asList("r1", "r3")));
                return rooms;
            case "MACHINE_ROOM_NEARBY-AVG":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), resolver());
            case "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragelyByCircle(), resolver());
            default: throw new IllegalArgumentException(name);
        }
    }

    private static AllocateMachineRoomNearby.MachineRoomResolver resolver() {
        return new AllocateMachineRoomNearby.MachineRoomResolver() {
            @Override public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().split("@")[0];
            }

            @Override public String consumerDeployIn(String clientId) {
                return clientId.split("-")[0];
            }
        };
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        java.io.PrintStream output = new java.io.PrintStream(System.out, false, "UTF-8");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split("\\|", -1);
            List<String> members = new ArrayList<>(Arrays.asList(parts[2].split(",")));
            List<MessageQueue> queues = new ArrayList<>();
            for (String one : parts[3].split(",")) {
                int colon = one.lastIndexOf(':');
                queues.add(new MessageQueue(TOPIC, one.substring(0, colon), Integer.parseInt(one.substring(colon + 1))));
            }
            Collections.sort(queues);
            Collections.sort(members);
            StringBuilder share = new StringBuilder();
            for (MessageQueue queue : strategy(parts[0]).allocate("group", parts[1], queues, members)) {
                share.append(share.length() == 0 ? "" : ",").append(queue.getBrokerName()).append(':').append(queue.getQueueId());
            }
            output.println(line + "|" + share);
        }
        output.flush();
    }
}
