import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import java.lang.reflect.Field;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.MergingWindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.runtime.operators.windowing.MergingWindowSet;

/** EventTimeSessionWindows.mergeWindows and MergingWindowSet. */
class SessionMergeDriver implements Driver {
    private final MergingWindowAssigner<Object, TimeWindow> assigner;
    private final MergingWindowSet<TimeWindow> set;

    SessionMergeDriver(JsonNode spec) throws Exception {
        int least = spec.path("lazy_below").asInt(0);
        assigner = least == 0 ? EventTimeSessionWindows.withGap(Duration.ofMillis(3)) : new Lazy(least);
        set = new MergingWindowSet<>(assigner, new Store());
    }

    @Override
    public Map<String, Object> step(String action, JsonNode arg) throws Exception {
        Map<String, Object> shown = Replay.newStep();
        switch (action) {
            case "merge":
                List<TimeWindow> windows = new ArrayList<>();
                arg.forEach(w -> windows.add(window(w)));
                List<Object> into = new ArrayList<>();
                assigner.mergeWindows(
                        windows, (of, result) -> into.add(Map.of("window", list(result), "of", lists(of))));
                if (!into.isEmpty()) {
                    shown.put("into", into);
                }
                break;
            case "add":
                shown.put("merged", List.of());
                shown.put("merged_states", List.of());
                TimeWindow in = set.addWindow(window(arg), (result, merged, state, mergedStates) -> {
                    shown.put("merged", lists(merged));
                    shown.put("merged_states", lists(mergedStates));
                });
                shown.put("window", list(in));
                shown.put("state", list(set.getStateWindow(in)));
                break;
            case "retire":
                set.retireWindow(window(arg));
                break;
            default:
                throw new NoCounterpart("action " + action);
        }
        shown.put("live", lists(live()));
        return shown;
    }

    @SuppressWarnings("unchecked")
    private Collection<TimeWindow> live() throws Exception {
        Field mapping = MergingWindowSet.class.getDeclaredField("mapping");
        mapping.setAccessible(true);
        return ((Map<TimeWindow, TimeWindow>) mapping.get(set)).keySet();
    }

    private static TimeWindow window(JsonNode w) {
        return new TimeWindow(w.get(0).asLong(), w.get(1).asLong());
    }

    private static List<Long> list(TimeWindow w) {
        return List.of(w.getStart(), w.getEnd());
    }

    private static List<List<Long>> lists(Collection<TimeWindow> windows) {
        List<List<Long>> lists = new ArrayList<>();
        windows.forEach(w -> lists.add(list(w)));
        return lists;
    }

    /** Passes on only merges of at least so many windows, as the non-eager assigner of MergingWindowSetTest. */
    private static class Lazy extends EventTimeSessionWindows {
        private final int least;

        Lazy(int least) {
            super(3);
            this.least = least;
        }

        @Override
        public void mergeWindows(Collection<TimeWindow> windows, MergeCallback<TimeWindow> callback) {
            TimeWindow.mergeWindows(windows, (of, result) -> {
                if (of.size() >= least) {
                    callback.merge(of, result);
                }
            });
        }
    }

    /** The list state in which the set would be persisted. */
    private static class Store implements ListState<Tuple2<TimeWindow, TimeWindow>> {
        private final List<Tuple2<TimeWindow, TimeWindow>> rows = new ArrayList<>();

        @Override
        public Iterable<Tuple2<TimeWindow, TimeWindow>> get() {
            return rows;
        }

        @Override
        public void add(Tuple2<TimeWindow, TimeWindow> row) {
            rows.add(row);
        }

        @Override
        public void update(List<Tuple2<TimeWindow, TimeWindow>> values) {
            rows.clear();
            rows.addAll(values);
        }

        @Override
        public void addAll(List<Tuple2<TimeWindow, TimeWindow>> values) {
            rows.addAll(values);
        }

        @Override
        public void clear() {
            rows.clear();
        }
    }
}
