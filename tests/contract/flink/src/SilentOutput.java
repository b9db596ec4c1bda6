import org.apache.flink.runtime.event.WatermarkEvent;
import org.apache.flink.streaming.api.watermark.Watermark;
import org.apache.flink.streaming.runtime.io.PushingAsyncDataInput.DataOutput;
import org.apache.flink.streaming.runtime.streamrecord.LatencyMarker;
import org.apache.flink.streaming.runtime.streamrecord.RecordAttributes;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.runtime.watermarkstatus.WatermarkStatus;

/** A DataOutput that ignores everything; subclasses override what they need. */
class SilentOutput<T> implements DataOutput<T> {
    @Override
    public void emitRecord(StreamRecord<T> record) throws Exception {}

    @Override
    public void emitWatermark(Watermark mark) throws Exception {}

    @Override
    public void emitWatermarkStatus(WatermarkStatus status) throws Exception {}

    @Override
    public void emitLatencyMarker(LatencyMarker marker) {}

    @Override
    public void emitRecordAttributes(RecordAttributes attributes) {}

    @Override
    public void emitWatermark(WatermarkEvent event) {}
}
