import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.service.SparkConnectService$;

/**
 * The embedded Spark server. Spark's own main class does the same, but keeps sessions apart to the last: each one gets
 * Python workers of its own, a second of start for every job, and their parent process then stays as long as the
 * server. Here all sessions share them (see spark.sql.artifact.isolation.enabled in spark_conf.py).
 *
 * Compiled at its start by Janino, which Spark brings: a JRE is enough, and there is nothing to build.
 */
public class ConnectServer {
    public static void main(String[] args) throws Exception {
        SparkSession session = org.apache.spark.sql.classic.SparkSession.builder().getOrCreate();
        try {
            SparkConnectService$.MODULE$.start(session.sparkContext());
            // The watchdog reads the port from here.
            System.err.println("ConnectServer: listens at 127.0.0.1:" + SparkConnectService$.MODULE$.localPort());
            SparkConnectService$.MODULE$.server().awaitTermination();
        } finally {
            session.stop();
        }
    }
}
