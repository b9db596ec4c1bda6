import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.operators.OneInputStreamOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.apache.flink.streaming.util.OneInputStreamOperatorTestHarness;
import org.apache.flink.table.runtime.operators.bundle.KeyedMapBundleOperator;
import org.apache.flink.table.runtime.operators.bundle.MapBundleFunction;
import org.apache.flink.table.runtime.operators.bundle.MapBundleOperator;
import org.apache.flink.table.runtime.operators.bundle.trigger.CountBundleTrigger;
import org.apache.flink.util.Collector;

/** (Keyed)MapBundleOperator with CountBundleTrigger, as in Flink's MapBundleOperatorTest. */
class BundleDriver implements Driver {
    private final OneInputStreamOperatorTestHarness<Tuple2<String, String>, Tuple2<String, String>> harness;
    private final Join function = new Join();

    BundleDriver(JsonNode spec, String setup) throws Exception {
        CountBundleTrigger<Tuple2<String, String>> trigger =
                new CountBundleTrigger<>(spec.get("count").asLong());
        if (setup.startsWith("keyed")) {
            OneInputStreamOperator<Tuple2<String, String>, Tuple2<String, String>> operator =
                    new KeyedMapBundleOperator<>(function, trigger);
            harness = new KeyedOneInputStreamOperatorTestHarness<>(operator, v -> v.f0, Types.STRING);
        } else {
            harness = new OneInputStreamOperatorTestHarness<>(
                    new MapBundleOperator<>(function, trigger, (Tuple2<String, String> v) -> v.f0));
        }
        harness.open();
    }

    @Override
    public Map<String, Object> step(String action, JsonNode arg) throws Exception {
        switch (action) {
            case "in":
                for (JsonNode row : arg) {
                    harness.processElement(
                            new StreamRecord<>(Tuple2.of(row.get(0).asText(), row.get(1).asText())));
                }
                break;
            case "end_of_input":
                harness.endInput();
                harness.getOperator().finish();
                break;
            default:
                throw new NoCounterpart("action " + action);
        }
        Map<String, Object> shown = Replay.newStep();
        List<Object> out = new ArrayList<>();
        for (StreamRecord<? extends Tuple2<String, String>> r : harness.extractOutputStreamRecords()) {
            out.add(Arrays.asList(r.getValue().f0, r.getValue().f1, r.hasTimestamp() ? r.getTimestamp() : null));
        }
        harness.getOutput().clear();
        if (!out.isEmpty()) {
            shown.put("out", out);
        }
        shown.put("finished", function.finished);
        return shown;
    }

    @Override
    public void close() throws Exception {
        harness.close();
    }

    private static class Join
            extends MapBundleFunction<String, String, Tuple2<String, String>, Tuple2<String, String>> {
        private int finished;

        @Override
        public String addInput(String value, Tuple2<String, String> input) {
            return value == null ? input.f1 : value + "," + input.f1;
        }

        @Override
        public void finishBundle(Map<String, String> buffer, Collector<Tuple2<String, String>> out) {
            finished++;
            buffer.forEach((k, v) -> out.collect(Tuple2.of(k, v)));
        }
    }
}
