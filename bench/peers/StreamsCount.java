// Kafka Streams beside the jobs of bench/kafka.py: a count for each id in RocksDB, or no state, from
// topic to topic, exactly-once. Prints one line of JSON when it runs and one when all is committed.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public final class StreamsCount {
    static final ObjectMapper JSON = new ObjectMapper();
    static final AtomicLong FIRST = new AtomicLong();
    static final AtomicLong BEGAN = new AtomicLong();
    static final AtomicLong ENDED = new AtomicLong();
    static final AtomicLong RESTORED = new AtomicLong();

    static final class Counting implements Processor<String, byte[], String, byte[]> {
        private ProcessorContext<String, byte[]> context;
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(ProcessorContext<String, byte[]> given) {
            context = given;
            counts = given.getStateStore("counts");
        }

        @Override
        public void process(Record<String, byte[]> message) {
            if (FIRST.get() == 0) {
                FIRST.compareAndSet(0, System.nanoTime());
            }
            try {
                JsonNode row = JSON.readTree(message.value());
                String id = row.get("id").asText();
                Long held = counts.get(id);
                long count = (held == null ? 0 : held) + 1;
                counts.put(id, count);
                context.forward(message.withKey(id).withValue(Peer.counted(JSON, row, count)));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }

    static final class Restoring implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition one, String store, long first, long last) {
            BEGAN.compareAndSet(0, System.nanoTime());
            ENDED.compareAndSet(0, System.nanoTime());
        }

        @Override
        public void onBatchRestored(TopicPartition one, String store, long last, long count) {
            RESTORED.addAndGet(count);
        }

        @Override
        public void onRestoreEnd(TopicPartition one, String store, long count) {
            ENDED.set(System.nanoTime());
        }
    }

    public static void main(String[] words) throws Exception {
        Peer own = Peer.of(words);
        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(Stores.keyValueStoreBuilder(
            Stores.persistentKeyValueStore("counts"), Serdes.String(), Serdes.Long()));
        builder.stream(own.source(), Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .process(Counting::new, "counts")
            .to(own.target(), Produced.with(Serdes.String(), Serdes.ByteArray()));
        Properties given = new Properties();
        given.put(StreamsConfig.APPLICATION_ID_CONFIG, own.name());
        given.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, own.servers());
        given.put(StreamsConfig.STATE_DIR_CONFIG, own.folder());
        given.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        given.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        given.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        given.put("auto.offset.reset", "earliest");
        for (int at = 6; at < words.length; at++) {
            String[] pair = words[at].split("=", 2);
            given.put(pair[0], pair[1]);
        }
        KafkaStreams streams = new KafkaStreams(builder.build(), given);
        CountDownLatch running = new CountDownLatch(1);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        streams.setGlobalStateRestoreListener(new Restoring());
        streams.start();
        running.await();
        double restoring = (ENDED.get() - BEGAN.get()) / 1e9;
        System.out.println("{\"restored\": " + RESTORED + ", \"seconds\": " + restoring + "}");
        if (own.messages() == 0) {
            Thread.sleep(Long.MAX_VALUE);
        }
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", own.servers()))) {
            long done = 0;
            while (done < own.messages()) {
                Thread.sleep(20);
                done = admin.listConsumerGroupOffsets(own.name()).partitionsToOffsetAndMetadata().get()
                    .values().stream().mapToLong(one -> one == null ? 0 : one.offset()).sum();
            }
        }
        own.print(FIRST.get());
        streams.close();
    }
}
