import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Queue;
import org.apache.flink.api.common.ExecutionConfig;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.metrics.Counter;
import org.apache.flink.runtime.checkpoint.OperatorSubtaskState;
import org.apache.flink.streaming.api.functions.windowing.WindowFunction;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.api.windowing.assigners.*;
import org.apache.flink.streaming.api.windowing.evictors.*;
import org.apache.flink.streaming.api.windowing.triggers.*;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.api.windowing.windows.Window;
import org.apache.flink.streaming.runtime.operators.windowing.EvictingWindowOperator;
import org.apache.flink.streaming.runtime.operators.windowing.WindowOperator;
import org.apache.flink.streaming.runtime.operators.windowing.WindowOperatorBuilder;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.runtime.watermarkstatus.StatusWatermarkValve;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * A window operator in Flink's keyed test harness, behind a one-channel StatusWatermarkValve as in a job.
 *
 * <p>Setups: plain (sum over ReducingState), list-state (sum over ListState), evicting (EvictingWindowOperator
 * with an evictor that keeps everything, if the transcript has none), cold-restart (plain, but after a restore
 * the operator does not receive the last watermark again, so event time starts at the minimum).
 */
class WindowDriver implements Driver {
    private static final TypeInformation<Tuple2<String, Long>> INPUT = Types.TUPLE(Types.STRING, Types.LONG);

    private final JsonNode spec;
    private final String setup;
    private final OutputTag<Tuple2<String, Long>> lateTag = new OutputTag<>("late", INPUT);
    private KeyedOneInputStreamOperatorTestHarness<String, Tuple2<String, Long>, String> harness;
    private StatusWatermarkValve valve;
    private Counter drops;
    private long dropsSeen;
    private long checkpoints;
    private long clock;
    private long watermark = Long.MIN_VALUE;

    WindowDriver(JsonNode spec, String setup) throws Exception {
        this.spec = spec;
        this.setup = setup;
        start(null);
    }

    // ------------------------------------------------------------------ building

