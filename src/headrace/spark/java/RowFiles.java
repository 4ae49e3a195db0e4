package headrace.spark;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BaseFixedWidthVector;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVectorHelper;
import org.apache.arrow.vector.DateDayVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float4Vector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.SmallIntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.TimeStampMicroVector;
import org.apache.arrow.vector.TinyIntVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowFileWriter;
import org.apache.arrow.vector.ipc.ReadChannel;
import org.apache.arrow.vector.ipc.message.MessageSerializer;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.execution.ColumnarToRowExec;
import org.apache.spark.sql.execution.SQLExecution;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.WholeStageCodegenExec;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import scala.Option;

/**
 * Writes the rows of a DataFrame to Arrow files, one of each task, in the JVM of the task: a Python
 * worker would get each row over a socket only to write it down.
 *
 * <p>A batch of a scan that has columns is read as it is; it is not made into rows first, and its
 * columns of numbers and times are copied whole.
 */
public final class RowFiles implements Serializable {
  private static final long serialVersionUID = 1;

  /** When a batch of the file, which a reader takes at once, gets no more. */
  private static final int MOST_ROWS = 1 << 20;

  private static final long MOST_BYTES = 64 << 20;

  /** How many rows are written before their bytes are looked at. */
  private static final int LOOK_ROWS = 1 << 12;

  private final byte[] schema;
  private final String folder;
  private final String name;
  private final int partitions;

  /**
   * Says where to.
   *
   * @param schema of the files, as Arrow writes it.
   * @param folder of the files, on a disk that all hosts have.
   * @param name what the names of files begin with.
   * @param partitions that tasks go to in turn.
   */
  public RowFiles(byte[] schema, String folder, String name, int partitions) {
    this.schema = schema;
    this.folder = folder;
    this.name = name;
    this.partitions = partitions;
  }

  /** Writes a DataFrame, and returns the answers of its tasks, as JSON. */
  public List<String> write(Dataset<Row> frame) {
    var query = frame.queryExecution();
    return SQLExecution.withNewExecutionId(
        query,
        Option.apply("headrace rows"),
        () -> {
          SparkPlan plan = query.executedPlan();
          SparkPlan columns = columnsOf(plan);
          if (columns == null) {
            return plan.execute().toJavaRDD().mapPartitions(this::rows).collect();
          }
          return columns.executeColumnar().toJavaRDD().mapPartitions(this::batches).collect();
        });
  }

  /** What gives the same rows by columns; null: nothing does. */
  private static SparkPlan columnsOf(SparkPlan plan) {
    SparkPlan top = plan instanceof WholeStageCodegenExec stage ? stage.child() : plan;
    return top instanceof ColumnarToRowExec made ? made.child() : null;
  }

  private Iterator<String> rows(Iterator<InternalRow> rows) {
    try (RowFile file = open(false)) {
      while (rows.hasNext()) {
        file.add(rows.next());
      }
      return List.of(file.end()).iterator();
    }
  }

  private Iterator<String> batches(Iterator<ColumnarBatch> batches) {
    try (RowFile file = open(true)) {
      while (batches.hasNext()) {
        file.add(batches.next());
      }
      return List.of(file.end()).iterator();
    }
  }

  private RowFile open(boolean copies) {
    TaskContext task = TaskContext.get();
    int number = task.partitionId();
    String file = String.format("%s-%06d-%d.arrow", name, number, task.taskAttemptId());
    return new RowFile(Path.of(folder, file), number, number % partitions, copies);
  }

  /** The file of a task, which is there once it has rows, and only stays if it is whole. */
  private final class RowFile implements AutoCloseable {
    private final Path path;
    private final int task;
    private final int partition;
    private final StringBuilder units = new StringBuilder();
    private final BufferAllocator memory;
    private final VectorSchemaRoot root;
    private final List<Integer> copied = new ArrayList<>();
    private final List<Integer> written = new ArrayList<>();
    private final ArrowWriter rows;
    private FileChannel channel;
    private ArrowFileWriter file;
    private int count;
    private int looked;
    private boolean isWhole;
    private String error;

    RowFile(Path path, int task, int partition, boolean copies) {
      this.path = path;
      this.task = task;
      this.partition = partition;
      memory = ArrowUtils.rootAllocator().newChildAllocator("headrace rows", 0, Long.MAX_VALUE);
      root = VectorSchemaRoot.create(read(schema), memory);
      List<FieldVector> byRows = new ArrayList<>();
      for (int at = 0; at < root.getFieldVectors().size(); at++) {
        FieldVector vector = root.getVector(at);
        if (copies && isCopied(vector)) {
          vector.allocateNew();
          copied.add(at);
        } else {
          byRows.add(vector);
          written.add(at);
        }
      }
      rows = ArrowWriter.create(new VectorSchemaRoot(byRows));
    }

    /** Adds a row, where no columns are copied. */
    void add(InternalRow row) {
      if (error != null) {
        return;
      }
      rows.write(row);
      added(1);
    }

