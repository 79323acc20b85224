import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.Connection;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Asks what the pages of RocketMQ's dashboard ask, with the admin client that it is built on, and tells what each call returned: JSON
 * with sorted keys and lists, or the code of the error.
 */
final class Dashboard {
    private interface Step {
        Object run() throws Exception;
    }

    private final JSONArray found = new JSONArray();
    private final JSONObject with;
    private final String topic;
    private final String group;
    private final String broker;
    private final String cluster;
    private DefaultMQAdminExt admin;

    Dashboard(JSONObject with) {
        this.with = with;
        topic = with.getString("topic");
        group = with.getString("group");
        broker = with.getString("broker");
        cluster = with.getString("cluster");
    }

    JSONArray replay() throws Exception {
        admin = new DefaultMQAdminExt(with.getLongValue("patience"));
        admin.setNamesrvAddr(with.getString("namesrv"));
        admin.setInstanceName("dashboard-" + System.nanoTime());
        admin.start();
        try {
            clusterPage();
            topicPage();
            consumerPage();
            producerPage();
            messagePage();
            charts();
            changes();
        } finally {
            admin.shutdown();
        }
        return found;
    }

    private void clusterPage() {
        tell("cluster", () -> admin.examineBrokerClusterInfo());
        tell("runtime keys", () -> new TreeSet<>(admin.fetchBrokerRuntimeStats(broker).getTable().keySet()));
        tell("broker configuration", () -> admin.getBrokerConfig(broker).stringPropertyNames());
        tell("name server configuration", () -> admin.getNameServerConfig(null).values().iterator().next().stringPropertyNames());
        tell("clusters of a topic", () -> admin.getClusterList(topic));
    }

    private void topicPage() {
        tell("topics", () -> admin.fetchAllTopicList());
        tell("topics of the cluster", () -> admin.fetchTopicsByCLuster(cluster));
        tell("route", () -> admin.examineTopicRouteInfo(topic));
        tell("no route", () -> admin.examineTopicRouteInfo("nowhere"));
        tell("topic statistics", () -> admin.examineTopicStats(topic));
        tell("groups of a topic", () -> admin.queryTopicConsumeByWho(topic));
        tell("topic settings", () -> admin.examineTopicConfig(broker, topic));
        tell("all topic settings", () -> admin.getUserTopicConfig(broker, true, 5000).getTopicConfigTable());
    }

    private void consumerPage() {
        tell("groups", () -> admin.getAllSubscriptionGroup(broker, 5000).getSubscriptionGroupTable());
        tell("user groups", () -> admin.getUserSubscriptionGroup(broker, 5000).getSubscriptionGroupTable());
        tell("group settings", () -> admin.examineSubscriptionGroupConfig(broker, group));
        tell("progress", () -> admin.examineConsumeStats(group).getOffsetTable());
        tell("progress in a topic", () -> admin.examineConsumeStats(group, topic).getOffsetTable());
        tell("progress of nobody", () -> admin.examineConsumeStats("nobody"));
        tell("members", () -> admin.examineConsumerConnectionInfo(group));
        tell("no members", () -> admin.examineConsumerConnectionInfo("nobody"));
        tell("state of a member", () -> admin.getConsumerRunningInfo(group, member(), false));
        tell("state of nobody", () -> admin.getConsumerRunningInfo(group, "nobody", false));
        tell("positions of members", () -> admin.getConsumeStatus(topic, group, null));
        tell("positions of one member", () -> admin.getConsumeStatus(topic, group, member()));
        tell("time spans", () -> admin.queryConsumeTimeSpan(topic, group));
        tell("all progress", () -> admin.fetchConsumeStatsInBroker(broker, false, 5000).getConsumeStatsList());
        tell("ordered progress", () -> admin.fetchConsumeStatsInBroker(broker, true, 5000).getConsumeStatsList());
        tell("units", () -> admin.queryConsumeQueue(broker, topic, 0, 0, 2, group));
    }

    private void producerPage() {
        tell("producers of a group", () -> admin.examineProducerConnectionInfo(with.getString("producers"), topic));
        tell("no producers", () -> admin.examineProducerConnectionInfo("nobody", topic));
        tell("all producers", () -> admin.getAllProducerInfo(broker).getData());
    }

    private void messagePage() throws Exception {
        tell("message by id", () -> described(admin.viewMessage(topic, with.getString("offset_id"))));
        tell("message by unique id", () -> described(admin.viewMessage(topic, with.getString("unique_id"))));
        tell("no message", () -> described(admin.viewMessage(topic, with.getString("missing_id"))));
        tell("messages by key", () -> described(admin.queryMessage(topic, "key-1", 64, 0, Long.MAX_VALUE).getMessageList()));
        tell("no messages", () -> described(admin.queryMessage(topic, "nothing", 64, 0, Long.MAX_VALUE).getMessageList()));
        tell("no trace", () -> described(admin.queryMessage("RMQ_SYS_TRACE_TOPIC", "x", 64, 0, Long.MAX_VALUE).getMessageList()));
        tell("track of a message", () -> admin.messageTrackDetail(admin.viewMessage(topic, with.getString("offset_id"))));
        DefaultMQPullConsumer reader = new DefaultMQPullConsumer("TOOLS_CONSUMER");
        reader.setNamesrvAddr(with.getString("namesrv"));
        reader.setInstanceName("dashboard-reader-" + System.nanoTime());
        reader.start();
        try {
            List<MessageQueue> queues = new ArrayList<>(reader.fetchSubscribeMessageQueues(topic));
            Collections.sort(queues);
            tell("queues", () -> queues);
            for (MessageQueue queue : queues) {
                tell("messages by time", () -> {
                    long begin = reader.searchOffset(queue, 0);
                    PullResult pulled = reader.pull(queue, "*", begin, 32);
                    return new Object[] {begin, reader.minOffset(queue), reader.maxOffset(queue), pulled.getPullStatus(),
                        described(pulled.getMsgFoundList())};
                });
            }
        } finally {
            reader.shutdown();
        }
        tell("a message consumed again", () -> {
            JSONObject result = (JSONObject) JSON.toJSON(admin.consumeMessageDirectly(group, member(), topic, with.getString("offset_id")));
            result.remove("spentTimeMills");
            return result;
        });
        tell("a message consumed by nobody", () -> admin.consumeMessageDirectly(group, "nobody", topic, with.getString("offset_id")));
    }

