//! The protocol of an NBD server, without a socket: fixed newstyle negotiation, then requests.
//!
//! Invariants: for any input, a call consumes at most what it was given and answers with a bounded number of
//! bytes; an option is parsed only when all of it has been received, and is at most [`OPTION_LEN_MAX`] bytes;
//! more than [`OPTIONS_MAX`] options end the connection.

use zerocopy::{FromBytes, IntoBytes};

use super::wire::{self, command, command_flag, error, flag, info, option, reply};
use crate::disk::REQUEST_LEN_MAX;

/// The longest option that is looked at, in bytes; a longer one is skipped and refused. Names are at most
/// 4,096 bytes.
pub const OPTION_LEN_MAX: usize = 8 << 10;
/// The longest option that is skipped; a longer one ends the connection.
const SKIPPED_OPTION_LEN_MAX: u32 = 1 << 20;
/// How many options a client may send.
pub const OPTIONS_MAX: u32 = 128;
/// The longest name, in bytes (NBD, "Values").
const NAME_LEN_MAX: usize = 4096;
/// The context that is offered.
const BASE_ALLOCATION: &[u8] = b"base:allocation";
/// Its number.
pub(super) const META_CONTEXT_ID: u32 = 1;

/// What is exported, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its name; the empty name always means it too.
    pub name: String,
    /// A line for people.
    pub description: String,
    /// Bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Bytes that a request had better be a multiple of: a logical block.
    pub minimum: u32,
    /// Bytes that requests are best a multiple of.
    pub preferred: u32,
    /// Whether zeroes are written faster than data.
    pub fast_zero: bool,
    /// Whether blocks without space read as zeroes.
    pub unmapped_is_zero: bool,
}

impl Export {
    fn matches_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    fn transmission_flags(&self) -> u16 {
        // Several connections are coherent: all requests go to one disk, whose flush covers every write
        // that was answered, by whichever connection.
        let mut flags =
            flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_DF | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        if self.read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        flags
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// NBD_CMD_READ.
    Read,
    /// NBD_CMD_WRITE; its payload follows.
    Write {
        /// Whether it must be stable before it is answered.
        fua: bool,
    },
    /// NBD_CMD_DISC: no answer, no more requests.
    Disconnect,
    /// NBD_CMD_FLUSH.
    Flush,
    /// NBD_CMD_TRIM.
    Trim {
        /// As of a write.
        fua: bool,
    },
    /// NBD_CMD_CACHE.
    Cache,
    /// NBD_CMD_WRITE_ZEROES.
    WriteZeroes {
        /// As of a write.
        fua: bool,
        /// Whether space may be given back.
        may_punch: bool,
    },
    /// NBD_CMD_BLOCK_STATUS.
    BlockStatus {
        /// Whether one extent is enough.
        one: bool,
    },
}

/// A request, or why it is refused: a number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// What it asks for.
    pub kind: Result<CommandKind, u32>,
    /// The client's name for it.
    pub cookie: u64,
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// Bytes of payload that follow, also if it is refused.
    pub payload: u32,
    /// Whether an answer with data or errors takes the structured form.
    pub structured: bool,
}

/// What came of a client's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// More bytes are needed.
    More,
    /// A request. Its payload, if any, follows in the stream and is the caller's to take.
    Request(Request),
    /// The connection ends once what was said is sent.
    Close,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionState {
    Flags,
    Options,
    /// So many bytes of an option that is too long; then it is answered.
    Skipping(u32, u32),
    Transmission,
    Closed,
}

/// One client's connection.
#[derive(Clone, Debug)]
pub struct Session {
    state: SessionState,
    no_zeroes: bool,
    structured: bool,
    /// Whether base:allocation was chosen for the export.
    allocation: bool,
    options: u32,
}

impl Session {
    /// A new connection: `out` gets the server's first words.
    pub fn new(out: &mut Vec<u8>) -> Self {
        let greeting = wire::Greeting {
            magic: wire::NBDMAGIC.into(),
            newstyle: wire::IHAVEOPT.into(),
            flags: (wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES).into(),
        };
        out.extend_from_slice(greeting.as_bytes());
        Session {
            state: SessionState::Flags,
            no_zeroes: false,
            structured: false,
            allocation: false,
            options: 0,
        }
    }

