"""Key groups: operators with state, a hash bucket of keys at a time and column by column.

The contract is in `operator`, what runs it in `runtime`; the other modules are what they are made of, and the
operators. Nothing here knows Spark, which only carries packed rows to a step and keeps what it stores.
"""
