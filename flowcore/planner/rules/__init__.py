"""The rules that turn a flow into a plan."""
