package headrace.spark;

import java.net.URI;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SQLContext;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.metric.SQLMetric;
import org.apache.spark.sql.execution.metric.SQLMetrics;
import org.apache.spark.sql.execution.streaming.Sink;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.sources.StreamSinkProvider;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.Trigger;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.collection.Iterator;
import scala.collection.immutable.Seq;

/**
 * A streaming query that shows what a job has committed, as Spark shows queries of its own.
 *
 * <p>The driver of the job offers a row of numbers now and then. The query reads these rows, watches
 * them by observe(), takes its watermark from them, and writes them nowhere. Its batches run in the
 * driver's JVM, in the thread of the query, and not as tasks of Spark: a task would wait for a core
 * of the job, and take it from a slot; and each would be one more job in Spark's UI.
 */
public final class ProgressQuery {
  static final String ROWS = "rows";
  static final String WATERMARK = "watermark";
  static final String FEED = "feed";
  private static final int MOST_WAITING = 1000;
  private static final Map<String, ProgressQuery> FEEDS = new ConcurrentHashMap<>();

  /** One offer, and the offset that it moves the query to. */
  record Entry(String offset, long[] values, boolean[] known) {}

  private final String id = UUID.randomUUID().toString();
  private final String[] names;
  private final String[] kinds;
  private final Deque<Entry> waiting = new ArrayDeque<>();
  private String latest = "{}";
  private Map<String, String> facts = Map.of();
  private StreamingQuery query;

  /**
   * Names the numbers.
   *
   * @param columns "name kind", separated by commas; kinds are "sum" and "last" for what is observed
   *     of several rows. "rows" and "watermark", in microseconds, must be there.
   */
  public ProgressQuery(String columns) {
    String[] all = columns.split(",");
    names = new String[all.length];
    kinds = new String[all.length];
    for (int at = 0; at < all.length; at++) {
      String[] parts = all[at].split(" ");
      names[at] = parts[0];
      kinds[at] = parts[1];
    }
  }

  /**
   * Adds a row.
   *
   * @param offset where the job is now, as JSON.
   * @param values numbers in the order of the columns, separated by commas; nothing: unknown.
   * @param shown what the source is to show besides, one "name=value" a line.
   */
  public synchronized void offer(String offset, String values, String shown) {
    String[] parts = values.split(",", -1);
    long[] found = new long[names.length];
    boolean[] known = new boolean[names.length];
    for (int at = 0; at < names.length; at++) {
      known[at] = !parts[at].isEmpty();
      found[at] = known[at] ? Long.parseLong(parts[at]) : 0;
    }
    Map<String, String> all = new LinkedHashMap<>();
    for (String line : shown.split("\n")) {
      int sign = line.indexOf('=');
      if (sign > 0) {
        all.put(line.substring(0, sign), line.substring(sign + 1));
      }
    }
    facts = all;
    latest = offset;
    waiting.add(new Entry(offset, found, known));
    if (waiting.size() > MOST_WAITING) { // nobody reads them
      waiting.remove();
    }
  }

  /** Starts the query; its checkpoint must be a new folder of this host. */
  public void start(SparkSession spark, String name, String checkpoint, long everyMs)
      throws Exception {
    FEEDS.put(id, this);
    Configuration files = new Configuration(false);
    files.setClassLoader(ProgressQuery.class.getClassLoader());
    files.setClass("fs." + PlainFiles.SCHEME + ".impl", PlainFiles.class, FileSystem.class);
    FileSystem.get(PlainFiles.ROOT, files); // Hadoop keeps it, and asks for no setting again
    Thread thread = Thread.currentThread();
    ClassLoader before = thread.getContextClassLoader();
    thread.setContextClassLoader(ProgressQuery.class.getClassLoader());
    try {
      Dataset<Row> rows =
          spark.readStream().format(Source.class.getName()).option(FEED, id).load();
      Column[] observed = observed();
      query =
          rows.observe("job", observed[0], Arrays.copyOfRange(observed, 1, names.length))
              .where(WATERMARK + " is not null")
              .withWatermark(WATERMARK, "0 seconds")
              .writeStream()
              .format(Nowhere.class.getName())
              .queryName(name)
              .option("checkpointLocation", PlainFiles.SCHEME + ":" + checkpoint)
              .trigger(Trigger.ProcessingTime(everyMs))
              .start();
    } finally {
      thread.setContextClassLoader(before);
    }
  }

