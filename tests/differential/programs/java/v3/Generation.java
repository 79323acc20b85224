import com.alibaba.fastjson.JSONObject;
import com.alibaba.rocketmq.client.consumer.DefaultMQPullConsumer;
import com.alibaba.rocketmq.client.consumer.DefaultMQPushConsumer;
import com.alibaba.rocketmq.client.consumer.PullResult;
import com.alibaba.rocketmq.client.producer.DefaultMQProducer;
import com.alibaba.rocketmq.client.producer.LocalTransactionExecuter;
import com.alibaba.rocketmq.client.producer.SendResult;
import com.alibaba.rocketmq.client.producer.TransactionMQProducer;
import com.alibaba.rocketmq.client.producer.TransactionSendResult;
import com.alibaba.rocketmq.common.message.Message;
import com.alibaba.rocketmq.common.message.MessageAccessor;
import com.alibaba.rocketmq.common.message.MessageExt;
import com.alibaba.rocketmq.common.message.MessageQueue;
import java.util.List;

/** How the Java client 3.2.6 does what 4.9.8 does otherwise, and what it does not have. */
final class Generation {
    private Generation() {
    }

    static DefaultMQProducer transactionProducer(String name, String group) {
        TransactionMQProducer producer = new TransactionMQProducer(group);
        producer.setTransactionCheckListener(message -> Driver.askState("check", name, message));
        return producer;
    }

    static TransactionSendResult sendInTransaction(String name, DefaultMQProducer producer, Message message) throws Exception {
        LocalTransactionExecuter executer = (sent, ignored) -> Driver.askState("execute", name, sent);
        return producer.sendMessageInTransaction(message, executer, null);
    }

    static Object sendBatch(DefaultMQProducer producer, List<Message> messages, MessageQueue queue) {
        throw new UnsupportedOperationException("this client has no batches");
    }

    static Message request(DefaultMQProducer producer, Message message, JSONObject r) {
        throw new UnsupportedOperationException("this client has no requests");
    }

    static Object reply(DefaultMQProducer producer, MessageExt request, byte[] body) {
        throw new UnsupportedOperationException("this client has no replies");
    }

    static MessageExt view(DefaultMQProducer producer, String topic, String id) throws Exception {
        return producer.viewMessage(id);
    }

    static void property(Message message, String name, String value) {
        MessageAccessor.putProperty(message, name, value);
    }

    static JSONObject receipt(SendResult result) {
        JSONObject receipt = new JSONObject();
        receipt.put("status", result.getSendStatus().name());
        receipt.put("message_id", result.getMsgId());
        receipt.put("queue", Driver.describe(result.getMessageQueue()));
        receipt.put("queue_offset", result.getQueueOffset());
        return receipt;
    }

    static void subscribe(DefaultMQPushConsumer consumer, String topic, String expression) throws Exception {
        consumer.subscribe(topic, expression);
    }

    static PullResult pull(DefaultMQPullConsumer consumer, MessageQueue queue, String expression, long offset, int max)
        throws Exception {
        return consumer.pull(queue, expression, offset, max);
    }

    static void strategy(DefaultMQPushConsumer consumer, JSONObject wanted) {
        if (wanted != null) {
            throw new UnsupportedOperationException("strategies are tried with the newer client");
        }
    }

    static Object run(String op, JSONObject r) {
        throw new IllegalArgumentException("unknown op " + op);
    }
}
