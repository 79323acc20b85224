import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MessageSessionFactory;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.Shutdownable;
import com.taobao.metamorphosis.client.StatsResult;
import com.taobao.metamorphosis.client.TopicBrowser;
import com.taobao.metamorphosis.client.XAMessageSessionFactory;
import com.taobao.metamorphosis.client.XAMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.LoadBalanceStrategy;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.client.extension.BroadcastMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.ExtMetaMessageSessionFactory;
import com.taobao.metamorphosis.client.extension.consumer.ConsumerRecoverType;
import com.taobao.metamorphosis.client.extension.log4j.StreamAppender;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.client.producer.XAMessageProducer;
import com.taobao.metamorphosis.cluster.Partition;
import com.taobao.metamorphosis.consumer.MessageIterator;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import javax.transaction.xa.XAException;
import javax.transaction.xa.XAResource;
import javax.transaction.xa.Xid;
import org.apache.log4j.Level;
import org.apache.log4j.Logger;
import org.apache.log4j.SimpleLayout;
import org.codehaus.jackson.JsonNode;
import org.codehaus.jackson.map.ObjectMapper;

/**
 * Steers the unchanged MetaQ 1.4.6.2 Java client from a test. The line protocol is told in ../driver.py, the operations
 * in ../metaq1.py.
 */
public final class Metaq1Driver {
    /** For everything that comes if all is well: only a hang, and no starved machine, takes so long. */
    private static final int PATIENCE_MS = 300_000;

    private static final ObjectMapper JSON = new ObjectMapper();

    private final Map<String, Shutdownable> open = new ConcurrentHashMap<>();
    private final Map<String, XAResource> resources = new ConcurrentHashMap<>();
    private final PrintStream out;

