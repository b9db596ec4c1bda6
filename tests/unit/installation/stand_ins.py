"""Stand-ins for Java and Ivy."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

JavaHome = Callable[..., Path]

# Stands for Ivy: notes that it was called, then puts one jar per configuration in the given folder.
IVY = """#!/bin/sh
echo call >>"$(dirname "$0")/calls"
for pattern; do :; done
sleep 0.3
whole=${pattern%%/\\[conf\\]*}
for conf in connector broker; do
  mkdir -p "$whole/$conf" && echo jar >"$whole/$conf/kafka-clients-3.9.2.jar"
done
"""
JAR_SHA256 = hashlib.sha256(b"jar\n").hexdigest()