    /** Adds a batch: copies what it can of it, and writes the rest by rows. */
    void add(ColumnarBatch batch) {
      int more = batch.numRows();
      if (error != null || more == 0) {
        return;
      }
      for (int at : copied) {
        copy(batch.column(at), more, (BaseFixedWidthVector) root.getVector(at), count);
      }
      if (!written.isEmpty()) {
        ColumnVector[] rest = written.stream().map(batch::column).toArray(ColumnVector[]::new);
        new ColumnarBatch(rest, more).rowIterator().forEachRemaining(rows::write);
      }
      added(more);
    }

    private void added(int more) {
      count += more;
      if (count >= MOST_ROWS) {
        flush();
      } else if (count - looked >= LOOK_ROWS) {
        looked = count;
        if (size() >= MOST_BYTES) {
          flush();
        }
      }
    }

    private long size() {
      long found = 0;
      for (FieldVector vector : root.getFieldVectors()) {
        vector.setValueCount(count); // else a list has no offsets of its last nulls
        found += vector.getBufferSizeFor(count);
      }
      return found;
    }

    private void flush() {
      rows.finish();
      root.setRowCount(count);
      try {
        if (file == null) {
          Files.createDirectories(path.getParent());
          channel =
              FileChannel.open(path, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
          file = new ArrowFileWriter(root, null, channel);
        }
        file.writeBatch();
      } catch (IOException refused) {
        error = String.valueOf(refused.getMessage());
      }
      units.append(units.isEmpty() ? "" : ",").append("[" + partition + "," + count + "]");
      rows.reset();
      for (int at : copied) {
        root.getVector(at).reset();
      }
      count = looked = 0;
    }

    /** Makes the file durable; returns the answer of the task. */
    String end() {
      if (count > 0) {
        flush();
      }
      long size = 0;
      if (file != null && error == null) {
        try {
          file.end();
          channel.force(true);
          size = channel.size();
          try (FileChannel names = FileChannel.open(path.getParent(), StandardOpenOption.READ)) {
            names.force(true);
          }
          isWhole = true;
        } catch (IOException refused) {
          error = String.valueOf(refused.getMessage());
        }
      }
      String said = "\"task\":" + task + ",\"file\":" + quoted(path.toString());
      if (error != null) {
        return "{" + said + ",\"error\":" + quoted(error) + "}";
      }
      return "{" + said + ",\"bytes\":" + size + ",\"units\":[" + units + "]}";
    }

    @Override
    public void close() {
      root.close();
      memory.close();
      if (channel == null) {
        return;
      }
      try {
        channel.close();
        if (!isWhole) {
          Files.deleteIfExists(path);
        }
      } catch (IOException left) {
        // Nothing names the file: the next run removes it.
      }
    }
  }

  /** Whether Spark has the values of a column side by side, as Arrow has them. */
  private static boolean isCopied(FieldVector vector) {
    return vector instanceof BigIntVector
        || vector instanceof IntVector
        || vector instanceof SmallIntVector
        || vector instanceof TinyIntVector
        || vector instanceof Float8Vector
        || vector instanceof Float4Vector
        || vector instanceof DateDayVector
        || vector instanceof TimeStampMicroTZVector
        || vector instanceof TimeStampMicroVector;
  }

  private static void copy(ColumnVector from, int rows, BaseFixedWidthVector to, int at) {
    while (to.getValueCapacity() < at + rows) {
      to.reAlloc();
    }
    int width = to.getTypeWidth();
    ByteBuffer values =
        to.getDataBuffer().nioBuffer((long) at * width, rows * width).order(ByteOrder.nativeOrder());
    if (to instanceof Float8Vector) {
      values.asDoubleBuffer().put(from.getDoubles(0, rows));
    } else if (to instanceof Float4Vector) {
      values.asFloatBuffer().put(from.getFloats(0, rows));
    } else if (width == Long.BYTES) {
      values.asLongBuffer().put(from.getLongs(0, rows));
    } else if (width == Integer.BYTES) {
      values.asIntBuffer().put(from.getInts(0, rows));
    } else if (width == Short.BYTES) {
      values.asShortBuffer().put(from.getShorts(0, rows));
    } else {
      values.put(from.getBytes(0, rows));
    }
    ArrowBuf known = to.getValidityBuffer();
    int row = 0;
    if (!from.hasNull() && at % Byte.SIZE == 0) {
      row = rows - rows % Byte.SIZE;
      known.setOne((long) at / Byte.SIZE, (long) row / Byte.SIZE);
    }
    for (; row < rows; row++) {
      BitVectorHelper.setValidityBit(known, at + row, from.isNullAt(row) ? 0 : 1);
    }
  }

  private static Schema read(byte[] written) {
    try {
      var channel = Channels.newChannel(new ByteArrayInputStream(written));
      return MessageSerializer.deserializeSchema(new ReadChannel(channel));
    } catch (IOException error) {
      throw new IllegalStateException(error);
    }
  }

  private static String quoted(String text) {
    return com.fasterxml.jackson.databind.node.TextNode.valueOf(text).toString();
  }
}
