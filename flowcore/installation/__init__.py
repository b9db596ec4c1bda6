"""What does flowcore need from this machine, is it there, and how is it put there?

Python packages are pip's business. What is left is a Java (`java`), the jars that PySpark lacks
(`jars`) and a class archive that makes Spark start sooner (`archive`). `checks` tells what is there.
Nothing here starts Spark or talks to Kafka.
"""