    private void charts() {
        tell("unknown statistics", () -> admin.viewBrokerStatsData(broker, "NO_SUCH_NAME", topic));
        tell("puts of a topic", () -> admin.viewBrokerStatsData(broker, "TOPIC_PUT_NUMS", topic).getStatsDay().getSum() > 0);
        tell("gets of a group", () -> admin.viewBrokerStatsData(broker, "GROUP_GET_NUMS", topic + "@" + group).getStatsDay().getSum() > 0);
    }

    private void changes() throws Exception {
        tell("topic made", () -> {
            admin.createAndUpdateTopicConfig(broker, new TopicConfig("by-dashboard", 3, 3, 6));
            return admin.examineTopicConfig(broker, "by-dashboard");
        });
        tell("test message", () -> {
            DefaultMQProducer producer = new DefaultMQProducer("SELF_TEST_P_GROUP");
            producer.setNamesrvAddr(with.getString("namesrv"));
            producer.setInstanceName("dashboard-producer-" + System.nanoTime());
            producer.start();
            try {
                return producer.send(new Message("by-dashboard", "tag", "key", "hello".getBytes(StandardCharsets.UTF_8)),
                    new MessageQueue("by-dashboard", "broker-a", 1)).getSendStatus();
            } finally {
                producer.shutdown();
            }
        });
        tell("group made", () -> {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName("by-dashboard");
            config.setRetryMaxTimes(3);
            admin.createAndUpdateSubscriptionGroupConfig(broker, config);
            return admin.examineSubscriptionGroupConfig(broker, "by-dashboard");
        });
        tell("positions copied", () -> {
            admin.cloneGroupOffset(group, "by-dashboard", topic, false);
            return admin.examineConsumeStats("by-dashboard", topic).getOffsetTable();
        });
        tell("positions of an offline group moved", () -> admin.resetOffsetByTimestampOld("by-dashboard", topic, 0, true));
        tell("option changed", () -> {
            Properties properties = new Properties();
            properties.setProperty("fileReservedTime", "47");
            admin.updateBrokerConfig(broker, properties);
            return admin.getBrokerConfig(broker).getProperty("fileReservedTime");
        });
        tell("cleaned", () -> new boolean[] {admin.cleanExpiredConsumerQueue(cluster), admin.cleanUnusedTopic(cluster),
            admin.deleteExpiredCommitLog(cluster)});
        tell("group deleted", () -> {
            admin.deleteSubscriptionGroup(broker, "by-dashboard", true);
            return admin.getUserSubscriptionGroup(broker, 5000).getSubscriptionGroupTable().containsKey("by-dashboard");
        });
        tell("topic deleted", () -> {
            admin.deleteTopicInBroker(Collections.singleton(broker), "by-dashboard");
            admin.deleteTopicInNameServer(Collections.singleton(with.getString("namesrv")), "by-dashboard", cluster);
            return admin.fetchAllTopicList().getTopicList().contains("by-dashboard");
        });
    }

    private String member() throws Exception {
        Set<Connection> members = admin.examineConsumerConnectionInfo(group).getConnectionSet();
        return members.iterator().next().getClientId();
    }

    private void tell(String name, Step step) {
        String text;
        try {
            text = text(step.run());
        } catch (MQClientException e) {
            text = "code " + e.getResponseCode();
        } catch (MQBrokerException e) {
            text = "code " + e.getResponseCode();
        } catch (Exception e) {
            text = e.toString();
        }
        JSONArray row = new JSONArray();
        row.add(name);
        row.add(text);
        found.add(row);
    }

    private static String text(Object value) {
        return sorted(JSON.toJSON(value));
    }

    private static String sorted(Object tree) {
        if (tree instanceof JSONObject) {
            JSONObject copy = new JSONObject();
            for (Map.Entry<String, Object> entry : ((JSONObject) tree).entrySet()) {
                copy.put(entry.getKey(), JSON.parse(sorted(entry.getValue())));
            }
            return copy.toString(SerializerFeature.MapSortField);
        }
        if (tree instanceof JSONArray) {
            List<String> texts = new ArrayList<>();
            for (Object item : (JSONArray) tree) {
                texts.add(sorted(item));
            }
            texts.sort(Comparator.naturalOrder());
            return "[" + String.join(",", texts) + "]";
        }
        return JSON.toJSONString(tree);
    }

    private static JSONArray described(List<MessageExt> messages) {
        JSONArray all = new JSONArray();
        for (MessageExt message : messages) {
            all.add(described(message));
        }
        return all;
    }

    private static JSONObject described(MessageExt message) {
        JSONObject one = new JSONObject();
        one.put("topic", message.getTopic());
        one.put("queueId", message.getQueueId());
        one.put("queueOffset", message.getQueueOffset());
        one.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        one.put("properties", message.getProperties());
        one.put("bornTimestamp", message.getBornTimestamp());
        one.put("reconsumeTimes", message.getReconsumeTimes());
        return one;
    }
}
