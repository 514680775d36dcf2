"""Training by configuration: state, step, loop, checkpoints, logs and processes of a run."""
