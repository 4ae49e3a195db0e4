// Flink beside the jobs of bench/kafka.py: a count for each id in RocksDB, from topic to topic,
// exactly-once, in one process. Prints one line of JSON when all messages are in committed transactions.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.connector.kafka.source.reader.deserializer.KafkaRecordDeserializationSchema;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public final class FlinkCount {
    static final AtomicLong FIRST = new AtomicLong();

    static final class Counting extends KeyedProcessFunction<String, Tuple2<String, byte[]>, Tuple2<String, byte[]>> {
        private transient ObjectMapper json;
        private transient ValueState<Long> counts;

        @Override
        public void open(OpenContext context) {
            json = new ObjectMapper();
            counts = getRuntimeContext().getState(new ValueStateDescriptor<>("counts", Types.LONG));
        }

        @Override
        public void processElement(
                Tuple2<String, byte[]> message, Context context, Collector<Tuple2<String, byte[]>> out)
                throws Exception {
            if (FIRST.get() == 0) {
                FIRST.compareAndSet(0, System.nanoTime());
            }
            JsonNode row = json.readTree(message.f1);
            Long held = counts.value();
            long count = (held == null ? 0 : held) + 1;
            counts.update(count);
            out.collect(Tuple2.of(message.f0, Peer.counted(json, row, count)));
        }
    }

    static final class Reading implements KafkaRecordDeserializationSchema<Tuple2<String, byte[]>> {
        @Override
        public void deserialize(
                ConsumerRecord<byte[], byte[]> record, Collector<Tuple2<String, byte[]>> out) {
            out.collect(Tuple2.of(new String(record.key(), StandardCharsets.UTF_8), record.value()));
        }

        @Override
        public TypeInformation<Tuple2<String, byte[]>> getProducedType() {
            return pair();
        }
    }

    static final class Writing implements KafkaRecordSerializationSchema<Tuple2<String, byte[]>> {
        private final String topic;

        Writing(String given) {
            topic = given;
        }

        @Override
        public ProducerRecord<byte[], byte[]> serialize(
                Tuple2<String, byte[]> row, KafkaSinkContext context, Long timestamp) {
            return new ProducerRecord<>(topic, row.f0.getBytes(StandardCharsets.UTF_8), row.f1);
        }
    }

    static TypeInformation<Tuple2<String, byte[]>> pair() {
        return Types.TUPLE(Types.STRING, Types.PRIMITIVE_ARRAY(Types.BYTE));
    }

    // Counts what a reader of committed messages sees, until all are there.
    static void await(String servers, String topic, long messages) {
        Properties own = new Properties();
        own.put("bootstrap.servers", servers);
        own.put("isolation.level", "read_committed");
        try (KafkaConsumer<byte[], byte[]> reader = new KafkaConsumer<>(
                own, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> parts = reader.partitionsFor(topic).stream()
                .map(one -> new TopicPartition(topic, one.partition())).toList();
            reader.assign(parts);
            reader.seekToBeginning(parts);
            for (long seen = 0; seen < messages; ) {
                seen += reader.poll(Duration.ofMillis(100)).count();
            }
        }
    }

    public static void main(String[] words) throws Exception {
        Peer given = Peer.of(words);
        Configuration settings = Configuration.fromMap(Map.of(
            "state.backend.type", "rocksdb",
            "state.backend.incremental", "true",
            "state.checkpoints.dir", "file://" + given.folder() + "/checkpoints",
            "state.backend.rocksdb.localdir", given.folder() + "/rocksdb",
            "taskmanager.memory.managed.size", "256m",
            "execution.checkpointing.interval", "500 ms"));
        StreamExecutionEnvironment job =
            StreamExecutionEnvironment.createLocalEnvironment(2, settings);
        KafkaSource<Tuple2<String, byte[]>> rows = KafkaSource.<Tuple2<String, byte[]>>builder()
            .setBootstrapServers(given.servers()).setTopics(given.source()).setGroupId(given.name())
            .setStartingOffsets(OffsetsInitializer.earliest())
            .setDeserializer(new Reading())
            .setProperty("isolation.level", "read_committed").build();
        KafkaSink<Tuple2<String, byte[]>> sink = KafkaSink.<Tuple2<String, byte[]>>builder()
            .setBootstrapServers(given.servers())
            .setRecordSerializer(new Writing(given.target()))
            .setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(given.name())
            .setProperty("transaction.timeout.ms", "600000").build();
        job.fromSource(rows, WatermarkStrategy.noWatermarks(), "rows", pair())
            .keyBy(row -> row.f0, Types.STRING)
            .process(new Counting(), pair())
            .sinkTo(sink);
        JobClient running = job.executeAsync(given.name());
        await(given.servers(), given.target(), given.messages());
        given.print(FIRST.get());
        running.cancel().get();
        System.exit(0);
    }
}
