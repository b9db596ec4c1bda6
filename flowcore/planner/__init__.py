"""Plans a flow: stages, live queries, modes and chains, each with its reasons."""

from flowcore.planner.plan import Plan, plan_flow

__all__ = ["Plan", "plan_flow"]
