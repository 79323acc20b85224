import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByConfig;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What the Java client 4.9.8 has, and how it does what 3.2.6 does otherwise. */
final class Generation {
    private static final Map<String, DefaultLitePullConsumer> LITE = new ConcurrentHashMap<>();

    private Generation() {
    }

    static DefaultMQProducer transactionProducer(String name, String group) {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object ignored) {
                return Driver.askState("execute", name, message);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return Driver.askState("check", name, message);
            }
        });
        return producer;
    }

    static TransactionSendResult sendInTransaction(String name, DefaultMQProducer producer, Message message) throws Exception {
        return producer.sendMessageInTransaction(message, null);
    }

    static Object sendBatch(DefaultMQProducer producer, List<Message> messages, MessageQueue queue) throws Exception {
        return receipt(queue == null ? producer.send(messages) : producer.send(messages, queue));
    }

    /** Ask, and wait for the reply. By callback this client hands out null as soon as the request is sent. */
    static Message request(DefaultMQProducer producer, Message message, JSONObject r) throws Exception {
        long timeout = r.getLongValue("timeout_ms");
        return r.containsKey("queue") ? producer.request(message, Driver.queue(r), timeout) : producer.request(message, timeout);
    }

    static Object reply(DefaultMQProducer producer, MessageExt request, byte[] body) throws Exception {
        return receipt(producer.send(MessageUtil.createReplyMessage(request, body)));
    }

    static MessageExt view(DefaultMQProducer producer, String topic, String id) throws Exception {
        return producer.viewMessage(topic, id);
    }

    static void property(Message message, String name, String value) {
        MessageAccessor.putProperty(message, name, value); // also those that only RocketMQ itself should set
    }

    static JSONObject receipt(SendResult result) {
        JSONObject receipt = new JSONObject();
        receipt.put("status", result.getSendStatus().name());
        receipt.put("message_id", result.getMsgId());
        receipt.put("offset_message_id", result.getOffsetMsgId());
        receipt.put("queue", Driver.describe(result.getMessageQueue()));
        receipt.put("queue_offset", result.getQueueOffset());
        receipt.put("transaction_id", result.getTransactionId());
        receipt.put("region", result.getRegionId());
        receipt.put("trace", result.isTraceOn());
        return receipt;
    }

    /** A text that begins with "SQL " is a condition on properties, any other a tag expression. */
    static void subscribe(DefaultMQPushConsumer consumer, String topic, String expression) throws Exception {
        if (expression.startsWith("SQL ")) {
            consumer.subscribe(topic, MessageSelector.bySql(expression.substring(4)));
        } else {
            consumer.subscribe(topic, expression);
        }
    }

    static PullResult pull(DefaultMQPullConsumer consumer, MessageQueue queue, String expression, long offset, int max)
        throws Exception {
        if (expression.startsWith("SQL ")) {
            return consumer.pull(queue, MessageSelector.bySql(expression.substring(4)), offset, max);
        }
        return consumer.pull(queue, expression, offset, max);
    }

    static void strategy(DefaultMQPushConsumer consumer, JSONObject wanted) {
        if (wanted == null) {
            return;
        }
        switch (wanted.getString("kind")) {
            case "circle":
                consumer.setAllocateMessageQueueStrategy(new AllocateMessageQueueAveragelyByCircle());
                break;
            case "hash":
                consumer.setAllocateMessageQueueStrategy(new AllocateMessageQueueConsistentHash());
                break;
            case "config":
                AllocateMessageQueueByConfig config = new AllocateMessageQueueByConfig();
                List<MessageQueue> queues = new ArrayList<>();
                for (Object queue : wanted.getJSONArray("queues")) {
                    queues.add(Driver.queue((JSONObject) queue));
                }
                config.setMessageQueueList(queues);
                consumer.setAllocateMessageQueueStrategy(config);
                break;
            case "room":
                AllocateMessageQueueByMachineRoom room = new AllocateMessageQueueByMachineRoom();
                room.setConsumeridcs(new HashSet<>(wanted.getJSONArray("rooms").toJavaList(String.class)));
                consumer.setAllocateMessageQueueStrategy(room);
                break;
            case "nearby":
                consumer.setAllocateMessageQueueStrategy(new AllocateMachineRoomNearby(
                    new AllocateMessageQueueAveragely(), new AllocateMachineRoomNearby.MachineRoomResolver() {
                        @Override
                        public String brokerDeployIn(MessageQueue queue) {
                            return "room-" + queue.getQueueId() % 2;
                        }

                        @Override
                        public String consumerDeployIn(String id) {
                            return "room-" + (id.endsWith("1") ? 1 : 0);
                        }
                    }));
                break;
            default:
                throw new IllegalArgumentException("unknown strategy " + wanted);
        }
    }

    /** The lite pull consumer, which is new in this generation. */
    static Object run(String op, JSONObject r) throws Exception {
        String name = r.getString("name");
        switch (op) {
            case "lite":
                DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(r.getString("group"));
                consumer.setNamesrvAddr(r.getString("namesrv"));
                consumer.setInstanceName(name);
                consumer.setAutoCommit(r.getBooleanValue("auto_commit"));
                if (r.containsKey("topic")) {
                    consumer.subscribe(r.getString("topic"), r.getString("expression"));
                }
                consumer.start();
                LITE.put(name, consumer);
                return null;
            case "lite_assign":
                List<MessageQueue> queues = new ArrayList<>();
                for (Object queue : r.getJSONArray("queues")) {
                    queues.add(Driver.queue((JSONObject) queue));
                }
                LITE.get(name).assign(queues);
                return null;
            case "lite_poll":
                JSONArray messages = new JSONArray();
                for (MessageExt message : LITE.get(name).poll(r.getLongValue("timeout_ms"))) {
                    messages.add(Driver.describe(message));
                }
                return messages;
            case "lite_seek":
                LITE.get(name).seek(Driver.queue(r), r.getLongValue("offset"));
                return null;
            case "lite_seek_to":
                if (r.getString("where").equals("begin")) {
                    LITE.get(name).seekToBegin(Driver.queue(r));
                } else {
                    LITE.get(name).seekToEnd(Driver.queue(r));
                }
                return null;
            case "lite_queues":
                return Driver.describe(LITE.get(name).fetchMessageQueues(r.getString("topic")));
            case "lite_commit":
                LITE.get(name).commitSync();
                return null;
            case "lite_committed":
                return LITE.get(name).committed(Driver.queue(r));
            case "lite_shutdown":
                LITE.remove(name).shutdown();
                return null;
            default:
                throw new IllegalArgumentException("unknown op " + op);
        }
    }
}
