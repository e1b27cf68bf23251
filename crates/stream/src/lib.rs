//! The sans-I/O connection contract, and what every connection is made of.
