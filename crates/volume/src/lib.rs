//! The truth about a volume: reservations, access states, ordering, notices.
