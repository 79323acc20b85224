import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** One orderly consumer with an empty listener: NAMESRV TOPIC COUNT, prints messages a second from the first to the last. */
public class OrderlyRate {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        AtomicInteger seen = new AtomicInteger();
        AtomicLong began = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("orderly-rate");
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            began.compareAndSet(0, System.nanoTime());
            if (seen.addAndGet(messages.size()) == count) {
                all.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        all.await();
        System.out.println("rate " + (count / ((System.nanoTime() - began.get()) / 1e9)));
        consumer.shutdown();
        System.exit(0);
    }
}
