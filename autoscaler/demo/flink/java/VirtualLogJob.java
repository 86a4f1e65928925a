import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichMapFunction;
import org.apache.flink.api.common.serialization.SimpleStringEncoder;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.connector.source.Boundedness;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.Source;
import org.apache.flink.api.connector.source.SourceReader;
import org.apache.flink.api.connector.source.SourceReaderContext;
import org.apache.flink.api.connector.source.SourceSplit;
import org.apache.flink.api.connector.source.SplitEnumerator;
import org.apache.flink.api.connector.source.SplitEnumeratorContext;
import org.apache.flink.connector.file.sink.FileSink;
import org.apache.flink.core.io.InputStatus;
import org.apache.flink.core.io.SimpleVersionedSerializer;
import org.apache.flink.metrics.Counter;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.filesystem.bucketassigners.BasePathBucketAssigner;
import org.apache.flink.streaming.api.functions.sink.filesystem.rollingpolicies.OnCheckpointRollingPolicy;
import org.apache.flink.util.ParameterTool;

/**
 * An ordinary streaming job. It reads a log, calls a slow service for each record (that is, it waits), counts the
 * records of each key in keyed state, and writes every record with its count to files, exactly once.
 *
 * <p>The log is virtual: its number of records is the integral of the rates in a file. It therefore grows whether or
 * not the job reads it, and a position in it always names the same record.
 *
 * <p>Arguments: --name NAME --clock FILE --sink DIRECTORY --partitions N --keys N --max-parallelism N
 * --cost MILLISECONDS
 */
public final class VirtualLogJob {

    public static void main(String[] arguments) throws Exception {
        ParameterTool given = ParameterTool.fromArgs(arguments);
        int keys = given.getInt("keys");
        StreamExecutionEnvironment environment = StreamExecutionEnvironment.getExecutionEnvironment();
        // As with a topic, readers in excess of the partitions would have nothing to read.
        environment.setMaxParallelism(given.getInt("max-parallelism"));
        environment
                .fromSource(
                        new VirtualLog(given.get("clock"), given.getInt("partitions")),
                        WatermarkStrategy.noWatermarks(),
                        "log")
                .uid("log")
                .map(new SlowService(given.getInt("cost")))
                .name("service")
                .uid("service")
                .keyBy(record -> (int) (record.place % keys))
                .map(new CountPerKey(keys))
                .name("count")
                .uid("count")
                .sinkTo(
                        FileSink.forRowFormat(
                                        new org.apache.flink.core.fs.Path(given.get("sink")),
                                        new SimpleStringEncoder<String>())
                                .withBucketAssigner(new BasePathBucketAssigner<>())
                                .withRollingPolicy(OnCheckpointRollingPolicy.build())
                                .build())
                .name("files")
                .uid("files");
        environment.execute(given.get("name"));
    }

    /** A record: its position in the log, and the result of its processing. */
    public static class Record {
        public int partition;
        public long offset;
        public long place;
        public String worker = "";
        public double at;
    }

    /** Waits, as if for the response of a service, and notes the worker and the time of processing. */
    static class SlowService extends RichMapFunction<Record, Record> {
        private final int cost;
        private transient String worker;

        SlowService(int cost) {
            this.cost = cost;
        }

        @Override
        public void open(OpenContext context) {
            worker = getRuntimeContext().getMetricGroup().getAllVariables().get("<tm_id>");
        }

        @Override
        public Record map(Record record) throws Exception {
            Thread.sleep(cost);
            record.worker = worker;
            record.at = System.currentTimeMillis() / 1000.0;
            return record;
        }
    }

    /** Counts the records of each key; a line has partition, offset, worker, time, key and the count so far. */
    static class CountPerKey extends RichMapFunction<Record, String> {
        private final int keys;
        private transient ValueState<Long> count;

        CountPerKey(int keys) {
            this.keys = keys;
        }

        @Override
        public void open(OpenContext context) {
            count = getRuntimeContext().getState(new ValueStateDescriptor<>("count", Long.class));
        }

        @Override
        public String map(Record record) throws Exception {
            Long before = count.value();
            long now = before == null ? 1 : before + 1;
            count.update(now);
            return String.join(
                    ",",
                    Integer.toString(record.partition),
                    Long.toString(record.offset),
                    record.worker,
                    String.format(Locale.ROOT, "%.3f", record.at),
                    Long.toString(record.place % keys),
                    Long.toString(now));
        }
    }

