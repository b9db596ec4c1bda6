import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.flink.api.common.eventtime.Watermark;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkOutput;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.connector.source.ReaderOutput;
import org.apache.flink.api.connector.source.SourceOutput;
import org.apache.flink.runtime.metrics.groups.UnregisteredMetricGroups;
import org.apache.flink.streaming.api.operators.source.TimestampsAndWatermarks;
import org.apache.flink.streaming.runtime.operators.TimestampsAndWatermarksOperator;
import org.apache.flink.streaming.runtime.operators.TimestampsAndWatermarksOperatorFactory;
import org.apache.flink.streaming.runtime.watermarkstatus.StatusWatermarkValve;
import org.apache.flink.streaming.runtime.watermarkstatus.WatermarkStatus;
import org.apache.flink.streaming.util.OneInputStreamOperatorTestHarness;
import org.apache.flink.util.clock.ManualClock;

/**
 * Flink's watermark generators, polled once in each processing_time_ms step.
 *
 * <p>Setups: source (partitions are the splits of one FLIP-27 source: ProgressiveTimestampsAndWatermarks with
 * WatermarkOutputMultiplexer), operator (TimestampsAndWatermarksOperator; one partition only), valve (one such
 * operator per partition, joined by StatusWatermarkValve, as in a shuffle).
 */
class WatermarkDrivers {
    static Driver build(JsonNode spec, String setup) throws Exception {
        int partitions = spec.path("partitions").asInt(1);
        if (setup.equals("source")) {
            return new Source(strategy(spec), partitions);
        }
        if (partitions > 1 != setup.equals("valve")) {
            strategy(spec);
            throw new Driver.NoCounterpart(setup + " with " + partitions + " partition(s)");
        }
        return new Operators(strategy(spec), partitions);
    }

    private static WatermarkStrategy<Long> strategy(JsonNode spec) {
        JsonNode s = spec.get("strategy");
        WatermarkStrategy<Long> strategy;
        switch (s.get("kind").asText()) {
            case "bounded-out-of-orderness":
                strategy = WatermarkStrategy.forBoundedOutOfOrderness(Duration.ofMillis(s.get("delay_ms").asLong()));
                break;
            case "monotonous":
                strategy = WatermarkStrategy.forMonotonousTimestamps();
                break;
            default:
                long marker = s.get("marker_value").asLong();
                strategy = WatermarkStrategy.forGenerator(context -> new Punctuated(marker));
        }
        return spec.has("idle_after_ms")
                ? strategy.withIdleness(Duration.ofMillis(spec.get("idle_after_ms").asLong()))
                : strategy;
    }

    private static class Punctuated implements WatermarkGenerator<Long> {
        private final long marker;

        Punctuated(long marker) {
            this.marker = marker;
        }

        @Override
        public void onEvent(Long value, long timestamp, WatermarkOutput output) {
            if (value == marker) {
                output.emitWatermark(new Watermark(timestamp));
            }
        }

        @Override
        public void onPeriodicEmit(WatermarkOutput output) {}
    }

    /** Collects what is emitted downstream. */
    private abstract static class Base extends SilentOutput<Long> implements Driver {
        private final List<Object> emits = new ArrayList<>();
        private long current = Long.MIN_VALUE;
        long clock;

        abstract void row(int partition, long value, long timestamp) throws Exception;

        abstract void poll(long now) throws Exception;

        abstract void end() throws Exception;

        @Override
        public void emitWatermark(org.apache.flink.streaming.api.watermark.Watermark mark) {
            current = mark.getTimestamp();
            emits.add(Map.of("watermark", current));
        }

        @Override
        public void emitWatermarkStatus(WatermarkStatus status) {
            emits.add(Map.of("status", status.isIdle() ? "idle" : "active"));
        }

        @Override
        public Map<String, Object> step(String action, JsonNode arg) throws Exception {
            emits.clear();
            switch (action) {
                case "in":
                    for (JsonNode r : arg) {
                        row(r.size() > 3 ? r.get(3).asInt() : 0, r.get(1).asLong(), r.get(2).asLong());
                    }
                    break;
                case "processing_time_ms":
                    poll(arg.asLong());
                    clock = arg.asLong();
                    break;
                case "end_of_input":
                    end();
                    break;
                default:
                    throw new NoCounterpart("action " + action);
            }
            Map<String, Object> shown = Replay.newStep();
            if (!emits.isEmpty()) {
                shown.put("emits", List.copyOf(emits));
            }
            shown.put("current_ms", current);
            return shown;
        }
    }

