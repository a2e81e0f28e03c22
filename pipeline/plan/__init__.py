"""Planning: turn a configuration into a DAG of jobs with pure functions over plain data, without torch."""