    private Metaq1Driver(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err); // what a library prints must not look like an answer
        Metaq1Driver driver = new Metaq1Driver(out);
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            driver.answer(JSON.readTree(line));
        }
        Runtime.getRuntime().halt(0); // the client's own shutdown hooks wait for brokers that may be gone
    }

    private void answer(JsonNode request) throws IOException {
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("result", run(text(request, "op"), request));
        } catch (XAException e) {
            answer.put("error", e.toString());
            answer.put("code", e.errorCode);
        } catch (Throwable e) {
            answer.put("error", e.getCause() == null ? e.toString() : e + "; caused by " + e.getCause());
        }
        print(answer);
    }

    private void print(Map<String, Object> line) throws IOException {
        String written = JSON.writeValueAsString(line);
        synchronized (out) {
            out.println(written);
        }
    }

    private Object run(String op, JsonNode request) throws Exception {
        switch (op) {
            case "factory":
                open.put(text(request, "name"), factory(request));
                return null;
            case "producer":
                open.put(text(request, "name"), newProducer(request));
                return null;
            case "consumer":
                open.put(text(request, "name"), newConsumer(request));
                return null;
            case "publish":
                producer(request).publish(text(request, "topic"));
                return null;
            case "default_topic":
                producer(request).setDefaultTopic(text(request, "topic"));
                return null;
            case "send":
                return send(producer(request), request);
            case "begin":
                if (number(request, "timeout", 0) > 0) {
                    producer(request).setTransactionTimeout((int) number(request, "timeout", 0));
                }
                producer(request).beginTransaction();
                return null;
            case "commit":
                producer(request).commit();
                return null;
            case "rollback":
                producer(request).rollback();
                return null;
            case "xa":
                return xa(request);
            case "get":
                return get(request);
            case "browse":
                return browse(request);
            case "partitions":
                List<String> names = new ArrayList<>();
                for (Partition partition : factoryOf(request).getPartitionsForTopic(text(request, "topic"))) {
                    names.add(partition.toString());
                }
                return names;
            case "log":
                log(request);
                return null;
            case "stats":
                return stats(factoryOf(request), text(request, "item"));
            case "shutdown":
                resources.remove(text(request, "name"));
                open.remove(text(request, "name")).shutdown();
                return null;
            default:
                throw new IllegalArgumentException(op);
        }
    }

    private MetaMessageSessionFactory factory(JsonNode request) throws Exception {
        MetaClientConfig config = new MetaClientConfig();
        config.setRecoverMessageIntervalInMills(number(request, "recover_ms", 300_000));
        if (text(request, "url") != null) {
            config.setServerUrl(text(request, "url"));
        } else {
            ZKConfig zookeeper = new ZKConfig();
            zookeeper.zkConnect = text(request, "zookeeper");
            zookeeper.zkSyncTimeMs = (int) number(request, "sync_ms", 200); // its wait behind a failed rebalance
            zookeeper.zkConnectionTimeoutMs = PATIENCE_MS;
            if (text(request, "root") != null) {
                zookeeper.zkRoot = text(request, "root");
            }
            config.setZkConfig(zookeeper);
        }
        switch (String.valueOf(text(request, "kind"))) {
            case "xa":
                return new XAMetaMessageSessionFactory(config);
            case "extension":
                return new ExtMetaMessageSessionFactory(config);
            default:
                return new MetaMessageSessionFactory(config);
        }
    }

    private MetaMessageSessionFactory factoryOf(JsonNode request) {
        return (MetaMessageSessionFactory) open.get(text(request, "factory"));
    }

    private MessageProducer producer(JsonNode request) {
        return (MessageProducer) open.get(text(request, "producer"));
    }

    private MessageProducer newProducer(JsonNode request) throws Exception {
        MessageSessionFactory factory = factoryOf(request);
        if (!(factory instanceof XAMessageSessionFactory)) {
            MessageProducer producer = factory.createProducer();
            producer.setTransactionRequestTimeout(PATIENCE_MS, TimeUnit.MILLISECONDS);
            return producer;
        }
        XAMessageProducer producer = ((XAMessageSessionFactory) factory).createXAProducer();
        producer.setTransactionRequestTimeout(PATIENCE_MS, TimeUnit.MILLISECONDS);
        if (text(request, "qualifier") != null) {
            producer.setUniqueQualifierPrefix(text(request, "qualifier"));
        }
        return producer;
    }

    private static Message message(JsonNode request, String body) {
        byte[] data = body.getBytes(StandardCharsets.UTF_8);
        String attribute = text(request, "attribute");
        String topic = text(request, "topic");
        return attribute == null ? new Message(topic, data) : new Message(topic, data, attribute);
    }

    private List<Object> send(MessageProducer producer, JsonNode request) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (JsonNode body : request.get("bodies")) {
            messages.add(message(request, body.getTextValue()));
        }
        List<Object> results = new ArrayList<>();
        long patience = number(request, "timeout_ms", PATIENCE_MS);
        if ("callback".equals(text(request, "mode"))) {
            return callbacks(producer, messages, patience);
        }
        for (Message message : messages) {
            results.add(receipt(message, producer.sendMessage(message, patience, TimeUnit.MILLISECONDS)));
        }
        return results;
    }

    private static List<Object> callbacks(MessageProducer producer, List<Message> messages, long patience)
            throws Exception {
        Object[] results = new Object[messages.size()];
        CountDownLatch left = new CountDownLatch(results.length);
        for (int i = 0; i < results.length; i++) {
            final int place = i;
            SendMessageCallback callback =
                    new SendMessageCallback() {
                        @Override
                        public void onMessageSent(SendResult result) {
                            results[place] = receipt(messages.get(place), result);
                            left.countDown();
                        }

                        @Override
                        public void onException(Throwable e) {
                            Map<String, Object> failed = new HashMap<>();
                            failed.put("ok", false);
                            failed.put("error", e.toString());
                            results[place] = failed;
                            left.countDown();
                        }
                    };
            producer.sendMessage(messages.get(place), callback, patience, TimeUnit.MILLISECONDS);
        }
        if (!left.await(PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(left.getCount() + " callbacks did not come");
        }
        return Arrays.asList(results);
    }

    private static Map<String, Object> receipt(Message message, SendResult result) {
        Map<String, Object> receipt = new HashMap<>();
        receipt.put("ok", result.isSuccess());
        receipt.put("id", message.getId());
        receipt.put("partition", result.getPartition() == null ? null : result.getPartition().toString());
        receipt.put("offset", result.getOffset());
        receipt.put("error", result.getErrorMessage());
        return receipt;
    }

    private Object xa(JsonNode request) throws Exception {
        String name = text(request, "producer");
        String verb = text(request, "verb");
        if (verb.equals("start") || !resources.containsKey(name)) {
            XAResource resource = ((XAMessageProducer) producer(request)).getXAResource();
            resource.setTransactionTimeout((int) number(request, "timeout", 0));
            resources.put(name, resource);
        }
        XAResource resource = resources.get(name);
        Branch branch = new Branch(request);
        switch (verb) {
            case "start":
                resource.start(branch, XAResource.TMNOFLAGS);
                return null;
            case "end":
                resource.end(branch, XAResource.TMSUCCESS);
                return null;
            case "prepare":
                return resource.prepare(branch);
            case "commit":
                resource.commit(branch, request.path("one_phase").getBooleanValue());
                return null;
            case "rollback":
                resource.rollback(branch);
                return null;
            case "forget":
                resource.forget(branch);
                return null;
            case "recover":
                List<String> found = new ArrayList<>();
                for (Xid xid : resource.recover(XAResource.TMSTARTRSCAN)) {
                    found.add(
                            xid.getFormatId()
                                    + ":"
                                    + new String(xid.getGlobalTransactionId(), StandardCharsets.ISO_8859_1)
                                    + ":"
                                    + new String(xid.getBranchQualifier(), StandardCharsets.ISO_8859_1));
                }
                return found;
            default:
                throw new IllegalArgumentException(verb);
        }
    }

    /** A branch of the test's own making. */
    private static final class Branch implements Xid {
        private final int format;
        private final byte[] global;
        private final byte[] qualifier;

        Branch(JsonNode request) {
            format = (int) number(request, "format", 7);
            global = bytes(request, "global");
            qualifier = bytes(request, "branch");
        }

        private static byte[] bytes(JsonNode request, String name) {
            String value = text(request, name);
            return value == null ? new byte[0] : value.getBytes(StandardCharsets.ISO_8859_1);
        }

        @Override
        public int getFormatId() {
            return format;
        }

        @Override
        public byte[] getGlobalTransactionId() {
            return global;
        }

        @Override
        public byte[] getBranchQualifier() {
            return qualifier;
        }
    }

    private MessageConsumer newConsumer(JsonNode request) throws Exception {
        String name = text(request, "name");
        ConsumerConfig config = new ConsumerConfig(text(request, "group"));
        if (text(request, "id") != null) {
            config.setConsumerId(text(request, "id"));
        }
        if (request.path("from_max").getBooleanValue()) {
            config.setConsumeFromMaxOffset();
        }
        if ("CONSIST".equals(text(request, "strategy"))) {
            config.setLoadBalanceStrategyType(LoadBalanceStrategy.Type.CONSIST);
        }
        config.setOffset(number(request, "offset", config.getOffset()));
        config.setCommitOffsetPeriodInMills(number(request, "commit_ms", 100));
        config.setMaxDelayFetchTimeInMills(number(request, "max_delay_ms", 500));
        config.setMaxFetchRetries((int) number(request, "max_fetch_retries", 5));
        config.setFetchTimeoutInMills(PATIENCE_MS);
        MetaMessageSessionFactory factory = factoryOf(request);
        MessageConsumer consumer;
        if (request.path("broadcast").getBooleanValue()) {
            consumer = ((BroadcastMessageSessionFactory) factory).createBroadcastConsumer(config);
        } else if (text(request, "recover") != null) {
            consumer =
                    ((ExtMetaMessageSessionFactory) factory)
                            .createConsumer(config, ConsumerRecoverType.valueOf(text(request, "recover")));
        } else {
            consumer = factory.createConsumer(config);
        }
        consumer.setRejectConsumptionHandler((message, who) -> event("rejected", name, message));
        Map<String, Integer> failures = new ConcurrentHashMap<>(); // body → how many more times it fails
        Iterator<String> bodies = request.path("fail").getFieldNames();
        while (bodies.hasNext()) {
            String body = bodies.next();
            failures.put(body, request.path("fail").get(body).getIntValue());
        }
        Iterator<String> topics = request.get("topics").getFieldNames();
        while (topics.hasNext()) {
            String topic = topics.next();
            consumer.subscribe(topic, request.get("topics").get(topic).getIntValue(), listener(name, failures));
        }
        consumer.completeSubscribe();
        return consumer;
    }

    private MessageListener listener(String name, Map<String, Integer> failures) {
        return new MessageListener() {
            @Override
            public void recieveMessages(Message message) {
                event("message", name, message);
                String body = new String(message.getData(), StandardCharsets.UTF_8);
                int left = failures.getOrDefault(body, 0);
                if (left > 0) {
                    failures.put(body, left - 1);
                    throw new IllegalStateException("the test has " + body + " fail");
                }
            }

            @Override
            public Executor getExecutor() {
                return null;
            }
        };
    }

    private static Map<String, Object> told(Message message) {
        Map<String, Object> told = new HashMap<>();
        told.put("topic", message.getTopic());
        told.put("body", new String(message.getData(), StandardCharsets.UTF_8));
        told.put("attribute", message.getAttribute());
        told.put("id", message.getId());
        told.put("partition", message.getPartition() == null ? null : message.getPartition().toString());
        return told;
    }

    private void event(String kind, String consumer, Message message) {
        Map<String, Object> event = told(message);
        event.put("event", kind);
        event.put("consumer", consumer);
        try {
            print(event);
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Through the appender of client-extension, as a program with log4j would. */
    private static void log(JsonNode request) {
        StreamAppender appender = new StreamAppender(new SimpleLayout(), System.err);
        appender.setTopic(text(request, "topic"));
        appender.setZkConnect(text(request, "zookeeper"));
        appender.setEncodeType(1);
        appender.activateOptions();
        Logger logger = Logger.getLogger("metaq.interop." + text(request, "topic"));
        logger.setLevel(Level.INFO);
        logger.addAppender(appender);
        for (JsonNode line : request.get("lines")) {
            logger.info(line.getTextValue());
        }
    }

    private Object get(JsonNode request) throws Exception {
        MessageConsumer consumer = (MessageConsumer) open.get(text(request, "consumer"));
        MessageIterator found =
                consumer.get(
                        text(request, "topic"),
                        new Partition(text(request, "partition")),
                        number(request, "offset", 0),
                        (int) number(request, "max_size", 1 << 20),
                        PATIENCE_MS,
                        TimeUnit.MILLISECONDS);
        if (found == null) {
            return null;
        }
        List<Object> messages = new ArrayList<>();
        while (found.hasNext()) {
            messages.add(told(found.next()));
        }
        Map<String, Object> answer = new HashMap<>();
        answer.put("messages", messages);
        answer.put("parsed", found.getOffset());
        return answer;
    }

    private Object browse(JsonNode request) throws Exception {
        TopicBrowser browser =
                factoryOf(request).createTopicBrowser(text(request, "topic"), 1 << 20, PATIENCE_MS, TimeUnit.MILLISECONDS);
        List<Object> messages = new ArrayList<>();
        Iterator<Message> each = browser.iterator();
        while (each.hasNext()) {
            messages.add(told(each.next()));
        }
        browser.shutdown();
        return messages;
    }

    private static Object stats(MetaMessageSessionFactory factory, String item) throws Exception {
        Map<InetSocketAddress, StatsResult> all = item == null ? factory.getStats() : factory.getStats(item);
        Map<String, Object> answer = new HashMap<>();
        for (Map.Entry<InetSocketAddress, StatsResult> entry : all.entrySet()) {
            answer.put(
                    entry.getKey().getAddress().getHostAddress() + ":" + entry.getKey().getPort(),
                    entry.getValue().getAllValues());
        }
        return answer;
    }

    private static String text(JsonNode request, String name) {
        JsonNode value = request.get(name);
        return value == null || value.isNull() ? null : value.getTextValue();
    }

    private static long number(JsonNode request, String name, long otherwise) {
        JsonNode value = request.get(name);
        return value == null || value.isNull() ? otherwise : value.getLongValue();
    }
}
