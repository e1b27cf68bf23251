//! Endpoint, Driver and pump: the one loop body that every world calls.
