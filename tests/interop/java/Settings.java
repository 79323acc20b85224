import java.util.Properties;
import java.util.TreeSet;
import org.apache.rocketmq.common.MixAll;

/**
 * Prints the settings that a RocketMQ broker tells its administrators, `key=value`, as its classes make them.
 */
public final class Settings {
    private static final String[] CLASSES = {
        "common.BrokerConfig", "remoting.netty.NettyServerConfig", "remoting.netty.NettyClientConfig",
        "store.config.MessageStoreConfig"};

    public static void main(String[] arguments) throws Exception {
        for (String name : CLASSES) {
            Class<?> type = Class.forName("org.apache.rocketmq." + name);
            Properties settings = MixAll.object2Properties(type.getDeclaredConstructor().newInstance());
            for (String key : new TreeSet<>(settings.stringPropertyNames())) {
                System.out.println(key + "=" + settings.getProperty(key));
            }
        }
    }
}
