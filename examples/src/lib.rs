//! Real parallel programs over the native interface.
