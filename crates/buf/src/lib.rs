//! Buffer pool, scatter-gather lists, RAM regions, CRC32C.