    /** The log as a source: a split is a partition and the position up to which it has been read. */
    static class VirtualLog implements Source<Record, Split, List<Split>> {
        private final String clock;
        private final int partitions;

        VirtualLog(String clock, int partitions) {
            this.clock = clock;
            this.partitions = partitions;
        }

        @Override
        public Boundedness getBoundedness() {
            return Boundedness.CONTINUOUS_UNBOUNDED;
        }

        @Override
        public SplitEnumerator<Split, List<Split>> createEnumerator(SplitEnumeratorContext<Split> context) {
            List<Split> all = new ArrayList<>();
            for (int partition = 0; partition < partitions; partition++) {
                all.add(new Split(partition, 0));
            }
            return new Assigner(context, all);
        }

        @Override
        public SplitEnumerator<Split, List<Split>> restoreEnumerator(
                SplitEnumeratorContext<Split> context, List<Split> unassigned) {
            return new Assigner(context, unassigned);
        }

        @Override
        public SourceReader<Record, Split> createReader(SourceReaderContext context) {
            return new Reader(context, new Clock(Path.of(clock)), partitions);
        }

        @Override
        public SimpleVersionedSerializer<Split> getSplitSerializer() {
            return new SplitSerializer();
        }

        @Override
        public SimpleVersionedSerializer<List<Split>> getEnumeratorCheckpointSerializer() {
            return new SplitsSerializer();
        }
    }

    record Split(int partition, long position) implements SourceSplit {
        @Override
        public String splitId() {
            return String.valueOf(partition);
        }
    }

    /** Assigns the partitions to the readers round-robin once all readers have registered. */
    static class Assigner implements SplitEnumerator<Split, List<Split>> {
        private final SplitEnumeratorContext<Split> context;
        private final List<Split> unassigned;

        Assigner(SplitEnumeratorContext<Split> context, List<Split> unassigned) {
            this.context = context;
            this.unassigned = new ArrayList<>(unassigned);
        }

        @Override
        public void start() {}

        @Override
        public void handleSplitRequest(int reader, String host) {}

        @Override
        public void addSplitsBack(List<Split> splits, int reader) {
            unassigned.addAll(splits);
            assign();
        }

        @Override
        public void addReader(int reader) {
            assign();
        }

        private void assign() {
            List<Integer> readers = new ArrayList<>(context.registeredReaders().keySet());
            if (readers.size() < context.currentParallelism()) {
                return;
            }
            for (Split split : unassigned) {
                context.assignSplit(split, readers.get(split.partition % readers.size()));
            }
            unassigned.clear();
        }

        @Override
        public List<Split> snapshotState(long checkpoint) {
            return new ArrayList<>(unassigned);
        }

        @Override
        public void close() {}
    }

    /** Reads its partitions in turn. The offered records that it has not read are its lag. */
    static class Reader implements SourceReader<Record, Split> {
        private static final long LOOK_EVERY = 20; // milliseconds, when there is nothing to read
        private final SourceReaderContext context;
        private final Clock clock;
        private final int partitions;
        private final Counter read;
        private final List<Integer> mine = new ArrayList<>();
        // The metrics thread reads this field too.
        private volatile long[] positions = new long[0];
        private int next;

        Reader(SourceReaderContext context, Clock clock, int partitions) {
            this.context = context;
            this.clock = clock;
            this.partitions = partitions;
            this.read = context.metricGroup().getIOMetricGroup().getNumRecordsInCounter();
        }

        @Override
        public void start() {
            context.metricGroup().setPendingRecordsGauge(this::pending);
        }

        private long pending() {
            long offered = clock.offered();
            long[] now = positions;
            long sum = 0;
            for (int index = 0; index < now.length; index++) {
                sum += Math.max(0, head(offered, mine.get(index)) - now[index]);
            }
            return sum;
        }

        /** Records are assigned to the partitions round-robin. */
        private long head(long offered, int partition) {
            return (offered + partitions - 1 - partition) / partitions;
        }

