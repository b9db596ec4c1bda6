"""Requirements of flowcore on this machine besides Python packages.

A Java (`java`), the jars that PySpark lacks (`jars`), a class archive that shortens Spark's start
(`archive`), and the checks of `flowcore doctor` (`checks`). Independent of Spark and Kafka.
"""
