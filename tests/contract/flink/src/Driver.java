import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import java.util.Map;

/** One Flink class (or a chain of them) that is driven by a transcript. */
interface Driver extends AutoCloseable {
    /** Performs one action; returns everything observed in the step, as plain lists and numbers. */
    Map<String, Object> step(String action, JsonNode arg) throws Exception;

    @Override
    default void close() throws Exception {}

    /** There is nothing in Flink that could perform this transcript. */
    class NoCounterpart extends RuntimeException {
        NoCounterpart(String why) {
            super(why);
        }
    }
}