    /// Whether negotiation is over.
    pub fn is_transmission(&self) -> bool {
        self.state == SessionState::Transmission
    }

    /// Takes bytes from the server of `input`; says how many, and what came of them. Call it until it
    /// says [`SessionEvent::More`]; in negotiation it needs room for [`OPTION_LEN_MAX`] bytes and a header.
    pub fn handle_input(
        &mut self,
        input: &[u8],
        export: &Export,
        out: &mut Vec<u8>,
    ) -> (usize, SessionEvent) {
        let mut used = 0;
        loop {
            let rest = &input[used..];
            let now = match self.state {
                SessionState::Flags => self.take_client_flags(rest),
                SessionState::Options => self.take_option(rest, export, out),
                SessionState::Skipping(option, left) => self.skip_option(rest, option, left, out),
                SessionState::Transmission => {
                    let Some((header, _)) = wire::RequestHeader::ref_from_prefix(rest).ok() else {
                        return (used, SessionEvent::More);
                    };
                    let step = self.parse_request(header, export);
                    return (used + size_of::<wire::RequestHeader>(), step);
                }
                SessionState::Closed => return (input.len(), SessionEvent::Close),
            };
            match now {
                0 if self.state != SessionState::Closed => return (used, SessionEvent::More),
                _ => used += now,
            }
        }
    }

    fn take_client_flags(&mut self, input: &[u8]) -> usize {
        let Some(bytes) = input.first_chunk::<4>() else { return 0 };
        let flags = u32::from_be_bytes(*bytes);
        let known = u32::from(wire::FLAG_FIXED_NEWSTYLE | wire::FLAG_NO_ZEROES);
        self.no_zeroes = flags & u32::from(wire::FLAG_NO_ZEROES) != 0;
        self.state = if flags & !known == 0 { SessionState::Options } else { SessionState::Closed };
        4
    }

    fn skip_option(&mut self, input: &[u8], option: u32, left: u32, out: &mut Vec<u8>) -> usize {
        let now = input.len().min(left as usize);
        let left = left - now as u32;
        self.state = SessionState::Skipping(option, left);
        if left == 0 {
            push_option_reply(out, option, reply::ERR_TOO_BIG, b"the option is too long");
            self.state = SessionState::Options;
        }
        now
    }

    fn take_option(&mut self, input: &[u8], export: &Export, out: &mut Vec<u8>) -> usize {
        let Ok((header, rest)) = wire::OptionHeader::ref_from_prefix(input) else { return 0 };
        let (option, len) = (header.option.get(), header.len.get());
        if header.magic.get() != wire::IHAVEOPT || len > SKIPPED_OPTION_LEN_MAX || self.options >= OPTIONS_MAX
        {
            self.state = SessionState::Closed;
            return input.len();
        }
        let head = size_of::<wire::OptionHeader>();
        if len as usize > OPTION_LEN_MAX {
            self.options += 1;
            self.state = SessionState::Skipping(option, len);
            return head;
        }
        let Some(data) = rest.get(..len as usize) else { return 0 };
        self.options += 1;
        match option {
            option::EXPORT_NAME => self.answer_export_name(data, export, out),
            option::ABORT => {
                push_option_reply(out, option, reply::ACK, &[]);
                self.state = SessionState::Closed;
            }
            option::LIST if data.is_empty() => answer_list(export, out),
            option::INFO | option::GO => self.answer_info_or_go(option, data, export, out),
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                push_option_reply(out, option, reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                push_option_reply(out, option, reply::ERR_INVALID, b"the option takes no data");
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.answer_meta_context(option, data, export, out);
            }
            _ => push_option_reply(out, option, reply::ERR_UNSUP, &[]),
        }
        head + data.len()
    }