  private Column[] observed() {
    Column[] found = new Column[names.length];
    for (int at = 0; at < names.length; at++) {
      Column column = functions.col(names[at]);
      found[at] =
          (kinds[at].equals("sum") ? functions.sum(column) : functions.last(column, true))
              .as(names[at]);
    }
    return found;
  }

  /** Why the query has failed; null while it runs, nothing where it was stopped. */
  public String failure() {
    if (query == null || query.isActive()) {
      return null;
    }
    return query.exception().isDefined() ? query.exception().get().getMessage() : "";
  }

  /** Whether the query has read all that was offered. */
  public synchronized boolean isDrained() {
    return waiting.isEmpty();
  }

  /** Ends the query. */
  public void stop() throws Exception {
    FEEDS.remove(id);
    if (query != null) {
      query.stop();
    }
  }

  static ProgressQuery of(CaseInsensitiveStringMap options) {
    return FEEDS.get(options.get(FEED));
  }

  StructType schema() {
    StructType schema = new StructType();
    for (String name : names) {
      DataType type = name.equals(WATERMARK) ? DataTypes.TimestampType : DataTypes.LongType;
      schema = schema.add(name, type);
    }
    return schema;
  }

  synchronized String latest() {
    return latest;
  }

  synchronized Map<String, String> facts() {
    return facts;
  }

  /** The rows up to an offset. */
  synchronized List<Entry> until(String offset) {
    List<Entry> found = new ArrayList<>();
    for (Entry one : waiting) {
      found.add(one);
      if (one.offset().equals(offset)) {
        return found;
      }
    }
    return List.of();
  }

  synchronized void commit(String offset) {
    int count = until(offset).size();
    for (int at = 0; at < count; at++) {
      waiting.remove();
    }
  }

  /** How many rows of the job's inputs rows stand for. */
  long inputRows(List<Entry> entries) {
    int at = List.of(names).indexOf(ROWS);
    return entries.stream().mapToLong(one -> one.values()[at]).sum();
  }

  /** What Spark finds by name: the table of one query. */
  public static final class Source implements TableProvider {
    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
      return ProgressQuery.of(options).schema();
    }

    @Override
    public Table getTable(StructType schema, Transform[] parts, Map<String, String> options) {
      return new ProgressTable(ProgressQuery.of(new CaseInsensitiveStringMap(options)));
    }
  }

  /** Runs each batch here, and drops its rows. */
  public static final class Nowhere implements StreamSinkProvider {
    @Override
    public Sink createSink(
        SQLContext context,
        scala.collection.immutable.Map<String, String> options,
        Seq<String> parts,
        OutputMode mode) {
      return new ProgressSink();
    }
  }
}

/**
 * Files of this host, without checksums, and with the permissions that they are made with: Hadoop
 * would start a process for each file to set these.
 */
final class PlainFiles extends RawLocalFileSystem {
  static final String SCHEME = "headrace-progress";
  static final URI ROOT = URI.create(SCHEME + ":///");

  @Override
  public URI getUri() {
    return ROOT;
  }

  @Override
  public String getScheme() {
    return SCHEME;
  }

  @Override
  public void setPermission(Path path, FsPermission permission) {}
}

/** The rows that a job offers, as a table that can only be followed. */
final class ProgressTable implements SupportsRead, ScanBuilder, Scan {
  private final ProgressQuery feed;

  ProgressTable(ProgressQuery feed) {
    this.feed = feed;
  }

  @Override
  public String name() {
    return "committed epochs";
  }

  @Override
  public String description() {
    return name();
  }

  @Override
  @SuppressWarnings("deprecation") // columns() does the same, and more code
  public StructType schema() {
    return feed.schema();
  }

  @Override
  public StructType readSchema() {
    return feed.schema();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of(TableCapability.MICRO_BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return this;
  }

  @Override
  public Scan build() {
    return this;
  }

  @Override
  public MicroBatchStream toMicroBatchStream(String checkpoint) {
    // In the thread of the query, whose session is a copy: compiling code for each batch would cost
    // more than these few rows do.
    SparkSession own = SparkSession.active();
    own.conf().set("spark.sql.codegen.wholeStage", "false");
    own.conf().set("spark.sql.codegen.factoryMode", "NO_CODEGEN");
    own.conf().set("spark.sql.ui.explainMode", "simple");
    // From Spark 4.3 on, what is observed counts by attempts of tasks, and here are none.
    own.conf().set("spark.sql.legacy.observeMetricsAggregateAllAttempts", "true");
    return new ProgressStream(feed);
  }
}

/** Where a job is, as JSON. */
final class ProgressOffset extends Offset {
  private final String json;

