//! One checkpoint of one job: coordinator, participant, keeper, recovery. Pure state machines.
