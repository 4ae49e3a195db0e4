package headrace.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.analysis.NoSuchNamespaceException;
import org.apache.spark.sql.catalyst.analysis.NoSuchTableException;
import org.apache.spark.sql.connector.catalog.Identifier;
import org.apache.spark.sql.connector.catalog.NamespaceChange;
import org.apache.spark.sql.connector.catalog.SupportsNamespaces;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableChange;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.sources.And;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.IsNotNull;
import org.apache.spark.sql.sources.IsNull;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;
import org.apache.spark.sql.sources.Or;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The streams, stores, epochs and tables of a home, listed when they are asked for.
 *
 * <p>Everything is read by the Python data source "headrace"; here is only what Spark offers to
 * classes of the JVM alone: a catalog, and the columns and conditions that a query needs. The source
 * gets the columns as its schema, and the conditions as its option "pushed". Each scan has a source
 * of its own, because Spark's keeps the conditions of the first query that it was used in.
 */
public final class HeadraceCatalog implements TableCatalog, SupportsNamespaces {
  static final String FORMAT = "headrace";
  static final String LIST = "headracelist";

  private String name;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    this.name = name;
  }

  @Override
  public String name() {
    return name;
  }

  static PythonDataSourceV2 source() {
    PythonDataSourceV2 source = new PythonDataSourceV2();
    source.setShortName(FORMAT);
    return source;
  }

  /** Asked for each time, because Spark keeps a catalog as long as its session. */
  private String home() {
    return SQLConf.get().getConfString("spark.sql.catalog." + name + ".home");
  }

  private List<String> names(String of) {
    Map<String, String> options = new HashMap<>();
    options.put("home", home());
    options.put(LIST, of);
    return List.of(source().inferSchema(new CaseInsensitiveStringMap(options)).fieldNames());
  }

  @Override
  public Identifier[] listTables(String[] namespace) throws NoSuchNamespaceException {
    check(namespace);
    List<Identifier> found = new ArrayList<>();
    for (String table : tables(namespace)) {
      found.add(Identifier.of(namespace, table));
    }
    return found.toArray(new Identifier[0]);
  }

  private List<String> tables(String[] namespace) {
    if (namespace.length == 2) {
      return names("stores " + namespace[1]);
    }
    switch (namespace.length == 0 ? "" : namespace[0]) {
      case "streams":
        return names("streams");
      case "warehouse":
        return names("warehouse");
      case "metadata":
        return names("jobs");
      default:
        return List.of();
    }
  }

  private void check(String[] namespace) throws NoSuchNamespaceException {
    if (!namespaceExists(namespace)) {
      throw new NoSuchNamespaceException(namespace);
    }
  }

  @Override
  public boolean namespaceExists(String[] namespace) {
    if (namespace.length == 2) {
      return namespace[0].equals("state") && names("jobs").contains(namespace[1]);
    }
    return namespace.length == 0
        || namespace.length == 1
            && List.of("streams", "state", "metadata", "warehouse").contains(namespace[0]);
  }

  @Override
  public String[][] listNamespaces() {
    return new String[][] {{"streams"}, {"state"}, {"metadata"}, {"warehouse"}};
  }

  @Override
  public String[][] listNamespaces(String[] namespace) throws NoSuchNamespaceException {
    check(namespace);
    if (namespace.length == 0) {
      return listNamespaces();
    }
    if (namespace.length == 1 && namespace[0].equals("state")) {
      return names("jobs").stream().map(job -> new String[] {"state", job}).toArray(String[][]::new);
    }
    return new String[0][];
  }

  @Override
  public Map<String, String> loadNamespaceMetadata(String[] namespace)
      throws NoSuchNamespaceException {
    check(namespace);
    return Map.of();
  }

  @Override
  public Table loadTable(Identifier table) throws NoSuchTableException {
    return load(table, null);
  }

  /** The version of a store is the epoch: SELECT ... VERSION AS OF 12. */
  @Override
  public Table loadTable(Identifier table, String version) throws NoSuchTableException {
    if (!kind(table.namespace()).equals("state")) {
      throw new UnsupportedOperationException(
          "only tables of headrace.state have versions, their epochs; found " + table);
    }
    return load(table, version);
  }

  private Table load(Identifier table, String version) throws NoSuchTableException {
    String[] namespace = table.namespace();
    Map<String, String> options = new LinkedHashMap<>();
    options.put("home", home());
    switch (kind(namespace)) {
      case "state":
        options.put("job", namespace[1]);
        options.put("store", table.name());
        break;
      case "metadata":
        options.put("job", table.name());
        options.put("metadata", "true");
        break;
      case "warehouse":
        options.put("table", table.name());
        break;
      case "streams":
        options.put("stream", table.name());
        break;
      default:
        throw new NoSuchTableException(table);
    }
    if (version != null) {
      options.put("epoch", version);
    }
    String full = name + "." + String.join(".", namespace) + "." + table.name();
    boolean isStream = namespace[0].equals("streams");
    // Each look is a call of a Python process: one says whether the table is there, and its columns.
    Map<String, String> asked = new LinkedHashMap<>(options);
    asked.put(LIST, "columns");
    StructType schema = source().inferSchema(new CaseInsensitiveStringMap(asked));
    if (schema.isEmpty()) {
      throw new NoSuchTableException(table);
    }
    return new HeadraceTable(full, options, schema, isStream);
  }

  /** What a namespace has; empty where it has no tables. */
  private static String kind(String[] namespace) {
    int depth = namespace.length > 0 && namespace[0].equals("state") ? 2 : 1;
    return namespace.length == depth ? namespace[0] : "";
  }

  private static UnsupportedOperationException readOnly() {
    return new UnsupportedOperationException(
        "catalog headrace only shows what there is; write a stream with format(\"headrace\")");
  }

  @Override
  @SuppressWarnings("deprecation") // what took its place is not in Spark 4.0
  public Table createTable(
      Identifier table, StructType schema, Transform[] parts, Map<String, String> properties) {
    throw readOnly();
  }

  @Override
  public Table alterTable(Identifier table, TableChange... changes) {
    throw readOnly();
  }

  @Override
  public boolean dropTable(Identifier table) {
    throw readOnly();
  }

  @Override
  public void renameTable(Identifier from, Identifier to) {
    throw readOnly();
  }

  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    throw readOnly();
  }

  @Override
  public void alterNamespace(String[] namespace, NamespaceChange... changes) {
    throw readOnly();
  }

  @Override
  public boolean dropNamespace(String[] namespace, boolean cascade) {
    throw readOnly();
  }
}