  ProgressOffset(String json) {
    this.json = json;
  }

  @Override
  public String json() {
    return json;
  }
}

/** Rows of one batch. */
record ProgressPartition(Object[][] rows) implements InputPartition {}

/** The source of the query. */
final class ProgressStream implements MicroBatchStream, ReportsSourceMetrics {
  private final ProgressQuery feed;

  ProgressStream(ProgressQuery feed) {
    this.feed = feed;
  }

  long inputRows(Offset end) {
    return feed.inputRows(feed.until(end.json()));
  }

  @Override
  public Offset initialOffset() {
    return new ProgressOffset("{}");
  }

  @Override
  public Offset latestOffset() {
    return new ProgressOffset(feed.latest());
  }

  @Override
  public Offset deserializeOffset(String json) {
    return new ProgressOffset(json);
  }

  @Override
  public InputPartition[] planInputPartitions(Offset start, Offset end) {
    List<ProgressQuery.Entry> entries = feed.until(end.json());
    Object[][] rows = new Object[entries.size()][];
    for (int row = 0; row < rows.length; row++) {
      ProgressQuery.Entry one = entries.get(row);
      rows[row] = new Object[one.values().length];
      for (int at = 0; at < rows[row].length; at++) {
        rows[row][at] = one.known()[at] ? one.values()[at] : null;
      }
    }
    return new InputPartition[] {new ProgressPartition(rows)};
  }

  @Override
  public PartitionReaderFactory createReaderFactory() {
    return new ProgressReaders();
  }

  @Override
  public Map<String, String> metrics(Optional<Offset> latestConsumed) {
    return feed.facts();
  }

  @Override
  public void commit(Offset end) {
    feed.commit(end.json());
  }

  @Override
  public void stop() {}
}

/** Reads what a partition carries. */
final class ProgressReaders implements PartitionReaderFactory {
  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    Object[][] rows = ((ProgressPartition) partition).rows();
    return new PartitionReader<>() {
      private int at = -1;

      @Override
      public boolean next() {
        return ++at < rows.length;
      }

      @Override
      public InternalRow get() {
        return new GenericInternalRow(rows[at]);
      }

      @Override
      public void close() {}
    };
  }
}

/** The sink of the query. */
final class ProgressSink implements Sink {
  @Override
  public String name() {
    return "Spark's UI";
  }

  @Override
  @SuppressWarnings("deprecation") // what took its place is not in Spark 4.0
  public StructType schema() {
    return new StructType();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of();
  }

  @Override
  public void addBatch(long batch, Dataset<Row> data) {
    var frame = (org.apache.spark.sql.classic.Dataset<Row>) data;
    SparkPlan plan = frame.queryExecution().executedPlan();
    RDD<InternalRow> rows = plan.execute();
    var context = TaskContext$.MODULE$.empty();
    TaskContext before = TaskContext.get();
    TaskContext$.MODULE$.setTaskContext(context);
    try {
      for (var partition : rows.partitions()) {
        Iterator<InternalRow> found = rows.iterator(partition, context);
        while (found.hasNext()) {
          found.next();
        }
      }
      context.markTaskCompleted(scala.Option.empty());
    } finally {
      TaskContext$.MODULE$.unset();
      if (before != null) {
        TaskContext$.MODULE$.setTaskContext(before);
      }
    }
    countRows(plan);
  }

  /** Says how many rows the job has read; the few here only stand for them. */
  private static void countRows(SparkPlan plan) {
    SparkPlan leaf = plan.collectLeaves().head();
    var scan = (org.apache.spark.sql.execution.datasources.v2.MicroBatchScanExec) leaf;
    SQLMetric metric = leaf.metrics().apply("numOutputRows");
    metric.set(((ProgressStream) scan.stream()).inputRows(scan.end()));
    var spark = leaf.session().sparkContext();
    String execution = spark.getLocalProperty(SQLExecution.EXECUTION_ID_KEY());
    if (execution != null) {
      Seq<SQLMetric> all = leaf.metrics().values().toSeq();
      SQLMetrics.postDriverMetricUpdates(spark, execution, all);
    }
  }
}
