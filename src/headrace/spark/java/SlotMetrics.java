package headrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import net.razorvine.pickle.Unpickler;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.function.FlatMapFunction;
import org.apache.spark.util.LongAccumulator;

/**
 * Adds what a slot did to named accumulators, in its task, from the report that it sends.
 *
 * <p>Spark shows those of Python nowhere: they have no names. Also a task's own input and output are
 * set, which its pages show as columns.
 */
public final class SlotMetrics implements FlatMapFunction<Iterator<byte[]>, byte[]> {
  private static final long serialVersionUID = 1;
  private static final ObjectMapper JSON = new ObjectMapper();
  private final LinkedHashMap<String, LongAccumulator> metrics = new LinkedHashMap<>();

  /**
   * Registers the accumulators.
   *
   * @param names of the metrics that reports have, one a line.
   */
  public SlotMetrics(SparkContext spark, String names) {
    for (String name : names.split("\n")) {
      metrics.put(name, spark.longAccumulator(name));
    }
  }

  /** The same rows, from tasks that count. */
  public JavaRDD<byte[]> over(JavaRDD<byte[]> reports) {
    return reports.mapPartitions(this);
  }

  /** Begins a level: what is shown of its stage is of it alone. */
  public void reset() {
    metrics.values().forEach(LongAccumulator::reset);
  }

  @Override
  public Iterator<byte[]> call(Iterator<byte[]> reports) {
    List<byte[]> found = new ArrayList<>(); // the worker is read to its end, as Spark does
    reports.forEachRemaining(found::add);
    for (byte[] pickled : found) {
      try {
        count(pickled);
      } catch (IOException | RuntimeException error) {
        // The report is what counts: a job does not stop for what is shown of it.
      }
    }
    return found.iterator();
  }

  private void count(byte[] pickled) throws IOException {
    if (!(new Unpickler().loads(pickled) instanceof List<?> reports)) {
      return;
    }
    for (Object report : reports) {
      if (report instanceof byte[] json) {
        for (Map.Entry<String, JsonNode> one : JSON.readTree(json).path("metrics").properties()) {
          add(one.getKey(), one.getValue().asLong());
        }
      }
    }
  }

  private void add(String name, long value) {
    LongAccumulator metric = metrics.get(name);
    if (metric != null) {
      metric.add(value);
    }
    var task = TaskContext.get().taskMetrics();
    switch (name) {
      case "rows read" -> task.inputMetrics().incRecordsRead(value);
      case "rows sent" -> task.outputMetrics().setRecordsWritten(value);
      case "bytes sent" -> task.outputMetrics().setBytesWritten(value);
      default -> {}
    }
  }
}