/** One table: its scans are those of the Python source, with fewer columns and rows. */
final class HeadraceTable implements SupportsRead {
  private final String name;
  private final Map<String, String> options;
  private final StructType schema;
  private final boolean isStream;

  HeadraceTable(String name, Map<String, String> options, StructType schema, boolean isStream) {
    this.name = name;
    this.options = options;
    this.schema = schema;
    this.isStream = isStream;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  @SuppressWarnings("deprecation") // columns() does the same, and more code
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return isStream
        ? Set.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ)
        : Set.of(TableCapability.BATCH_READ);
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
    Map<String, String> all = new LinkedHashMap<>(given.asCaseSensitiveMap());
    all.putAll(options);
    return new HeadraceScanBuilder(all, schema);
  }
}

/** Takes the columns and conditions of one query. */
final class HeadraceScanBuilder
    implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownFilters {
  private final Map<String, String> options;
  private StructType schema;
  private Filter[] pushed = new Filter[0];
  private final List<String> conditions = new ArrayList<>();

  HeadraceScanBuilder(Map<String, String> options, StructType schema) {
    this.options = options;
    this.schema = schema;
  }

  @Override
  public void pruneColumns(StructType required) {
    if (required.isEmpty()) { // rows are counted: one column shows how many there are
      StructField[] fields = schema.fields();
      required = new StructType(new StructField[] {fields[0]});
    }
    schema = required;
  }

  /** Spark evaluates all conditions again, so a condition may also be left out here. */
  @Override
  public Filter[] pushFilters(Filter[] filters) {
    List<Filter> taken = new ArrayList<>();
    for (Filter filter : filters) {
      String condition = sql(filter);
      if (condition != null) {
        conditions.add(condition);
        taken.add(filter);
      }
    }
    pushed = taken.toArray(new Filter[0]);
    return filters;
  }

  @Override
  public Filter[] pushedFilters() {
    return pushed;
  }

  @Override
  public Scan build() {
    Map<String, String> all = new LinkedHashMap<>(options);
    if (!conditions.isEmpty()) {
      List<String> quoted = new ArrayList<>();
      for (String condition : conditions) {
        quoted.add('"' + condition.replace("\\", "\\\\").replace("\"", "\\\"") + '"');
      }
      all.put("pushed", "[" + String.join(",", quoted) + "]");
    }
    PythonDataSourceV2 source = HeadraceCatalog.source();
    Table table = source.getTable(schema, new Transform[0], all);
    return ((SupportsRead) table).newScanBuilder(new CaseInsensitiveStringMap(all)).build();
  }

  /** The condition in SQL; null where Spark and the source may not mean the same by it. */
  private static String sql(Filter filter) {
    if (filter instanceof EqualTo f) {
      return compared(f.attribute(), "=", f.value());
    } else if (filter instanceof GreaterThan f) {
      return compared(f.attribute(), ">", f.value());
    } else if (filter instanceof GreaterThanOrEqual f) {
      return compared(f.attribute(), ">=", f.value());
    } else if (filter instanceof LessThan f) {
      return compared(f.attribute(), "<", f.value());
    } else if (filter instanceof LessThanOrEqual f) {
      return compared(f.attribute(), "<=", f.value());
    } else if (filter instanceof IsNull f) {
      String column = column(f.attribute());
      return column == null ? null : column + " IS NULL";
    } else if (filter instanceof IsNotNull f) {
      String column = column(f.attribute());
      return column == null ? null : column + " IS NOT NULL";
    } else if (filter instanceof In f) {
      return within(f);
    } else if (filter instanceof And f) {
      return both(f.left(), "AND", f.right());
    } else if (filter instanceof Or f) {
      return both(f.left(), "OR", f.right());
    }
    return null;
  }

  private static String both(Filter left, String word, Filter right) {
    String first = sql(left);
    String second = sql(right);
    return first == null || second == null ? null : "(" + first + " " + word + " " + second + ")";
  }

  private static String within(In filter) {
    String column = column(filter.attribute());
    List<String> values = new ArrayList<>();
    for (Object one : filter.values()) {
      values.add(value(one));
    }
    if (column == null || values.isEmpty() || values.contains(null)) {
      return null;
    }
    return column + " IN (" + String.join(", ", values) + ")";
  }

  private static String compared(String attribute, String sign, Object value) {
    String column = column(attribute);
    String literal = value(value);
    return column == null || literal == null ? null : column + " " + sign + " " + literal;
  }

  /** A column of the top level, with plain characters. */
  private static String column(String name) {
    return name.matches("[A-Za-z_][A-Za-z0-9_]*") ? "\"" + name + "\"" : null;
  }

  /** Whole numbers, truth values and plain text; of other types values are written differently. */
  private static String value(Object value) {
    if (value instanceof Long
        || value instanceof Integer
        || value instanceof Short
        || value instanceof Byte
        || value instanceof Boolean) {
      return value.toString();
    }
    if (value instanceof String text && text.matches("[\\x20-\\x7e&&[^\\\\]]*")) {
      return "'" + text.replace("'", "''") + "'";
    }
    return null;
  }
}
