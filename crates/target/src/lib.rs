//! Connections and servers composed into an endpoint; still no I/O.
