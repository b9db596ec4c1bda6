"""Value formats in SQL text: for each, how a payload becomes the struct of a record, and back.

`json_text`, `avro` and `raw` are Spark's own expressions. `python` is for all others: functions that
Spark calls with Arrow arrays.
"""
