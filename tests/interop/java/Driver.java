import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Steers the unchanged RocketMQ Java client from a test. The line protocol is told in ../driver.py.
 */
public final class Driver {
    /** For everything that comes if all is well: only a hang, and no starved machine, takes so long. */
    private static final int PATIENCE_MS = 300_000;

    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final PrintStream out;

    private Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // what a library prints must not look like an answer
        Driver driver = new Driver(out);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            driver.answer(JSON.parseObject(line));
        }
        System.exit(0); // client threads are not daemons
    }

    private void answer(JSONObject request) {
        JSONObject answer = new JSONObject();
        try {
            answer.put("result", run(request.getString("op"), request));
        } catch (MQBrokerException e) {
            answer.put("error", e.getErrorMessage());
            answer.put("code", e.getResponseCode());
        } catch (MQClientException e) {
            answer.put("error", e.getCause() == null ? e.toString() : e + "; caused by " + e.getCause());
            answer.put("code", e.getResponseCode());
        } catch (Throwable e) {
            answer.put("error", e.getCause() == null ? e.toString() : e + "; caused by " + e.getCause());
        }
        print(answer);
    }

    private void print(JSONObject line) {
        synchronized (out) {
            out.println(line.toJSONString());
        }
    }

    private Object run(String op, JSONObject request) throws Exception {
        switch (op) {
            case "producer":
                return startProducer(request);
            case "consumer":
                return startConsumer(request);
            case "send":
                return send(producers.get(request.getString("producer")), request);
            case "shutdown":
                return shutdown(request.getString("name"));
            case "create_topic":
                producers.get(request.getString("producer")).createTopic(
                    request.getString("cluster"), request.getString("topic"), request.getIntValue("queues"));
                return null;
            case "view":
                return describe(producers.get(request.getString("producer")).viewMessage(
                    request.getString("topic"), request.getString("id")));
            case "query":
                JSONArray found = new JSONArray();
                for (MessageExt message : producers.get(request.getString("producer")).queryMessage(
                        request.getString("topic"), request.getString("key"), 32, 0, Long.MAX_VALUE).getMessageList()) {
                    found.add(describe(message));
                }
                return found;
            case "owned":
                return owned(request.getString("consumer"), request.getString("topic"));
            case "queues":
                return queues(producers.get(request.getString("producer")), request.getString("topic"));
            default:
                throw new IllegalArgumentException("unknown op " + op);
        }
    }

    /** What signs the requests of a client with an account, or null. */
    private static RPCHook signing(JSONObject request) {
        return request.containsKey("access_key")
            ? new AclClientRPCHook(new SessionCredentials(request.getString("access_key"), request.getString("secret_key")))
            : null;
    }

    private Object startProducer(JSONObject request) throws Exception {
        DefaultMQProducer producer = request.getBooleanValue("transactional")
            ? transactional(request)
            : new DefaultMQProducer(null, request.getString("group"), signing(request),
                request.getBooleanValue("trace"), request.getString("trace_topic"));
        if (request.containsKey("namesrv")) { // else the address server says (-Drocketmq.namesrv.domain)
            producer.setNamesrvAddr(request.getString("namesrv"));
        }
        producer.setInstanceName(request.getString("name"));
        producer.setSendMsgTimeout(request.containsKey("send_ms") ? request.getIntValue("send_ms") : PATIENCE_MS);
        producer.setMqClientApiTimeout(PATIENCE_MS);
        producer.setVipChannelEnabled(request.getBooleanValue("vip"));
        if (request.containsKey("poll_ms")) {
            producer.setPollNameServerInterval(request.getIntValue("poll_ms"));
        }
        if (request.containsKey("heartbeat_ms")) {
            producer.setHeartbeatBrokerInterval(request.getIntValue("heartbeat_ms"));
        }
        if (request.containsKey("retries")) {
            producer.setRetryTimesWhenSendFailed(request.getIntValue("retries"));
        }
        if (request.containsKey("namespace")) {
            producer.setNamespace(request.getString("namespace"));
        }
        producer.start();
        producer.getDefaultMQProducerImpl().getmQClientFactory().getMQAdminImpl().setTimeoutMillis(PATIENCE_MS);
        producers.put(request.getString("name"), producer);
        return null;
    }

    /**
     * A producer whose transactions all stay open behind their sends. A check ends one by the tag of its message, `commit` or
     * `rollback`, and is a `checked` event with `state`.
     */
    private TransactionMQProducer transactional(JSONObject request) {
        String name = request.getString("name");
        TransactionMQProducer producer = new TransactionMQProducer(null, request.getString("group"), signing(request));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object ignored) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                LocalTransactionState state = "commit".equals(message.getTags())
                    ? LocalTransactionState.COMMIT_MESSAGE
                    : LocalTransactionState.ROLLBACK_MESSAGE;
                JSONObject event = describe(message);
                event.put("event", "checked");
                event.put("consumer", name);
                event.put("state", state.name());
                print(event);
                return state;
            }
        });
        return producer;
    }

    private Object startConsumer(JSONObject request) throws Exception {
        String name = request.getString("name");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(null, request.getString("group"), signing(request),
            new AllocateMessageQueueAveragely(), request.getBooleanValue("trace"), request.getString("trace_topic"));
        if (request.containsKey("namesrv")) { // else the address server says (-Drocketmq.namesrv.domain)
            consumer.setNamesrvAddr(request.getString("namesrv"));
        }
        consumer.setInstanceName(name);
        consumer.setMqClientApiTimeout(PATIENCE_MS);
        consumer.setVipChannelEnabled(request.getBooleanValue("vip"));
        if (request.containsKey("poll_ms")) {
            consumer.setPollNameServerInterval(request.getIntValue("poll_ms"));
        }
        if (request.containsKey("namespace")) {
            consumer.setNamespace(request.getString("namespace"));
        }
        consumer.setAwaitTerminationMillisWhenShutdown(5000); // what is under way is finished, then offsets are sent
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (request.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        if (request.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(request.getIntValue("max_reconsume_times"));
        }
        if (request.containsKey("strategy")) {
            consumer.setAllocateMessageQueueStrategy(strategy(request.getString("strategy")));
        }
        JSONObject topics = request.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            consumer.subscribe(topic, topics.getString(topic));
        }
        String failingTag = request.getString("fail_tag");
        Predicate<List<MessageExt>> failed = messages -> {
            boolean fails = false;
            for (MessageExt message : messages) {
                JSONObject event = describe(message);
                event.put("event", "message");
                event.put("consumer", name);
                print(event);
                fails |= failingTag != null && failingTag.equals(message.getTags());
            }
            return fails;
        };
        if (request.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> failed.test(messages)
                ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
                : ConsumeOrderlyStatus.SUCCESS);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> failed.test(messages)
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        }
        consumer.start();
        consumers.put(name, consumer);
        return null;
    }

    private static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            default:
                return new AllocateMessageQueueAveragely();
        }
    }

    /** Broker and queue id of the topic's queues that the consumer pulls now. */
    private Object owned(String name, String topic) {
        JSONArray queues = new JSONArray();
        consumers.get(name).getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().forEach((queue, taken) -> {
            if (queue.getTopic().equals(topic) && !taken.isDropped()) {
                JSONArray pair = new JSONArray();
                pair.add(queue.getBrokerName());
                pair.add(queue.getQueueId());
                queues.add(pair);
            }
        });
        return queues;
    }

    private Object shutdown(String name) {
        DefaultMQPushConsumer consumer = consumers.remove(name);
        if (consumer != null) {
            consumer.shutdown();
        }
        DefaultMQProducer producer = producers.remove(name);
        if (producer != null) {
            producer.shutdown();
        }
        return null;
    }

    private Object send(DefaultMQProducer producer, JSONObject request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object body : request.getJSONArray("bodies")) {
            messages.add(message(request, (String) body));
        }
        JSONArray receipts = new JSONArray();
        switch (request.getString("mode")) {
            case "sync":
                for (Message message : messages) {
                    receipts.add(receipt(producer.send(message)));
                }
                break;
            case "ordered":
                int key = request.getIntValue("ordering_key");
                for (Message message : messages) {
                    receipts.add(receipt(producer.send(message, (queues, ignored, k) -> queues.get((Integer) k % queues.size()), key)));
                }
                break;
            case "transaction":
                for (Message message : messages) {
                    receipts.add(receipt(((TransactionMQProducer) producer).sendMessageInTransaction(message, null)));
                }
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                receipts.add(receipt(producer.send(messages)));
                break;
            case "async":
                sendAsync(producer, messages, receipts);
                break;
            default:
                throw new IllegalArgumentException("unknown mode " + request.getString("mode"));
        }
        return receipts;
    }

    private static void sendAsync(DefaultMQProducer producer, List<Message> messages, JSONArray receipts) throws Exception {
        CountDownLatch answered = new CountDownLatch(messages.size());
        List<Throwable> failures = new ArrayList<>();
        for (Message message : messages) {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    synchronized (receipts) {
                        receipts.add(receipt(result));
                    }
                    answered.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    synchronized (receipts) {
                        failures.add(failure);
                    }
                    answered.countDown();
                }
            });
        }
        if (!answered.await(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(answered.getCount() + " asynchronous sends were not answered");
        }
        if (!failures.isEmpty()) {
            throw new IllegalStateException(failures.get(0));
        }
    }

    private static Message message(JSONObject request, String body) {
        Message message = new Message(request.getString("topic"), body.getBytes(StandardCharsets.UTF_8));
        if (request.containsKey("tag")) {
            message.setTags(request.getString("tag"));
        }
        if (request.containsKey("keys")) {
            message.setKeys(request.getString("keys"));
        }
        if (request.containsKey("delay_level")) {
            message.setDelayTimeLevel(request.getIntValue("delay_level"));
        }
        JSONObject properties = request.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                message.putUserProperty(name, properties.getString(name));
            }
        }
        return message;
    }

    private static JSONObject receipt(SendResult result) {
        JSONObject receipt = new JSONObject();
        receipt.put("status", result.getSendStatus().name());
        receipt.put("id", result.getMsgId());
        receipt.put("offset_id", result.getOffsetMsgId());
        receipt.put("broker", result.getMessageQueue().getBrokerName());
        receipt.put("queue_id", result.getMessageQueue().getQueueId());
        receipt.put("queue_offset", result.getQueueOffset());
        receipt.put("region", result.getRegionId());
        return receipt;
    }

    private static JSONObject describe(MessageExt message) {
        JSONObject event = new JSONObject();
        event.put("topic", message.getTopic());
        event.put("tag", message.getTags());
        event.put("keys", message.getKeys());
        event.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        event.put("id", message.getMsgId());
        event.put("queue_id", message.getQueueId());
        event.put("queue_offset", message.getQueueOffset());
        event.put("reconsume_times", message.getReconsumeTimes());
        event.put("born_ms", message.getBornTimestamp());
        event.put("store_ms", message.getStoreTimestamp());
        event.put("received_ms", System.currentTimeMillis());
        event.put("properties", message.getProperties());
        return event;
    }

    private static JSONArray queues(DefaultMQProducer producer, String topic) throws Exception {
        JSONArray described = new JSONArray();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            JSONObject row = new JSONObject();
            row.put("broker", queue.getBrokerName());
            row.put("queue_id", queue.getQueueId());
            row.put("min_offset", producer.minOffset(queue));
            row.put("max_offset", producer.maxOffset(queue));
            row.put("offset_at_start", producer.searchOffset(queue, 0));
            row.put("earliest_ms", producer.earliestMsgStoreTime(queue));
            described.add(row);
        }
        return described;
    }
}
