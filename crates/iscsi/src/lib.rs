//! RFC 7143: wire, text keys, login, CHAP, sessions.