    private void start(OperatorSubtaskState snapshot) throws Exception {
        OneInputStreamOperator<Tuple2<String, Long>, String> operator = operator();
        harness = new KeyedOneInputStreamOperatorTestHarness<>(operator, v -> v.f0, Types.STRING);
        harness.getProcessingTimeService().setCurrentTime(clock);
        harness.setup();
        if (snapshot != null) {
            harness.initializeState(snapshot);
        }
        harness.open();
        valve = new StatusWatermarkValve(1);
        Field field = WindowOperator.class.getDeclaredField("numLateRecordsDropped");
        field.setAccessible(true);
        drops = (Counter) field.get(operator);
        dropsSeen = drops.getCount();
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private OneInputStreamOperator<Tuple2<String, Long>, String> operator() {
        WindowOperatorBuilder<Tuple2<String, Long>, String, Window> builder =
                new WindowOperatorBuilder<>(
                        (WindowAssigner) assigner(), (Trigger) trigger(), new ExecutionConfig(), INPUT,
                        v -> v.f0, Types.STRING);
        long lateness = spec.path("allowed_lateness_ms").asLong(0);
        if (lateness != 0) {
            builder.allowedLateness(Duration.ofMillis(lateness));
        }
        if (spec.path("late").asText().equals("side-output")) {
            builder.sideOutputLateData(lateTag);
        }
        if (spec.has("evictor")) {
            builder.evictor((Evictor) evictor(spec.get("evictor")));
        } else if (setup.equals("evicting")) {
            builder.evictor((Evictor) CountEvictor.of(Long.MAX_VALUE));
        }
        boolean sum = !spec.path("aggregate").asText("sum").equals("list");
        WindowFunction<Tuple2<String, Long>, String, String, Window> function = new Show(sum);
        OneInputStreamOperator<Tuple2<String, Long>, String> operator =
                sum && !setup.equals("list-state")
                        ? builder.reduce((a, b) -> Tuple2.of(a.f0, a.f1 + b.f1), function)
                        : builder.apply(function);
        boolean evicts = operator instanceof EvictingWindowOperator;
        if (evicts != (spec.has("evictor") || setup.equals("evicting"))) {
            throw new IllegalStateException("unexpected operator " + operator.getClass());
        }
        return operator;
    }

    private WindowAssigner<?, ?> assigner() {
        JsonNode w = spec.get("window");
        boolean event = !spec.path("time").asText("event").equals("processing");
        Duration size = Duration.ofMillis(w.path("size_ms").asLong());
        Duration slide = Duration.ofMillis(w.path("slide_ms").asLong());
        Duration offset = Duration.ofMillis(w.path("offset_ms").asLong(0));
        switch (w.get("kind").asText()) {
            case "tumbling":
                return event
                        ? TumblingEventTimeWindows.of(size, offset)
                        : TumblingProcessingTimeWindows.of(size, offset);
            case "sliding":
                return event
                        ? SlidingEventTimeWindows.of(size, slide, offset)
                        : SlidingProcessingTimeWindows.of(size, slide, offset);
            case "global":
                return spec.path("trigger").path("kind").asText().equals("end-of-stream")
                        ? GlobalWindows.createWithEndOfStreamTrigger()
                        : GlobalWindows.create();
            default:
                return sessions(w, event);
        }
    }

    private static WindowAssigner<?, ?> sessions(JsonNode w, boolean event) {
        JsonNode byValue = w.path("gap_by_value");
        JsonNode byKey = w.path("gap_by_key");
        if (byValue.isMissingNode() && byKey.isMissingNode()) {
            Duration gap = Duration.ofMillis(w.get("gap_ms").asLong());
            return event ? EventTimeSessionWindows.withGap(gap) : ProcessingTimeSessionWindows.withGap(gap);
        }
        for (JsonNode gap : byValue) {
            if (gap.asLong() == 0) { // Flink's dynamic sessions refuse it; its test uses an assigner like this
                return new PointSessions(w);
            }
        }
        return event
                ? EventTimeSessionWindows.<Tuple2<String, Long>>withDynamicGap(v -> gap(w, v))
                : ProcessingTimeSessionWindows.<Tuple2<String, Long>>withDynamicGap(v -> gap(w, v));
    }

    private static long gap(JsonNode w, Tuple2<String, Long> v) {
        JsonNode gap = w.path("gap_by_value").path(v.f1.toString());
        gap = gap.isMissingNode() ? w.path("gap_by_key").path(v.f0) : gap;
        return gap.isMissingNode() ? w.get("gap_ms").asLong() : gap.asLong();
    }

    /** As PointSessionWindows of Flink's WindowOperatorTest. */
    private static class PointSessions extends EventTimeSessionWindows {
        private final transient JsonNode w;

        PointSessions(JsonNode w) {
            super(w.get("gap_ms").asLong());
            this.w = w;
        }

        @Override
        @SuppressWarnings("unchecked")
        public Collection<TimeWindow> assignWindows(Object v, long t, WindowAssignerContext context) {
            return List.of(new TimeWindow(t, t + gap(w, (Tuple2<String, Long>) v)));
        }
    }

    private Trigger<?, ?> trigger() {
        if (!spec.has("trigger")) {
            return assigner().getDefaultTrigger();
        }
        JsonNode t = spec.get("trigger");
        Trigger<?, ?> trigger;
        switch (t.get("kind").asText()) {
            case "event-time":
                trigger = EventTimeTrigger.create();
                break;
            case "processing-time":
                trigger = ProcessingTimeTrigger.create();
                break;
            case "count":
                trigger = CountTrigger.of(t.get("count").asLong());
                break;
            case "continuous-event-time":
                trigger = ContinuousEventTimeTrigger.of(Duration.ofMillis(t.get("interval_ms").asLong()));
                break;
            case "end-of-stream":
                trigger = GlobalWindows.createWithEndOfStreamTrigger().getDefaultTrigger();
                break;
            default:
                throw new NoCounterpart("trigger " + t);
        }
        return t.path("purging").asBoolean() ? PurgingTrigger.of(trigger) : trigger;
    }

    private static Evictor<?, ?> evictor(JsonNode e) {
        boolean after = e.path("after").asBoolean();
        switch (e.get("kind").asText()) {
            case "count":
                return CountEvictor.of(e.get("keep").asLong(), after);
            case "time":
                return TimeEvictor.of(Duration.ofMillis(e.get("window_ms").asLong()), after);
            default:
                return DeltaEvictor.<Tuple2<String, Long>, Window>of(
                        e.get("threshold").asDouble(), (old, newest) -> newest.f1 - old.f1, after);
        }
    }

    /** Writes [key, value, window] as JSON; the timestamp is added from the stream record. */
    private static class Show implements WindowFunction<Tuple2<String, Long>, String, String, Window> {
        private final boolean sum;

        Show(boolean sum) {
            this.sum = sum;
        }

        @Override
        public void apply(
                String key, Window window, Iterable<Tuple2<String, Long>> input, Collector<String> out)
                throws Exception {
            List<Long> values = new ArrayList<>();
            input.forEach(v -> values.add(v.f1));
            Object value = sum ? (Object) values.stream().mapToLong(v -> v).sum() : values;
            Object span = window instanceof TimeWindow
                    ? List.of(((TimeWindow) window).getStart(), ((TimeWindow) window).getEnd())
                    : List.of();
            out.collect(Replay.JSON.writeValueAsString(List.of(key, value, span)));
        }
    }

    // ------------------------------------------------------------------ steps

    @Override
    public Map<String, Object> step(String action, JsonNode arg) throws Exception {
        switch (action) {
            case "in":
                for (JsonNode row : arg) {
                    Tuple2<String, Long> v = Tuple2.of(row.get(0).asText(), row.get(1).asLong());
                    harness.processElement(
                            row.get(2).isNull() ? new StreamRecord<>(v) : new StreamRecord<>(v, row.get(2).asLong()));
                }
                break;
            case "watermark_ms":
                advance(arg.asLong());
                break;
            case "end_of_input":
                advance(Long.MAX_VALUE);
                harness.endInput();
                break;
            case "processing_time_ms":
                clock = Math.max(clock, arg.asLong());
                harness.setProcessingTime(clock);
                break;
            case "restart":
                OperatorSubtaskState snapshot = harness.snapshot(++checkpoints, clock);
                Map<String, Object> before = observed();
                harness.close();
                start(snapshot);
                if (!setup.equals("cold-restart") && watermark > Long.MIN_VALUE) {
                    advance(watermark);
                }
                if (!before.isEmpty()) {
                    return before;
                }
                break;
            default:
                throw new NoCounterpart("action " + action);
        }
        return observed();
    }

    private void advance(long to) throws Exception {
        watermark = Math.max(watermark, to);
        valve.inputWatermark(new Watermark(to), 0, new SilentOutput<Object>() {
            @Override
            public void emitWatermark(Watermark mark) throws Exception {
                harness.processWatermark(mark);
            }
        });
    }

    private Map<String, Object> observed() throws Exception {
        Map<String, Object> shown = Replay.newStep();
        List<Object> out = new ArrayList<>();
        boolean passed = false;
        for (Object o : harness.getOutput()) {
            if (o instanceof StreamRecord) {
                StreamRecord<?> r = (StreamRecord<?>) o;
                JsonNode row = Replay.JSON.readTree((String) r.getValue());
                out.add(Arrays.asList(
                        row.get(0), row.get(1), r.hasTimestamp() ? r.getTimestamp() : null, row.get(2)));
                if (passed) {
                    shown.put("order", "a record after the watermark that released it");
                }
            } else if (o instanceof Watermark) {
                passed = true;
            }
        }
        harness.getOutput().clear();
        if (!out.isEmpty()) {
            shown.put("out", out);
        }
        Queue<StreamRecord<Tuple2<String, Long>>> side = harness.getSideOutput(lateTag);
        if (side != null && !side.isEmpty()) {
            List<Object> late = new ArrayList<>();
            side.forEach(r -> late.add(
                    Arrays.asList(r.getValue().f0, r.getValue().f1, r.hasTimestamp() ? r.getTimestamp() : null)));
            side.clear();
            shown.put("late", late);
        }
        if (drops.getCount() != dropsSeen) {
            shown.put("dropped", drops.getCount() - dropsSeen);
            dropsSeen = drops.getCount();
        }
        return shown;
    }

    @Override
    public void close() throws Exception {
        harness.close();
    }
}
