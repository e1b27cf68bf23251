//! File, block device and null volumes.
