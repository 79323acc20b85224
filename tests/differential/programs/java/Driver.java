import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MQPullConsumerScheduleService;
import org.apache.rocketmq.client.consumer.MessageQueueListener;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Steers an unchanged RocketMQ Java client from a test. The protocol of lines is told in ../../program.py.
 *
 * One source for all generations of the client: the packages of 3.2.6 begin with com.alibaba, which is replaced before it is
 * compiled; what else differs is in `Generation`, of which v3 and v4 have one each.
 */
public final class Driver {
    private static final Map<Long, CompletableFuture<Object>> ASKED = new ConcurrentHashMap<>();
    private static final AtomicLong QUESTIONS = new AtomicLong();
    private static PrintStream out;

    private final Map<String, DefaultMQProducer> producers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new ConcurrentHashMap<>();
    private final Map<String, DefaultMQPullConsumer> pullers = new ConcurrentHashMap<>();
    private final Map<String, MQPullConsumerScheduleService> schedules = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // what a library prints must not look like an answer
        Driver driver = new Driver();
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JSONObject request = JSON.parseObject(line);
            if (request.containsKey("reply")) {
                ASKED.remove(request.getLong("reply")).complete(request.get("value"));
            } else {
                threads.execute(() -> driver.answer(request));
            }
        }
        Runtime.getRuntime().halt(0); // client threads are not daemons
    }

    private void answer(JSONObject request) {
        JSONObject answer = new JSONObject();
        answer.put("id", request.get("id"));
        try {
            answer.put("result", run(request.getString("op"), request));
        } catch (Throwable e) {
            answer.put("error", failure(e));
        }
        print(answer);
    }

    static JSONObject failure(Throwable e) {
        JSONObject error = new JSONObject();
        error.put("class", e.getClass().getSimpleName());
        error.put("text", String.valueOf(e.getMessage()));
        if (e instanceof MQBrokerException) {
            error.put("code", ((MQBrokerException) e).getResponseCode());
            error.put("text", ((MQBrokerException) e).getErrorMessage());
        } else if (e instanceof MQClientException) {
            error.put("code", ((MQClientException) e).getResponseCode());
        }
        if (e.getCause() != null) {
            error.put("cause", failure(e.getCause()));
        }
        return error;
    }

    private static void print(JSONObject line) {
        String text = JSON.toJSONString(line, SerializerFeature.WriteMapNullValue, SerializerFeature.DisableCircularReferenceDetect);
        synchronized (out) {
            out.println(text);
        }
    }

    static void tell(String event, String name, JSONObject more) {
        more.put("event", event);
        more.put("name", name);
        print(more);
    }

    /** Ask the test, and wait until it answers. */
    static Object ask(String event, String name, JSONObject more) {
        long number = QUESTIONS.incrementAndGet();
        CompletableFuture<Object> answer = new CompletableFuture<>();
        ASKED.put(number, answer);
        more.put("ask", number);
        tell(event, name, more);
        try {
            return answer.get();
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    private Object run(String op, JSONObject r) throws Exception {
        String name = r.getString("name");
        switch (op) {
            case "producer":
                return startProducer(name, r);
            case "push":
                return startPush(name, r);
            case "pull_consumer":
                return startPull(name, r);
            case "schedule":
                return startSchedule(name, r);
            case "send":
                return send(producers.get(name), r);
            case "send_each": // one after the other, in one thread: a producer's rotation is the thread's
                JSONArray receipts = new JSONArray();
                for (Object body : r.getJSONArray("bodies")) {
                    r.put("body", body);
                    receipts.add(send(producers.get(name), r));
                }
                return receipts;
            case "send_in_transaction":
                return sendInTransaction(name, r);
            case "request":
                return describe(Generation.request(producers.get(name), message(r), r));
            case "call":
                return call(r);
            case "queues":
                return describe(producers.get(name).fetchPublishMessageQueues(r.getString("topic")));
            case "offsets":
                return offsets(producers.get(name), r);
            case "view":
                return describe(Generation.view(producers.get(name), r.getString("topic"), r.getString("message_id")));
            case "query":
                return query(producers.get(name), r);
            case "pull":
                return pull(pullers.get(name), r);
            case "suspend":
                consumers.get(name).suspend();
                return null;
            case "resume":
                consumers.get(name).resume();
                return null;
            case "subscribe":
                Generation.subscribe(consumers.get(name), r.getString("topic"), r.getString("expression"));
                return null;
            case "unsubscribe":
                consumers.get(name).unsubscribe(r.getString("topic"));
                return null;
            case "shutdown":
                shutdown(name);
                return null;
            default:
                return Generation.run(op, r);
        }
    }

    private static void configure(ClientConfig client, String name, JSONObject r) throws Exception {
        client.setNamesrvAddr(r.getString("namesrv"));
        client.setInstanceName(name);
        JSONObject options = r.getJSONObject("options");
        if (options != null) {
            for (String option : options.keySet()) {
                set(client, option, options.get(option));
            }
        }
    }

    /** Call the setter of that option with the value, whatever type it takes. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void set(Object object, String option, Object value) throws Exception {
        String setter = "set" + Character.toUpperCase(option.charAt(0)) + option.substring(1);
        for (Method method : object.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterTypes().length == 1) {
                Class<?> type = method.getParameterTypes()[0];
                if (type.isEnum()) {
                    method.invoke(object, Enum.valueOf((Class<? extends Enum>) type, (String) value));
                } else if (type == int.class) {
                    method.invoke(object, ((Number) value).intValue());
                } else if (type == long.class) {
                    method.invoke(object, ((Number) value).longValue());
                } else {
                    method.invoke(object, value);
                }
                return;
            }
        }
        throw new IllegalArgumentException("this client has no option " + option);
    }

    private Object startProducer(String name, JSONObject r) throws Exception {
        DefaultMQProducer producer = r.getBooleanValue("transactions")
            ? Generation.transactionProducer(name, r.getString("group"))
            : new DefaultMQProducer(r.getString("group"));
        configure(producer, name, r);
        producer.start();
        producers.put(name, producer);
        return null;
    }

    private Object startPush(String name, JSONObject r) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(r.getString("group"));
        configure(consumer, name, r);
        Generation.strategy(consumer, r.getJSONObject("strategy"));
        if (r.getBooleanValue("own_strategy")) {
            consumer.setAllocateMessageQueueStrategy(asking(name));
        }
        JSONObject topics = r.getJSONObject("topics");
        for (String topic : topics.keySet()) {
            Generation.subscribe(consumer, topic, topics.getString(topic));
        }
        if (r.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                JSONObject answer = consume(name, messages, context.getMessageQueue());
                if (answer.containsKey("autoCommit")) {
                    context.setAutoCommit(answer.getBooleanValue("autoCommit"));
                }
                if (answer.containsKey("suspendCurrentQueueTimeMillis")) {
                    context.setSuspendCurrentQueueTimeMillis(answer.getLongValue("suspendCurrentQueueTimeMillis"));
                }
                return orderlyStatus(answer.getString("status"));
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                JSONObject answer = consume(name, messages, context.getMessageQueue());
                if (answer.containsKey("delayLevelWhenNextConsume")) {
                    context.setDelayLevelWhenNextConsume(answer.getIntValue("delayLevelWhenNextConsume"));
                }
                if (answer.containsKey("ackIndex")) {
                    context.setAckIndex(answer.getIntValue("ackIndex"));
                }
                return status(answer.getString("status"));
            });
        }
        consumers.put(name, consumer);
        consumer.start();
        return null;
    }

    private JSONObject consume(String name, List<MessageExt> messages, MessageQueue queue) {
        JSONObject question = new JSONObject();
        JSONArray described = new JSONArray();
        for (MessageExt message : messages) {
            described.add(describe(message));
        }
        question.put("messages", described);
        question.put("queue", describe(queue));
        JSONObject answer = (JSONObject) ask("consume", name, question);
        if (answer.containsKey("throw")) {
            throw new IllegalStateException(answer.getString("throw"));
        }
        if (answer.containsKey("reply")) {
            for (MessageExt message : messages) {
                tell("replied", name, replied(message, answer));
            }
        }
        return answer;
    }

    /** Reply to a request by a producer of ours, and say what came of it. */
    private JSONObject replied(MessageExt request, JSONObject answer) {
        JSONObject outcome = new JSONObject();
        try {
            byte[] body = answer.getString("reply").getBytes(StandardCharsets.UTF_8);
            outcome.put("receipt", Generation.reply(producers.get(answer.getString("by")), request, body));
        } catch (Exception e) {
            outcome.put("threw", failure(e));
        }
        return outcome;
    }

    private static ConsumeConcurrentlyStatus status(String word) {
        return word == null ? null
            : word.equals("ok") ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
    }

    @SuppressWarnings("deprecation")
    private static ConsumeOrderlyStatus orderlyStatus(String word) {
        if (word == null) {
            return null;
        }
        switch (word) {
            case "ok":
                return ConsumeOrderlyStatus.SUCCESS;
            case "commit":
                return ConsumeOrderlyStatus.COMMIT;
            case "rollback":
                return ConsumeOrderlyStatus.ROLLBACK;
            default:
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
        }
    }

    private static AllocateMessageQueueStrategy asking(String name) {
        return new AllocateMessageQueueStrategy() {
            @Override
            public List<MessageQueue> allocate(String group, String id, List<MessageQueue> queues, List<String> ids) {
                JSONObject question = new JSONObject();
                question.put("queues", describe(queues));
                question.put("ids", ids);
                List<MessageQueue> chosen = new ArrayList<>();
                for (Object number : (JSONArray) ask("allocate", name, question)) {
                    chosen.add(queues.get(((Number) number).intValue()));
                }
                return chosen;
            }

            @Override
            public String getName() {
                return "ASKING";
            }
        };
    }

    private Object startPull(String name, JSONObject r) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(r.getString("group"));
        configure(consumer, name, r);
        JSONArray topics = r.getJSONArray("topics");
        if (topics != null) {
            for (Object topic : topics) {
                consumer.registerMessageQueueListener((String) topic, listener(name));
            }
        }
        consumer.start();
        pullers.put(name, consumer);
        return null;
    }

    private static MessageQueueListener listener(String name) {
        return (topic, all, mine) -> {
            JSONObject event = new JSONObject();
            event.put("topic", topic);
            event.put("all", describe(all));
            event.put("mine", describe(mine));
            tell("queues", name, event);
        };
    }

    private Object startSchedule(String name, JSONObject r) throws Exception {
        MQPullConsumerScheduleService service = new MQPullConsumerScheduleService(r.getString("group"));
        configure(service.getDefaultMQPullConsumer(), name, r);
        String topic = r.getString("topic");
        service.registerPullTaskCallback(topic, (queue, context) -> {
            JSONObject question = new JSONObject();
            question.put("queue", describe(queue));
            try {
                org.apache.rocketmq.client.consumer.MQPullConsumer consumer = context.getPullConsumer();
                long offset = Math.max(0, consumer.fetchConsumeOffset(queue, false));
                PullResult result = consumer.pull(queue, "*", offset, 32);
                question.put("offset", offset);
                question.put("result", describe(result));
                ask("pulled", name, question);
                consumer.updateConsumeOffset(queue, result.getNextBeginOffset());
            } catch (Exception e) {
                question.put("error", failure(e));
                tell("pull_failed", name, question);
            }
            context.setPullNextDelayTimeMillis(200);
        });
        service.start();
        schedules.put(name, service);
        return null;
    }

    private Object shutdown(String name) {
        DefaultMQPushConsumer consumer = consumers.remove(name);
        if (consumer != null) {
            consumer.shutdown();
        }
        DefaultMQPullConsumer puller = pullers.remove(name);
        if (puller != null) {
            puller.shutdown();
        }
        MQPullConsumerScheduleService schedule = schedules.remove(name);
        if (schedule != null) {
            schedule.shutdown();
        }
        DefaultMQProducer producer = producers.remove(name);
        if (producer != null) {
            producer.shutdown();
        }
        return null;
    }

    private Object send(DefaultMQProducer producer, JSONObject r) throws Exception {
        Message message = message(r);
        switch (r.getString("mode")) {
            case "sync":
                return Generation.receipt(r.containsKey("queue") ? producer.send(message, queue(r)) : producer.send(message));
            case "selector":
                return Generation.receipt(producer.send(message, (queues, ignored, key) ->
                    queues.get(Math.abs(key.hashCode()) % queues.size()), r.getString("key")));
            case "oneway":
                if (r.containsKey("queue")) {
                    producer.sendOneway(message, queue(r));
                } else {
                    producer.sendOneway(message);
                }
                return null;
            case "async":
                CompletableFuture<Object> answer = new CompletableFuture<>();
                SendCallback callback = new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        answer.complete(Generation.receipt(result));
                    }

                    @Override
                    public void onException(Throwable failure) {
                        answer.complete(failure);
                    }
                };
                if (r.containsKey("queue")) {
                    producer.send(message, queue(r), callback, producer.getSendMsgTimeout()); // 3.2.6 never ends without the time-out
                } else {
                    producer.send(message, callback);
                }
                Object outcome = answer.get();
                if (outcome instanceof Exception) {
                    throw (Exception) outcome;
                }
                return outcome;
            case "batch":
                List<Message> messages = new ArrayList<>();
                for (Object one : r.getJSONArray("messages")) {
                    messages.add(message((JSONObject) one));
                }
                return Generation.sendBatch(producer, messages, r.containsKey("queue") ? queue(r) : null);
            default:
                throw new IllegalArgumentException("unknown mode " + r.getString("mode"));
        }
    }

    private Object sendInTransaction(String name, JSONObject r) throws Exception {
        TransactionSendResult result = Generation.sendInTransaction(name, producers.get(name), message(r));
        JSONObject receipt = Generation.receipt(result);
        receipt.put("local_state", result.getLocalTransactionState().name());
        return receipt;
    }

    static LocalTransactionState askState(String event, String name, Message message) {
        JSONObject question = message instanceof MessageExt ? describe((MessageExt) message) : new JSONObject();
        question.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        question.put("topic", message.getTopic());
        Object answer = ask(event, name, question);
        if (answer instanceof JSONObject) {
            throw new IllegalStateException(((JSONObject) answer).getString("throw"));
        }
        return answer == null ? null : LocalTransactionState.valueOf((String) answer);
    }

    /** Call a method of a producer or consumer that takes strings, numbers, booleans and queues only. */
    private Object call(JSONObject r) throws Exception {
        String name = r.getString("name");
        Object target = producers.containsKey(name) ? producers.get(name)
            : consumers.containsKey(name) ? consumers.get(name) : pullers.get(name);
        JSONArray arguments = r.getJSONArray("arguments");
        for (Method method : target.getClass().getMethods()) {
            if (method.getName().equals(r.getString("method")) && method.getParameterTypes().length == arguments.size()) {
                Object[] values = new Object[arguments.size()];
                boolean fits = true;
                for (int i = 0; i < values.length; i++) {
                    Class<?> type = method.getParameterTypes()[i];
                    Object value = arguments.get(i);
                    values[i] = value instanceof JSONObject ? queue((JSONObject) value)
                        : type == long.class && value instanceof Number ? (Object) ((Number) value).longValue() : value;
                    fits &= type.isPrimitive() ? !(values[i] instanceof String) : values[i] == null || type.isInstance(values[i]);
                }
                if (fits) {
                    try {
                        return plain(method.invoke(target, values));
                    } catch (java.lang.reflect.InvocationTargetException e) {
                        throw (Exception) e.getCause();
                    }
                }
            }
        }
        throw new IllegalArgumentException("no such method " + r.getString("method"));
    }

    private static Object plain(Object value) {
        if (value instanceof MessageExt) {
            return describe((MessageExt) value);
        }
        if (value instanceof Collection) {
            Collection<?> many = (Collection<?>) value;
            if (!many.isEmpty() && many.iterator().next() instanceof MessageQueue) {
                Set<MessageQueue> queues = new HashSet<>();
                many.forEach(one -> queues.add((MessageQueue) one));
                return describe(queues);
            }
        }
        return value instanceof PullResult ? describe((PullResult) value) : value;
    }

    private static Object offsets(DefaultMQProducer producer, JSONObject r) throws Exception {
        MessageQueue queue = queue(r.getJSONObject("queue"));
        JSONObject row = new JSONObject();
        row.put("min", producer.minOffset(queue));
        row.put("max", producer.maxOffset(queue));
        row.put("at_0", producer.searchOffset(queue, 0));
        row.put("at_end", producer.searchOffset(queue, Long.MAX_VALUE / 2));
        row.put("has_earliest", producer.earliestMsgStoreTime(queue) > 0);
        return row;
    }

    private static Object query(DefaultMQProducer producer, JSONObject r) throws Exception {
        QueryResult result = producer.queryMessage(
            r.getString("topic"), r.getString("key"), r.getIntValue("max"), r.getLongValue("begin"), r.getLongValue("end"));
        JSONArray found = new JSONArray();
        for (MessageExt message : result.getMessageList()) {
            found.add(describe(message));
        }
        return found;
    }

    private static Object pull(DefaultMQPullConsumer consumer, JSONObject r) throws Exception {
        MessageQueue queue = queue(r.getJSONObject("queue"));
        String expression = r.getString("expression");
        long offset = r.getLongValue("offset");
        int max = r.getIntValue("max");
        return describe(r.getBooleanValue("hold")
            ? consumer.pullBlockIfNotFound(queue, expression, offset, max)
            : Generation.pull(consumer, queue, expression, offset, max));
    }

    static MessageQueue queue(JSONObject r) {
        JSONObject queue = r.containsKey("queue") ? r.getJSONObject("queue") : r;
        return new MessageQueue(queue.getString("topic"), queue.getString("broker"), queue.getIntValue("queue_id"));
    }

    static Message message(JSONObject r) {
        String body = r.getString("body");
        if (r.containsKey("times")) {
            StringBuilder long_ = new StringBuilder();
            for (int i = 0; i < r.getIntValue("times"); i++) {
                long_.append(body);
            }
            body = long_.toString();
        }
        Message message = new Message(r.getString("topic"), body == null ? null : body.getBytes(StandardCharsets.UTF_8));
        if (r.containsKey("tag")) {
            message.setTags(r.getString("tag"));
        }
        if (r.containsKey("keys")) {
            message.setKeys(r.getString("keys"));
        }
        if (r.containsKey("delay_level")) {
            message.setDelayTimeLevel(r.getIntValue("delay_level"));
        }
        if (r.containsKey("flag")) {
            message.setFlag(r.getIntValue("flag"));
        }
        if (r.containsKey("wait")) {
            message.setWaitStoreMsgOK(r.getBooleanValue("wait"));
        }
        JSONObject properties = r.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                Generation.property(message, name, properties.getString(name));
            }
        }
        return message;
    }

    static JSONObject describe(Message message) {
        return describe((MessageExt) message); // what a reply comes as
    }

    static JSONObject describe(MessageExt message) {
        JSONObject row = new JSONObject();
        row.put("topic", message.getTopic());
        row.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        row.put("flag", message.getFlag());
        row.put("sys_flag", message.getSysFlag());
        row.put("queue_id", message.getQueueId());
        row.put("queue_offset", message.getQueueOffset());
        row.put("reconsume_times", message.getReconsumeTimes());
        row.put("is_prepared", message.getPreparedTransactionOffset() > 0); // below 0: docs/formats/extensions.md
        row.put("message_id", message.getMsgId());
        row.put("born_host", message.getBornHostString());
        row.put("store_host", String.valueOf(message.getStoreHost()));
        row.put("born_before_store", message.getBornTimestamp() <= message.getStoreTimestamp());
        row.put("waited_ms", message.getStoreTimestamp() - message.getBornTimestamp());
        row.put("properties", message.getProperties());
        return row;
    }

    static JSONObject describe(PullResult result) {
        JSONObject row = new JSONObject();
        row.put("status", result.getPullStatus().name());
        row.put("next", result.getNextBeginOffset());
        row.put("min", result.getMinOffset());
        row.put("max", result.getMaxOffset());
        JSONArray messages = new JSONArray();
        if (result.getMsgFoundList() != null) {
            for (MessageExt message : result.getMsgFoundList()) {
                messages.add(describe(message));
            }
        }
        row.put("messages", messages);
        return row;
    }

    static JSONArray describe(Collection<MessageQueue> queues) {
        JSONArray described = new JSONArray();
        List<MessageQueue> sorted = new ArrayList<>(queues);
        java.util.Collections.sort(sorted);
        for (MessageQueue queue : sorted) {
            described.add(describe(queue));
        }
        return described;
    }

    static JSONObject describe(MessageQueue queue) {
        JSONObject row = new JSONObject();
        row.put("topic", queue.getTopic());
        row.put("broker", queue.getBrokerName());
        row.put("queue_id", queue.getQueueId());
        return row;
    }
}
