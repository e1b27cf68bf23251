//! The simulated world: virtual network, disk, clock and faults.
