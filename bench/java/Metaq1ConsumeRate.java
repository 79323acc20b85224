import com.taobao.metamorphosis.Message;
import com.taobao.metamorphosis.client.MetaClientConfig;
import com.taobao.metamorphosis.client.MetaMessageSessionFactory;
import com.taobao.metamorphosis.client.consumer.ConsumerConfig;
import com.taobao.metamorphosis.client.consumer.MessageConsumer;
import com.taobao.metamorphosis.client.consumer.MessageListener;
import com.taobao.metamorphosis.utils.ZkUtils.ZKConfig;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;

/** One consumer of MetaQ 1.x with an empty listener: ZOOKEEPER TOPIC COUNT, prints messages a second from the first to the last. */
public class Metaq1ConsumeRate {
    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[2]);
        AtomicInteger seen = new AtomicInteger();
        AtomicLong began = new AtomicLong();
        AtomicLong ended = new AtomicLong();
        CountDownLatch all = new CountDownLatch(1);
        MetaClientConfig config = new MetaClientConfig();
        ZKConfig zookeeper = new ZKConfig();
        zookeeper.zkConnect = arguments[0];
        config.setZkConfig(zookeeper);
        MetaMessageSessionFactory factory = new MetaMessageSessionFactory(config);
        MessageConsumer consumer = factory.createConsumer(new ConsumerConfig("consume-rate"));
        consumer.subscribe(arguments[1], 1024 * 1024, new MessageListener() {
            @Override
            public void recieveMessages(Message message) {
                if (seen.incrementAndGet() == 1) {
                    began.set(System.nanoTime());
                } else if (seen.get() == count) {
                    ended.set(System.nanoTime());
                    all.countDown();
                }
            }

            @Override
            public Executor getExecutor() {
                return null;
            }
        });
        consumer.completeSubscribe();
        all.await();
        System.out.println("rate " + (count / ((ended.get() - began.get()) / 1e9)));
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }
}