    fn answer_export_name(&mut self, name: &[u8], export: &Export, out: &mut Vec<u8>) {
        if !export.matches_name(name) {
            // There is no way to say why.
            self.state = SessionState::Closed;
            return;
        }
        let head = wire::ExportName { size: export.size.into(), flags: export.transmission_flags().into() };
        out.extend_from_slice(head.as_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        self.state = SessionState::Transmission;
    }

    fn answer_info_or_go(&mut self, option: u32, data: &[u8], export: &Export, out: &mut Vec<u8>) {
        let Some((name, wishes)) = parse_info_option(data) else {
            push_option_reply(
                out,
                option,
                reply::ERR_INVALID,
                b"name and information requests do not fit the length",
            );
            return;
        };
        if !export.matches_name(name) {
            push_option_reply(out, option, reply::ERR_UNKNOWN, b"no export of this name");
            return;
        }
        for wish in wishes.chunks_exact(2).map(|wish| u16::from_be_bytes([wish[0], wish[1]])) {
            let text = match wish {
                info::NAME => export.name.as_bytes(),
                info::DESCRIPTION if !export.description.is_empty() => export.description.as_bytes(),
                _ => continue,
            };
            push_option_reply_parts(out, option, reply::INFO, &wish.to_be_bytes(), text);
        }
        let sizes = wire::InfoBlockSize {
            kind: info::BLOCK_SIZE.into(),
            // Smaller requests are served too, by reading what surrounds them; what is told is what is
            // cheap.
            minimum: export.minimum.into(),
            preferred: export.preferred.max(export.minimum).max(4096).into(),
            payload_max: (REQUEST_LEN_MAX as u32).into(),
        };
        push_option_reply(out, option, reply::INFO, sizes.as_bytes());
        let body = wire::InfoExport {
            kind: info::EXPORT.into(),
            size: export.size.into(),
            flags: export.transmission_flags().into(),
        };
        push_option_reply(out, option, reply::INFO, body.as_bytes());
        push_option_reply(out, option, reply::ACK, &[]);
        if option == option::GO {
            self.state = SessionState::Transmission;
        }
    }

    fn answer_meta_context(&mut self, option: u32, data: &[u8], export: &Export, out: &mut Vec<u8>) {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.allocation = false;
        }
        if !self.structured {
            push_option_reply(out, option, reply::ERR_INVALID, b"structured replies come first");
            return;
        }
        let Some((name, queries)) = parse_meta_context_option(data) else {
            push_option_reply(out, option, reply::ERR_INVALID, b"name and queries do not fit the length");
            return;
        };
        if !export.matches_name(name) {
            push_option_reply(out, option, reply::ERR_UNKNOWN, b"no export of this name");
            return;
        }
        let mut is_empty = true;
        let mut found = false;
        for query in QueryIter(queries) {
            is_empty = false;
            found |= query == BASE_ALLOCATION || (!set && query == b"base:");
        }
        if found || (is_empty && !set) {
            let number = if set { META_CONTEXT_ID } else { 0 };
            push_option_reply_parts(out, option, reply::META_CONTEXT, &number.to_be_bytes(), BASE_ALLOCATION);
        }
        self.allocation |= set && found;
        push_option_reply(out, option, reply::ACK, &[]);
    }