        @Override
        public InputStatus pollNext(ReaderOutput<Record> output) {
            long offered = clock.offered();
            for (int tried = 0; tried < positions.length; tried++) {
                int index = next;
                next = (next + 1) % positions.length;
                int partition = mine.get(index);
                if (positions[index] < head(offered, partition)) {
                    Record record = new Record();
                    record.partition = partition;
                    record.offset = positions[index]++;
                    record.place = record.offset * partitions + partition;
                    read.inc();
                    output.collect(record);
                    return InputStatus.MORE_AVAILABLE;
                }
            }
            return InputStatus.NOTHING_AVAILABLE;
        }

        @Override
        public CompletableFuture<Void> isAvailable() {
            return CompletableFuture.runAsync(
                    () -> {}, CompletableFuture.delayedExecutor(LOOK_EVERY, TimeUnit.MILLISECONDS));
        }

        @Override
        public void addSplits(List<Split> splits) {
            long[] more = Arrays.copyOf(positions, positions.length + splits.size());
            for (Split split : splits) {
                more[mine.size()] = split.position;
                mine.add(split.partition);
            }
            positions = more;
        }

        @Override
        public List<Split> snapshotState(long checkpoint) {
            List<Split> state = new ArrayList<>();
            for (int index = 0; index < positions.length; index++) {
                state.add(new Split(mine.get(index), positions[index]));
            }
            return state;
        }

        @Override
        public void notifyNoMoreSplits() {}

        @Override
        public void close() {}
    }

    /** How many records have been offered until now; the file is read again after it has been replaced. */
    static class Clock {
        private final Path path;
        private FileTime version = FileTime.fromMillis(0);
        private long lookAgain;
        private double start;
        private double duration;
        private double[][] steps = {};

        Clock(Path path) {
            this.path = path;
        }

        synchronized long offered() {
            long now = System.currentTimeMillis();
            if (now >= lookAgain) {
                lookAgain = now + 200;
                look();
            }
            double seconds = Math.min(Math.max(now / 1000.0 - start, 0), duration);
            double total = 0;
            for (int index = 0; index < steps.length; index++) {
                double end = index + 1 < steps.length ? steps[index + 1][0] : duration;
                total += steps[index][1] * Math.max(0, Math.min(seconds, end) - steps[index][0]);
            }
            return (long) Math.floor(total + 1e-9);
        }

        private void look() {
            try {
                FileTime modified = Files.getLastModifiedTime(path);
                if (modified.equals(version)) {
                    return;
                }
                JsonNode content = new ObjectMapper().readTree(Files.readAllBytes(path));
                start = content.get("start").asDouble();
                duration = content.get("duration").asDouble();
                JsonNode told = content.get("steps");
                steps = new double[told.size()][];
                for (int index = 0; index < steps.length; index++) {
                    steps[index] = new double[] {told.get(index).get(0).asDouble(), told.get(index).get(1).asDouble()};
                }
                version = modified;
            } catch (NoSuchFileException missing) {
                // The load has not begun: no records are offered yet.
            } catch (IOException error) {
                throw new IllegalStateException("the clock " + path + " cannot be read", error);
            }
        }
    }

    static class SplitSerializer implements SimpleVersionedSerializer<Split> {
        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(Split split) {
            return (split.partition + ":" + split.position).getBytes();
        }

        @Override
        public Split deserialize(int version, byte[] bytes) {
            String[] parts = new String(bytes).split(":");
            return new Split(Integer.parseInt(parts[0]), Long.parseLong(parts[1]));
        }
    }

    static class SplitsSerializer implements SimpleVersionedSerializer<List<Split>> {
        private final SplitSerializer one = new SplitSerializer();

        @Override
        public int getVersion() {
            return 1;
        }

        @Override
        public byte[] serialize(List<Split> splits) {
            List<String> texts = new ArrayList<>();
            for (Split split : splits) {
                texts.add(new String(one.serialize(split)));
            }
            return String.join(" ", texts).getBytes();
        }

        @Override
        public List<Split> deserialize(int version, byte[] bytes) {
            List<Split> splits = new ArrayList<>();
            for (String text : new String(bytes).split(" ")) {
                if (!text.isEmpty()) {
                    splits.add(one.deserialize(version, text.getBytes()));
                }
            }
            return splits;
        }
    }
}
