import java.io.File;
import java.io.StringReader;
import java.util.HashSet;
import java.util.Properties;
import java.util.Set;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connect.service.ExecuteInfo;
import org.apache.spark.sql.connect.service.SparkConnectService$;
import org.apache.spark.status.api.v1.JobData;
import org.codehaus.janino.SimpleCompiler;
import scala.collection.Iterator;
import scala.util.Either;

/**
 * The embedded Spark server. Spark's own main class does the same, but isolates sessions completely: each one gets
 * Python workers of its own, a second of start for every job, and their parent process then stays as long as the
 * server. Here all sessions share them (see spark.sql.artifact.isolation.enabled in spark/conf.py).
 *
 * It also ends the jobs that no client can reach. Spark Connect interrupts an operation once, by interrupting its
 * thread. If that comes before the operation has submitted its job, the interrupt may be swallowed; then the client
 * releases the operation, and its job runs on with nobody to cancel it, and keeps the cores from all others.
 *
 * It counts what Spark does for each operation, with the classes in the files that it is given: without them, or with
 * a Spark that they do not fit, it serves all the same, and nobody knows.
 *
 * Compiled at its start by Janino, which Spark brings: a JRE is enough, and there is nothing to build.
 */
public class ConnectServer {
    private static final String OPERATION = "SparkConnect_OperationTag_";
    private static final long LOOK_EVERY_MS = 1000;

    public static void main(String[] args) throws Exception {
        takeLogin();
        Counting counting = new Counting(args);
        counting.start();
        SparkSession session = org.apache.spark.sql.classic.SparkSession.builder().getOrCreate();
        try {
            SparkConnectService$.MODULE$.start(session.sparkContext());
            cancelAbandonedJobs(session.sparkContext());
            counting.begin(session.sparkContext());
            // The watchdog reads the port from here.
            System.err.println("ConnectServer: listens at 127.0.0.1:" + SparkConnectService$.MODULE$.localPort());
            SparkConnectService$.MODULE$.server().awaitTermination();
        } finally {
            session.stop();
        }
    }

    /** Settings that are on no disk: whoever starts this passes them by its environment (LOGIN in server.py). */
    private static void takeLogin() throws Exception {
        String login = System.getenv("SPARK_STORE_LOGIN");
        if (login != null) {
            Properties settings = new Properties();
            settings.load(new StringReader(login));
            for (java.util.Iterator keys = settings.keySet().iterator(); keys.hasNext();) {
                String key = (String) keys.next();
                System.setProperty(key, settings.getProperty(key));
            }
        }
    }

    /** Compiles its files, each of which may use the one before it, while Spark starts. The last one has `register`. */
    private static class Counting extends Thread {
        private final String[] files;
        private Class last;

        Counting(String[] files) {
            super("tidegate-counting");
            this.files = files;
            setDaemon(true);
        }

        public void run() {
            try {
                ClassLoader loader = ConnectServer.class.getClassLoader();
                for (int i = 0; i < files.length; i++) {
                    SimpleCompiler compiler = new SimpleCompiler();
                    compiler.setParentClassLoader(loader);
                    compiler.cookFile(files[i]);
                    loader = compiler.getClassLoader();
                    last = loader.loadClass(new File(files[i]).getName().replace(".java", ""));
                }
            } catch (Throwable e) {
                last = null;
                System.err.println("ConnectServer: cannot count what Spark does: " + e);
            }
        }

        void begin(SparkContext context) throws InterruptedException {
            join();
            try {
                if (last != null) {
                    last.getMethod("register", new Class[] {SparkContext.class}).invoke(null, new Object[] {context});
                }
            } catch (Throwable e) {
                System.err.println("ConnectServer: cannot count what Spark does: " + e);
            }
        }
    }

    /** Look now and then, in a thread that ends with the process. */
    public static void cancelAbandonedJobs(final SparkContext context) {
        Thread thread = new Thread("tidegate-abandoned-jobs") {
            public void run() {
                while (!context.isStopped()) {
                    try {
                        Thread.sleep(LOOK_EVERY_MS);
                        cancelAbandonedNow(context);
                    } catch (Exception e) {
                        System.err.println("ConnectServer: cannot look for abandoned jobs: " + e);
                    }
                }
            }
        };
        thread.setDaemon(true);
        thread.start();
    }

    /** The jobs first: an operation exists before its jobs do. */
    public static void cancelAbandonedNow(SparkContext context) {
        int[] jobs = context.statusTracker().getActiveJobIds();
        if (jobs.length == 0) {
            return;
        }
        Set abandoned = new HashSet();
        for (int i = 0; i < jobs.length; i++) {
            Iterator tags = ((JobData) context.statusStore().job(jobs[i])).jobTags().iterator();
            while (tags.hasNext()) {
                String tag = (String) tags.next();
                if (tag.startsWith(OPERATION)) {
                    abandoned.add(tag);
                }
            }
        }
        Either operations = SparkConnectService$.MODULE$.listActiveExecutions();
        if (operations.isRight()) {
            Iterator active = ((scala.collection.Seq) operations.toOption().get()).iterator();
            while (active.hasNext()) {
                abandoned.remove(((ExecuteInfo) active.next()).jobTag());
            }
        }
        for (java.util.Iterator tags = abandoned.iterator(); tags.hasNext();) {
            context.cancelJobsWithTag((String) tags.next(), "its client has released the operation");
        }
    }
}
