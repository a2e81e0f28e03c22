"""From a configuration to a DAG of jobs: pure functions over plain data, without torch."""