    fn parse_request(&mut self, header: &wire::RequestHeader, export: &Export) -> SessionEvent {
        if header.magic.get() != wire::REQUEST_MAGIC {
            self.state = SessionState::Closed;
            return SessionEvent::Close;
        }
        let (flags, len) = (header.flags.get(), header.len.get());
        let fua = flags & command_flag::FUA != 0;
        let (kind, allowed) = match header.command.get() {
            command::READ => (CommandKind::Read, command_flag::FUA | command_flag::DF),
            command::WRITE => (CommandKind::Write { fua }, command_flag::FUA),
            command::DISC => {
                self.state = SessionState::Closed;
                (CommandKind::Disconnect, u16::MAX)
            }
            command::FLUSH => (CommandKind::Flush, command_flag::FUA),
            command::TRIM => (CommandKind::Trim { fua }, command_flag::FUA),
            command::CACHE => (CommandKind::Cache, command_flag::FUA),
            command::WRITE_ZEROES => (
                CommandKind::WriteZeroes { fua, may_punch: flags & command_flag::NO_HOLE == 0 },
                command_flag::FUA | command_flag::NO_HOLE | command_flag::FAST_ZERO,
            ),
            command::BLOCK_STATUS => (
                CommandKind::BlockStatus { one: flags & command_flag::REQ_ONE != 0 },
                command_flag::FUA | command_flag::REQ_ONE,
            ),
            _ => (CommandKind::Flush, 0),
        };
        let is_known = header.command.get() <= command::BLOCK_STATUS;
        let refused = match kind {
            _ if !is_known || flags & !allowed != 0 => Some(error::INVAL),
            CommandKind::Read | CommandKind::Write { .. } if len as usize > REQUEST_LEN_MAX => {
                Some(error::OVERFLOW)
            }
            CommandKind::Write { .. } | CommandKind::Trim { .. } | CommandKind::WriteZeroes { .. }
                if export.read_only =>
            {
                Some(error::PERM)
            }
            CommandKind::WriteZeroes { may_punch, .. }
                if flags & command_flag::FAST_ZERO != 0 && !(may_punch && export.fast_zero) =>
            {
                Some(error::NOTSUP)
            }
            CommandKind::BlockStatus { .. } if !self.allocation || len == 0 => Some(error::INVAL),
            _ => None,
        };
        let is_write = header.command.get() == command::WRITE;
        // Flush's offset and length are reserved.
        let (at, len) = if kind == CommandKind::Flush { (0, 0) } else { (header.offset.get(), len) };
        SessionEvent::Request(Request {
            kind: refused.map_or(Ok(kind), Err),
            cookie: header.cookie.get(),
            at,
            len,
            payload: if is_write { len } else { 0 },
            structured: self.structured
                && matches!(header.command.get(), command::READ | command::BLOCK_STATUS),
        })
    }
}

fn answer_list(export: &Export, out: &mut Vec<u8>) {
    let name = export.name.as_bytes();
    push_option_reply_parts(out, option::LIST, reply::SERVER, &(name.len() as u32).to_be_bytes(), name);
    push_option_reply(out, option::LIST, reply::ACK, &[]);
}

fn push_option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    push_option_reply_parts(out, option, kind, data, &[]);
}

fn push_option_reply_parts(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8], more: &[u8]) {
    let head = wire::OptionReply {
        magic: wire::OPTION_REPLY_MAGIC.into(),
        option: option.into(),
        kind: kind.into(),
        len: ((data.len() + more.len()) as u32).into(),
    };
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(data);
    out.extend_from_slice(more);
}

/// A number of four bytes, and what follows it.
fn parse_u32(data: &[u8]) -> Option<(usize, &[u8])> {
    let (bytes, rest) = data.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*bytes) as usize, rest))
}

fn parse_name(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = parse_u32(data)?;
    if len > NAME_LEN_MAX {
        return None;
    }
    rest.split_at_checked(len)
}

/// The name, and the numbers of what is asked, two bytes each.
fn parse_info_option(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = parse_name(data)?;
    let (count, wishes) = rest.split_first_chunk::<2>()?;
    (wishes.len() == 2 * usize::from(u16::from_be_bytes(*count))).then_some((name, wishes))
}

/// The name, and the queries, whose lengths were checked.
fn parse_meta_context_option(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, rest) = parse_name(data)?;
    let (count, queries) = parse_u32(rest)?;
    let mut left = QueryIter(queries);
    let found = left.by_ref().count();
    (left.0.is_empty() && found == count).then_some((name, queries))
}

/// Strings with their lengths before them.
struct QueryIter<'a>(&'a [u8]);

impl<'a> Iterator for QueryIter<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (query, rest) = parse_name(self.0)?;
        self.0 = rest;
        Some(query)
    }
}

#[cfg(test)]
mod tests;
