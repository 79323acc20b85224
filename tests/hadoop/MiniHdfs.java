import java.io.BufferedReader;
import java.io.InputStreamReader;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node over the folder that is named, until standard input ends. A line in is an order, a line out its answer. */
public class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", arguments[0]);
        conf.set("dfs.namenode.fs-limits.min-block-size", "4096");
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
        cluster.waitActive();
        int port = cluster.getNameNodePort();
        System.out.println("ready hdfs://127.0.0.1:" + port + " " + cluster.getHttpUri(0));
        BufferedReader orders = new BufferedReader(new InputStreamReader(System.in));
        for (String line = orders.readLine(); line != null; line = orders.readLine()) {
            String[] words = line.split(" ");
            try {
                switch (words[0]) {
                    case "stop" -> cluster.shutdownNameNode(0);
                    case "start" -> cluster.restartNameNode(0, true);
                    case "space" -> files(cluster).setQuota(new Path(words[1]), Long.MAX_VALUE, Long.parseLong(words[2]));
                    case "free" -> files(cluster).setQuota(new Path(words[1]), -1, -1);
                    case "mkdir" -> {
                        Path folder = new Path(words[1]);
                        files(cluster).mkdirs(folder);
                        files(cluster).setOwner(folder, words[2], words[2]);
                        files(cluster).setPermission(folder, new FsPermission(Short.parseShort(words[3], 8)));
                    }
                    default -> throw new IllegalArgumentException(line);
                }
                System.out.println("done");
            } catch (Exception fault) {
                System.out.println("failed: " + fault);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static DistributedFileSystem files(MiniDFSCluster cluster) throws Exception {
        return cluster.getFileSystem(0);
    }
}
