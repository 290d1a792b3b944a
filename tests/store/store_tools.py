"""The run that the tests of the store write down."""

from broker_server.plan import RunPlan

PLAN = RunPlan("magic", "5f0c21aa", "gca", seed=100, rounds=2)