    private static class Source extends Base {
        private final ManualClock manual = new ManualClock();
        private final TimestampsAndWatermarks<Long> logic;
        private final List<SourceOutput<Long>> splits = new ArrayList<>();
        private final ReaderOutput<Long> main;

        Source(WatermarkStrategy<Long> strategy, int partitions) {
            logic = TimestampsAndWatermarks.createProgressiveEventTimeLogic(
                    strategy,
                    UnregisteredMetricGroups.createUnregisteredOperatorMetricGroup(),
                    null, // no timer of its own: the transcript says when to poll
                    0L,
                    manual,
                    manual,
                    UnregisteredMetricGroups.createUnregisteredTaskMetricGroup().getIOMetricGroup());
            main = logic.createMainOutput(this, new TimestampsAndWatermarks.WatermarkUpdateListener() {
                @Override
                public void updateIdle(boolean idle) {}

                @Override
                public void updateCurrentEffectiveWatermark(long mark) {}

                @Override
                public void updateCurrentSplitWatermark(String split, long mark) {}

                // no @Override: new in 2.1
                public void updateCurrentSplitIdle(String split, boolean idle) {}

                @Override
                public void splitFinished(String split) {}
            });
            for (int i = 0; i < partitions; i++) {
                splits.add(main.createOutputForSplit(String.valueOf(i)));
            }
        }

        @Override
        void row(int partition, long value, long timestamp) {
            splits.get(partition).collect(value, timestamp);
        }

        @Override
        void poll(long now) {
            manual.advanceTime(now - clock, TimeUnit.MILLISECONDS);
            logic.emitImmediateWatermark(now);
        }

        @Override
        void end() throws Exception { // as SourceOperator does when its reader has no more input
            emitWatermark(org.apache.flink.streaming.api.watermark.Watermark.MAX_WATERMARK);
        }
    }

    private static class Operators extends Base {
        private final List<OneInputStreamOperatorTestHarness<Long, Long>> harnesses = new ArrayList<>();
        private final StatusWatermarkValve valve;

        Operators(WatermarkStrategy<Long> strategy, int partitions) throws Exception {
            valve = new StatusWatermarkValve(partitions);
            for (int i = 0; i < partitions; i++) {
                OneInputStreamOperatorTestHarness<Long, Long> h =
                        new OneInputStreamOperatorTestHarness<>(
                                new TimestampsAndWatermarksOperatorFactory<>(strategy, true));
                h.getExecutionConfig().setAutoWatermarkInterval(1L << 60); // polled by hand
                h.open();
                harnesses.add(h);
            }
        }

        @Override
        void row(int partition, long value, long timestamp) throws Exception {
            harnesses.get(partition).processElement(value, timestamp);
            pass();
        }

        @Override
        void poll(long now) throws Exception {
            for (OneInputStreamOperatorTestHarness<Long, Long> h : harnesses) {
                h.setProcessingTime(now);
                ((TimestampsAndWatermarksOperator<?>) h.getOperator()).onProcessingTime(now);
            }
            pass();
        }

        @Override
        void end() throws Exception {
            for (OneInputStreamOperatorTestHarness<Long, Long> h : harnesses) {
                h.processWatermark(Long.MAX_VALUE);
            }
            pass();
        }

        /** What the operators emitted goes to the valve, partition by partition. */
        private void pass() throws Exception {
            for (int i = 0; i < harnesses.size(); i++) {
                for (Object o : harnesses.get(i).getOutput()) {
                    if (o instanceof org.apache.flink.streaming.api.watermark.Watermark) {
                        valve.inputWatermark((org.apache.flink.streaming.api.watermark.Watermark) o, i, this);
                    } else if (o instanceof WatermarkStatus) {
                        valve.inputWatermarkStatus((WatermarkStatus) o, i, this);
                    }
                }
                harnesses.get(i).getOutput().clear();
            }
        }

        @Override
        public void close() throws Exception {
            for (OneInputStreamOperatorTestHarness<Long, Long> h : harnesses) {
                h.close();
            }
        }
    }
}
