import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.producer.MessageProducer;
import com.taobao.metamorphosis.client.producer.SendMessageCallback;
import com.taobao.metamorphosis.client.producer.SendResult;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Sends of one producer of MetaQ 1.x: ZOOKEEPER TOPIC MODE BODY WARM COUNT, prints messages a second from the first send to the last
 * answer. MODE: one (each waits for its answer), threads (64 that do so), callbacks (64 sends under way).
 */
public class Metaq1SendRate {
    private static final int OUTSTANDING = 64;
    private static final AtomicInteger failed = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        MetaClientConfig config = new MetaClientConfig();
        ZKConfig zookeeper = new ZKConfig();
        zookeeper.zkConnect = arguments[0];
        config.setZkConfig(zookeeper);
        MessageProducer producer = new MetaMessageSessionFactory(config).createProducer();
        producer.publish(topic);
        byte[] body = new byte[Integer.parseInt(arguments[3])];
        send(producer, topic, arguments[2], body, Integer.parseInt(arguments[4]));
        int count = Integer.parseInt(arguments[5]);
        long began = System.nanoTime();
        send(producer, topic, arguments[2], body, count);
        double seconds = (System.nanoTime() - began) / 1e9;
        if (failed.get() > 0) {
            System.out.println(failed.get() + " sends failed");
            System.out.flush();
            Runtime.getRuntime().halt(1);
        }
        System.out.println("rate " + count / seconds);
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private static void send(MessageProducer producer, String topic, String mode, byte[] body, int count) throws Exception {
        if (mode.equals("one")) {
            work(producer, topic, body, count);
        } else if (mode.equals("threads")) {
            CountDownLatch all = new CountDownLatch(OUTSTANDING);
            for (int number = 0; number < OUTSTANDING; number++) {
                int share = count / OUTSTANDING + (number < count % OUTSTANDING ? 1 : 0);
                new Thread(() -> {
                    work(producer, topic, body, share);
                    all.countDown();
                }).start();
            }
            all.await();
        } else {
            Semaphore free = new Semaphore(OUTSTANDING);
            SendMessageCallback callback = new SendMessageCallback() {
                @Override
                public void onMessageSent(SendResult result) {
                    if (!result.isSuccess()) {
                        failed.incrementAndGet();
                    }
                    free.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    free.release();
                }
            };
            for (int number = 0; number < count; number++) {
                free.acquire();
                producer.sendMessage(new Message(topic, body), callback);
            }
            free.acquire(OUTSTANDING);
        }
    }

    private static void work(MessageProducer producer, String topic, byte[] body, int count) {
        for (int number = 0; number < count; number++) {
            try {
                if (!producer.sendMessage(new Message(topic, body)).isSuccess()) {
                    failed.incrementAndGet();
                }
            } catch (Exception error) {
                failed.incrementAndGet();
            }
        }
    }
}
