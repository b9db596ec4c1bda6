import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;

/** Replays transcripts (lines of JSON, written by replay.py) on Flink's own operators. Usage: Replay TRANSCRIPTS.jsonl [SETUP...] */
public class Replay {
    static final ObjectMapper JSON = new ObjectMapper();
    static final Set<String> ALWAYS = Set.of("out", "late", "dropped", "emits", "triggers", "error", "into");
    static final Set<String> ASKED =
            Set.of("current_ms", "finished", "window", "state", "state_one_of", "merged", "merged_states",
                    "merged_states_count", "live", "overhead_bytes", "read", "mode");
    /** The setups in which each kind is replayed: the first is the main one, the others are cross-checks. */
    static final Map<String, List<String>> SETUPS = Map.of(
            "window", List.of("plain", "list-state", "evicting", "cold-restart"),
            "watermarks", List.of("source", "operator", "valve"),
            "session-merge", List.of("merging-window-set"),
            "bundle", List.of("map-bundle", "keyed-map-bundle"));

    static Driver build(String kind, String setup, JsonNode operator) throws Exception {
        switch (kind) {
            case "window":
                return new WindowDriver(operator, setup);
            case "watermarks":
                return WatermarkDrivers.build(operator, setup);
            case "session-merge":
                return new SessionMergeDriver(operator);
            default:
                return new BundleDriver(operator, setup);
        }
    }

    public static void main(String[] args) throws Exception {
        List<String> only = Arrays.asList(args).subList(1, args.length);
        Map<String, int[]> tally = new TreeMap<>();
        List<String> differences = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            JsonNode entry = JSON.readTree(line);
            JsonNode doc = entry.get("doc");
            String kind = doc.get("operator").get("kind").asText();
            for (String setup : SETUPS.get(kind)) {
                if (!only.isEmpty() && !only.contains(setup)) {
                    continue;
                }
                List<String> found;
                int outcome;
                try {
                    found = replay(kind, setup, doc);
                    outcome = found.isEmpty() ? 0 : 1;
                } catch (Driver.NoCounterpart e) {
                    found = List.of("no counterpart: " + e.getMessage());
                    outcome = 2;
                }
                tally.computeIfAbsent(kind + " / " + setup, k -> new int[3])[outcome]++;
                for (String c : found) {
                    differences.add(kind + " / " + setup + " | " + entry.get("file").asText() + " | " + c);
                }
            }
        }
        System.out.println("Flink " + org.apache.flink.runtime.util.EnvironmentInformation.getVersion());
        System.out.printf("%-34s %6s %8s %10s %12s%n", "kind / setup", "run", "agreed", "disagreed", "no match");
        tally.forEach((k, v) ->
                System.out.printf("%-34s %6d %8d %10d %12d%n", k, v[0] + v[1], v[0], v[1], v[2]));
        System.out.println();
        differences.forEach(System.out::println);
    }

    static List<String> replay(String kind, String setup, JsonNode doc) throws Exception {
        Driver driver;
        try {
            driver = build(kind, setup, doc.get("operator"));
        } catch (IllegalArgumentException e) {
            boolean wanted = doc.path("error").asText().equals("invalid-argument");
            return wanted ? List.of() : List.of("building it: Flink refuses: " + e.getMessage());
        }
        if (doc.has("error")) {
            driver.close();
            return List.of("building it: Flink builds the operator, the transcript wants " + doc.get("error"));
        }
        List<String> differences = new ArrayList<>();
        int n = 0;
        try (driver) {
            for (JsonNode step : doc.get("steps")) {
                n++;
                String action = action(step);
                Map<String, Object> raw;
                try {
                    raw = driver.step(action, step.get(action));
                } catch (Driver.NoCounterpart e) {
                    throw e;
                } catch (Exception e) {
                    raw = Map.of("error", word(e));
                }
                JsonNode got = JSON.valueToTree(raw);
                Set<String> fields = new TreeSet<>(ALWAYS);
                fields.add("order");
                step.fieldNames().forEachRemaining(f -> { if (ASKED.contains(f)) fields.add(f); });
                for (String f : fields) {
                    if (!agrees(f, step, got)) {
                        differences.add("step " + n + " (" + action + "): " + f + ": transcript "
                                + step.path(f) + ", Flink "
                                + (f.equals("state_one_of") ? got.path("state") : got.path(f)));
                    }
                }
            }
        }
        return differences;
    }

    static String action(JsonNode step) {
        for (Iterator<String> it = step.fieldNames(); it.hasNext(); ) {
            String f = it.next();
            if (!ALWAYS.contains(f) && !ASKED.contains(f)) {
                return f;
            }
        }
        throw new IllegalStateException("no action in " + step);
    }

    /** The transcript's word for what Flink throws; anything unknown stays as it is and disagrees. */
    static String word(Throwable e) {
        for (Throwable t = e; t != null; t = t.getCause()) {
            if (String.valueOf(t.getMessage()).contains("no timestamp marker")) {
                return "no-timestamp";
            }
        }
        return e.toString();
    }

    static boolean agrees(String field, JsonNode step, JsonNode got) {
        JsonNode want = step.path(field);
        JsonNode have = got.path(field);
        switch (field) {
            case "order": // Flink's watermark must come after the records that it released
                return have.isMissingNode();
            case "state_one_of":
                return bag(want).contains(got.path("state").toString());
            case "merged_states_count":
                return want.asInt() == got.path("merged_states").size();
            case "dropped":
                return want.asInt(0) == have.asInt(0);
            case "out":
            case "late":
                return sameRows(want, have);
            case "merged":
            case "merged_states":
            case "live":
                return bag(want).equals(bag(have));
            case "into":
                return sameGroups(want, have);
            default:
                return want.toString().equals(have.toString()); // text, since 1 and 1L are different nodes
        }
    }

    static List<String> bag(JsonNode list) {
        List<String> bag = new ArrayList<>();
        list.forEach(x -> bag.add(x.toString()));
        bag.sort(null);
        return bag;
    }

    static boolean sameGroups(JsonNode want, JsonNode have) {
        Map<String, List<String>> a = new TreeMap<>();
        Map<String, List<String>> b = new TreeMap<>();
        want.forEach(g -> a.put(g.get("window").toString(), bag(g.get("of"))));
        have.forEach(g -> b.put(g.get("window").toString(), bag(g.get("of"))));
        return a.equals(b) && want.size() == have.size();
    }

    /** Multisets of rows; the fourth field (the window) counts only where the transcript writes it. */
    static boolean sameRows(JsonNode want, JsonNode have) {
        List<JsonNode> left = new ArrayList<>();
        have.forEach(left::add);
        List<JsonNode> wanted = new ArrayList<>();
        want.forEach(wanted::add);
        wanted.sort((a, b) -> b.size() - a.size());
        for (JsonNode w : wanted) {
            boolean hit = false;
            for (Iterator<JsonNode> it = left.iterator(); it.hasNext() && !hit; ) {
                JsonNode g = it.next();
                hit = w.size() >= 3;
                for (int i = 0; i < w.size(); i++) {
                    hit &= w.get(i).toString().equals(g.path(i).toString());
                }
                if (hit) {
                    it.remove();
                }
            }
            if (!hit) {
                return false;
            }
        }
        return left.isEmpty();
    }

    static Map<String, Object> newStep() {
        return new LinkedHashMap<>();
    }
}
