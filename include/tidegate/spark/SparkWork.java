import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.spark.SparkContext;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerEvent;
import org.apache.spark.scheduler.SparkListenerJobEnd;
import org.apache.spark.scheduler.SparkListenerJobStart;
import org.apache.spark.scheduler.SparkListenerStageCompleted;
import org.apache.spark.scheduler.SparkListenerStageSubmitted;
import org.apache.spark.scheduler.SparkListenerTaskEnd;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.execution.QueryExecution;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd;
import org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart;

/**
 * What Spark does, counted as it happens by the job tag of whoever asked for it (spark/work.py reads it): a few
 * additions for each query, job, stage and task. Compiled by Janino, which Spark brings, where it is used.
 */
public class SparkWork extends SparkListener {
    /** So many tags are remembered: nobody may ever ask for them. */
    private static final int MOST = 10000;
    private static final long PATIENCE_MS = 1000;

    private final SparkContext context;
    private final String prefix;
    private final Map byTag = new LinkedHashMap();
    private final Map queries = new HashMap();
    private final Map jobs = new HashMap();
    private final Map stages = new HashMap();

    /** Count what has a job tag with this prefix, from now on. */
    public SparkWork(SparkContext context, String prefix) {
        this.context = context;
        this.prefix = prefix;
        context.addSparkListener(this);
    }

    /** A query, and what became of it. */
    private static class Begun {
        final Work work;
        final long at;

        Begun(Work work, long at) {
            this.work = work;
            this.at = at;
        }
    }

    private static class Work {
        long queries, queryMs, planningMs, jobs, stages, tasks, runningMs, taskMs;
        long slowestTaskMs, spilledBytes, readBytes, writtenBytes;
        /** How many of its jobs run now, and since when any does. */
        long running, since;
    }

    /** Return a line for each tag that begins like this, and forget it. Waits for what Spark has yet to report. */
    public String take(String beginning) {
        try {
            context.listenerBus().waitUntilEmpty(PATIENCE_MS);
        } catch (Exception e) {
            // Then the figures are a little too low.
        }
        StringBuilder lines = new StringBuilder();
        synchronized (this) {
            for (Iterator each = byTag.entrySet().iterator(); each.hasNext();) {
                Map.Entry entry = (Map.Entry) each.next();
                String tag = (String) entry.getKey();
                if (tag.startsWith(beginning)) {
                    Work work = (Work) entry.getValue();
                    lines.append(tag.substring(beginning.length()));
                    lines.append(' ').append(work.queries).append(' ').append(work.queryMs);
                    lines.append(' ').append(work.planningMs).append(' ').append(work.jobs);
                    lines.append(' ').append(work.stages).append(' ').append(work.tasks);
                    lines.append(' ').append(work.runningMs).append(' ').append(work.taskMs);
                    lines.append(' ').append(work.slowestTaskMs).append(' ').append(work.spilledBytes);
                    lines.append(' ').append(work.readBytes).append(' ').append(work.writtenBytes).append('\n');
                    each.remove();
                }
            }
        }
        return lines.toString();
    }

    public synchronized void onOtherEvent(SparkListenerEvent event) {
        if (event instanceof SparkListenerSQLExecutionStart) {
            SparkListenerSQLExecutionStart start = (SparkListenerSQLExecutionStart) event;
            boolean inner = start.rootExecutionId().isDefined()
                && ((Long) start.rootExecutionId().get()).longValue() != start.executionId();
            scala.collection.Iterator tags = start.jobTags().iterator();
            while (!inner && tags.hasNext()) {
                String tag = (String) tags.next();
                if (tag.startsWith(prefix)) {
                    Work work = of(tag);
                    work.queries += 1;
                    queries.put(new Long(start.executionId()), new Begun(work, start.time()));
                }
            }
        } else if (event instanceof SparkListenerSQLExecutionEnd) {
            SparkListenerSQLExecutionEnd end = (SparkListenerSQLExecutionEnd) event;
            Begun begun = (Begun) queries.remove(new Long(end.executionId()));
            if (begun != null) {
                begun.work.queryMs += end.time() - begun.at;
                begun.work.planningMs += planningMs(end.qe());
            }
        }
    }

    private static long planningMs(QueryExecution query) {
        long ms = 0;
        if (query != null) {
            scala.collection.Iterator phases = query.tracker().phases().valuesIterator();
            while (phases.hasNext()) {
                ms += ((QueryPlanningTracker.PhaseSummary) phases.next()).durationMs();
            }
        }
        return ms;
    }

    public synchronized void onJobStart(SparkListenerJobStart start) {
        Work work = of(start.properties());
        if (work != null) {
            work.jobs += 1;
            if (work.running++ == 0) {
                work.since = start.time();
            }
            jobs.put(new Integer(start.jobId()), work);
        }
    }

    public synchronized void onJobEnd(SparkListenerJobEnd end) {
        Work work = (Work) jobs.remove(new Integer(end.jobId()));
        if (work != null && --work.running == 0) {
            work.runningMs += end.time() - work.since;
        }
    }

    public synchronized void onStageSubmitted(SparkListenerStageSubmitted submitted) {
        Work work = of(submitted.properties());
        if (work != null) {
            work.stages += 1;
            work.tasks += submitted.stageInfo().numTasks();
            stages.put(new Integer(submitted.stageInfo().stageId()), work);
        }
    }

    public synchronized void onStageCompleted(SparkListenerStageCompleted completed) {
        Work work = (Work) stages.remove(new Integer(completed.stageInfo().stageId()));
        if (work != null && completed.stageInfo().taskMetrics() != null) {
            TaskMetrics metrics = completed.stageInfo().taskMetrics();
            work.taskMs += metrics.executorRunTime();
            work.spilledBytes += metrics.diskBytesSpilled();
            work.readBytes += metrics.inputMetrics().bytesRead() + metrics.shuffleReadMetrics().totalBytesRead();
            work.writtenBytes += metrics.outputMetrics().bytesWritten() + metrics.shuffleWriteMetrics().bytesWritten();
        }
    }

    public synchronized void onTaskEnd(SparkListenerTaskEnd end) {
        Work work = (Work) stages.get(new Integer(end.stageId()));
        if (work != null && end.taskInfo() != null && end.taskInfo().successful()) {
            work.slowestTaskMs = Math.max(work.slowestTaskMs, end.taskInfo().duration());
        }
    }

    private Work of(Properties properties) {
        String tags = properties == null ? null : properties.getProperty("spark.job.tags");
        String[] each = tags == null ? new String[0] : tags.split(",");
        for (int i = 0; i < each.length; i++) {
            if (each[i].startsWith(prefix)) {
                return of(each[i]);
            }
        }
        return null;
    }

    private Work of(String tag) {
        Work work = (Work) byTag.get(tag);
        if (work == null) {
            work = new Work();
            byTag.put(tag, work);
            if (byTag.size() > MOST) {
                Iterator oldest = byTag.keySet().iterator();
                oldest.next();
                oldest.remove();
            }
        }
        return work;
    }
}
