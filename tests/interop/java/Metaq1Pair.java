import com.taobao.metamorphosis.AbstractBrokerPlugin;
import com.taobao.metamorphosis.server.assembly.MetaMorphosisBroker;
import com.taobao.metamorphosis.server.utils.MetaConfig;
import java.io.FileInputStream;
import java.io.InputStream;
import java.util.Properties;

/**
 * Starts the original server as one half of a synchronous pair, as its own start program does, without the dashboard:
 *
 * <pre>java Metaq1Pair server.ini samsa|gregor FILE</pre>
 */
public final class Metaq1Pair {
    private Metaq1Pair() {
    }

    public static void main(String[] words) throws Exception {
        Properties properties = new Properties();
        try (InputStream file = new FileInputStream(words[2])) {
            properties.load(file);
        }
        MetaConfig config = new MetaConfig();
        config.loadFromFile(words[0]);
        config.verify();
        final MetaMorphosisBroker broker = new MetaMorphosisBroker(config);
        String name = words[1].equals("samsa") ? "master.SamsaMasterBroker" : "slave.GregorSlaveBroker";
        Class<?> found = Class.forName("com.taobao.metamorphosis.gregor." + name);
        final AbstractBrokerPlugin plugin = (AbstractBrokerPlugin) found.getDeclaredConstructor().newInstance();
        plugin.init(broker, properties);
        broker.start();
        plugin.start();
        System.out.println("pair is ready");
        System.out.flush();
    }
}
