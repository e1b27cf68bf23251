//! systemd's journal, by its native protocol: a datagram of fields for each event.
//!
//! The form is that of systemd.io/JOURNAL_NATIVE_PROTOCOL. The writing thread of the queue may wait for the journal;
//! nobody else does.

use std::{
    io::{self, Write},
    os::unix::net::UnixDatagram,
    path::PathBuf,
};

use super::format::{LogRecord, field_text, priority};

const SOCKET: &str = "/run/systemd/journal/socket";

/// The journal; each write is one event. A journald that was started again has another socket at the same path: it is
/// sought for each event.
#[derive(Debug)]
pub(super) struct JournalSocket {
    socket: UnixDatagram,
    journal: PathBuf,
}

impl JournalSocket {
    pub(super) fn open() -> io::Result<JournalSocket> {
        JournalSocket::open_at(SOCKET.into()).map_err(|why| {
            let message = format!(
                "the journal takes nothing at {SOCKET}: {why}; use --log-format text or json where systemd-journald \
                 does not run"
            );
            io::Error::new(why.kind(), message)
        })
    }

    /// Checks that one listens there.
    fn open_at(journal: PathBuf) -> io::Result<JournalSocket> {
        UnixDatagram::unbound()?.connect(&journal)?;
        Ok(JournalSocket { socket: UnixDatagram::unbound()?, journal })
    }
}

impl Write for JournalSocket {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.socket.send_to(record, &self.journal)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The fields of an event. MESSAGE is the whole line, as `journalctl` shows nothing else; the others serve to search,
/// for example `journalctl BLOCKWIRE_AREA=iscsi`.
pub(super) fn encode(record: &LogRecord<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_field(&mut bytes, "MESSAGE", &record.text());
    push_field(&mut bytes, "PRIORITY", &priority(record.level).to_string());
    push_field(&mut bytes, "SYSLOG_IDENTIFIER", "blockwire");
    push_field(&mut bytes, "BLOCKWIRE_AREA", record.area);
    for (name, value) in record.fields {
        let name: String = name
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
            .collect();
        let text = value.as_str().map_or_else(|| field_text(value), str::to_owned);
        push_field(&mut bytes, &format!("BLOCKWIRE_{name}"), &text);
    }
    bytes
}

/// `NAME=value`; a value of several lines has its length in front.
fn push_field(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::log::area;

    #[test]
    fn an_event_is_a_datagram_of_fields() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let fields = [("peer", "192.0.2.7:1".into()), ("size_bytes", 7.into()), ("why", "two\nlines".into())];
        let record =
            LogRecord { level: Level::ERROR, area: area::NVME, message: "connect refused", fields: &fields };
        JournalSocket::open_at(path).unwrap().write_all(&encode(&record)).unwrap();
        let mut bytes = [0; 4096];
        let len = journal.recv(&mut bytes).unwrap();
        let mut want =
            b"MESSAGE=nvme: connect refused peer=192.0.2.7:1 size_bytes=7 why=\"two\\u000alines\"\nPRIORITY=3\n\
            SYSLOG_IDENTIFIER=blockwire\nBLOCKWIRE_AREA=nvme\nBLOCKWIRE_PEER=192.0.2.7:1\nBLOCKWIRE_SIZE_BYTES=7\n\
            BLOCKWIRE_WHY\n"
                .to_vec();
        want.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0]);
        want.extend_from_slice(b"two\nlines\n");
        assert_eq!(&bytes[..len], want);
    }

    #[test]
    fn a_journal_that_was_started_again_has_what_follows() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        assert!(JournalSocket::open_at(path.clone()).is_err(), "nobody listens");
        let before = UnixDatagram::bind(&path).unwrap();
        let mut socket = JournalSocket::open_at(path.clone()).unwrap();
        socket.write_all(b"MESSAGE=one\n").unwrap();
        drop(before);
        std::fs::remove_file(&path).unwrap();
        assert!(socket.write_all(b"MESSAGE=lost\n").is_err());
        let after = UnixDatagram::bind(&path).unwrap();
        socket.write_all(b"MESSAGE=two\n").unwrap();
        let mut bytes = [0; 64];
        let len = after.recv(&mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"MESSAGE=two\n");
    }
}
