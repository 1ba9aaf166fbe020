//! Measurements of latency, bulk, loss recovery and freezing against bare baselines.
