import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import org.apache.spark.SparkContext;
import org.apache.spark.sql.connect.plugin.GetStatusPlugin;
import org.apache.spark.sql.connect.plugin.SparkConnectPluginRegistry$;
import org.apache.spark.sql.connect.service.SessionHolder;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.StringValue;

/**
 * Tells a client what Spark has done for its operations (SparkWork), if it asks for it together with their status:
 * Spark Connect has a place for such extensions, and no answer of its own.
 */
public class SparkWorkStatus implements GetStatusPlugin {
    private static final String QUESTION = "tidegate.work";
    private static final String TAG = "SparkConnect_OperationTag_";

    private final SparkWork work;

    public SparkWorkStatus(SparkContext context) {
        work = new SparkWork(context, TAG);
    }

    /** Count from now on, and answer beside whatever the server's own configuration has. */
    public static void register(SparkContext context) {
        SparkConnectPluginRegistry$ registry = SparkConnectPluginRegistry$.MODULE$;
        scala.collection.immutable.Seq plugins = registry.getStatusRegistry();
        registry.setGetStatusPluginsForTesting(
            (scala.collection.immutable.Seq) plugins.appended(new SparkWorkStatus(context)));
    }

    public Optional processRequestExtensions(SessionHolder session, List questions) {
        for (Iterator each = questions.iterator(); each.hasNext();) {
            if (isOurs((Any) each.next())) {
                String operations = TAG + "User_" + session.userId() + "_Session_" + session.sessionId() + "_Operation_";
                return Optional.of(Collections.singletonList(Any.pack(StringValue.of(work.take(operations)))));
            }
        }
        return Optional.empty();
    }

    private static boolean isOurs(Any question) {
        try {
            return question.is(StringValue.class)
                && QUESTION.equals(((StringValue) question.unpack(StringValue.class)).getValue());
        } catch (Exception e) {
            return false;
        }
    }

    public Optional processOperationExtensions(String operation, SessionHolder session, List questions) {
        return Optional.empty();
    }
}
