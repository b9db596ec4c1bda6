"""Operators with state, by key group: the contract, the runtime of a step, and the state.

`operator` is the contract and `runtime` runs it. The operators are in `flowcore.windows`, `flowcore.process`
and `flowcore.flush`. Nothing here imports Spark, which carries packed rows to a step and stores the state.
"""
