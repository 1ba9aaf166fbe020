//! A deterministic world that runs the production state machines under faults.
