//! The traits that every connection implements, in either role of either protocol.

use buf::{Cx, Errno, Payload, Sg, SgMut, Time};

use crate::io_ops::{Received, RecvOp, SendOp};
use crate::response_times::LabelledResponses;
use crate::tag::Tag;

/// Index of one of a connection's TCP connections. NVMe/TCP has one; an iSCSI session may have
/// several, with one order of commands over all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkNumber(pub u16);

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionClose {
    /// Ask the peer to log out, answer what is in flight, and give up at this time.
    AfterLogout(Time),
    /// At once.
    Now,
}

/// An iSCSI *session* or an NVMe *queue*, without I/O.
/// `examples/session.rs` drives both ends of one without a socket.
pub trait Connection {
    /// What it tells those above.
    type Event;
    /// What a peer did that the protocol forbids.
    type LinkFault;

    /// What to receive next on `link`. `None`: one is out already, or the next payload has no place
    /// yet, or nothing more is wanted. Ask again after any other call.
    #[must_use]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<RecvOp>;
    /// Takes a receive back with what it brought. After a violation the connection still sends its
    /// last words, swallows input, and ends by itself.
    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        link: LinkNumber,
        op: RecvOp,
        came: Received,
    ) -> Result<(), Self::LinkFault>;
    /// Parses on, where parsing had to stop for an event to be drained or a payload to be placed.
    fn resume_parsing(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault>;
    /// Everything that is ready to be sent on `link`, as one batch. `None`: nothing is, or one
    /// batch is out and not yet written.
    #[must_use]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<SendOp>;
    /// The socket has taken all of the batch (or failed): the next one may go.
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkNumber, how: Result<(), Errno>);
    /// The kernel has let go of the batch's memory: with a zero-copy send, much later.
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkNumber, op: SendOp);
    /// What happened, oldest first.
    #[must_use]
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// When [`Connection::handle_timeout`] wants to be called, if at all.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;
    /// The time that `poll_timeout` named has come.
    fn handle_timeout(&mut self, cx: &mut Cx<'_>);
    /// A link whose socket is to be closed now: its last words are written, or never will be. Each
    /// link is named once. The world gives every operation that is out back: a receive by
    /// `handle_recv`, a batch by `handle_written` and `handle_send_released`; then the index may name
    /// another link.
    #[must_use]
    fn poll_link_to_close(&mut self) -> Option<LinkNumber> {
        None
    }
    /// Ends the connection. [`TargetEvent::Closed`] or [`HostEvent::Closed`] follows when all
    /// tasks are retired.
    fn close(&mut self, cx: &mut Cx<'_>, how: ConnectionClose);
}

/// A connection on the target's side.
pub trait TargetConnection: Connection<Event = TargetEvent<Self::Command>> {
    /// Everything that needs an answer from above.
    type Command;
    /// The answer.
    type Response;

    /// Data move: places the payload bytes of a task from offset `at` on into `into`, first what
    /// came unasked, then by R2T. [`TargetEvent::DataReceived`] follows when `into` is full. May be
    /// called again for further stretches.
    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, into: SgMut);
    /// All the payload of a task, if it stands whole and undamaged in what was received and nobody has
    /// placed it. Who can use it there answers the command at once, and it is skipped.
    #[must_use]
    fn contiguous_payload(&self, tag: Tag) -> Option<&[u8]> {
        let _ = tag;
        None
    }
    /// Sends `data`, which belongs at `offset` of the task's data, cut into PDUs as negotiated.
    fn send_data(&mut self, cx: &mut Cx<'_>, tag: Tag, offset: u32, data: Sg);
    /// Asks for leave to read `len` bytes for the task, before memory is taken for them. Bytes that
    /// were allowed and have not left yet are capped per link, so that a peer that does not read
    /// drains nobody; one I/O at a time is always allowed. If false, ask again when a batch of this
    /// connection was sent, or a task of it ended.
    #[must_use]
    fn reserve_send_window(&mut self, tag: Tag, len: u32) -> bool {
        let _ = (tag, len);
        true
    }
    /// Asks for leave to let the peer send `len` bytes of the task's payload, before memory is taken for
    /// them. Bytes that were allowed and have not come yet are capped per link, so that a peer that does
    /// not send drains nobody; one I/O at a time is always allowed. If false, ask again when a buffer of
    /// this connection was full, or a task of it ended.
    #[must_use]
    fn reserve_receive_window(&mut self, tag: Tag, len: u32) -> bool {
        let _ = (tag, len);
        true
    }
    /// Under what the next answer is counted, from being given until the socket has taken it; 0, as at first: it is
    /// not. See [`TargetConnection::poll_written_responses`].
    fn label_next_response(&mut self, label: u64) {
        let _ = label;
    }
    /// Labelled answers that the socket has taken, oldest first. To be asked when a batch of the link was written,
    /// before the next is handed out.
    #[must_use]
    fn poll_written_responses(&mut self, link: LinkNumber) -> Option<LabelledResponses> {
        let _ = link;
        None
    }
    /// Answers the task and ends it; the answer may ride on the last data PDU.
    fn respond(&mut self, cx: &mut Cx<'_>, tag: Tag, response: Self::Response);
    /// Ends the task without an answer; also acknowledges [`TargetEvent::Aborted`].
    fn end_without_response(&mut self, cx: &mut Cx<'_>, tag: Tag);
}

/// What a target's connection tells those above.
#[derive(Debug)]
pub enum TargetEvent<C> {
    /// A command came. `data_out` bytes of payload are to come from the peer: say where with
    /// [`TargetConnection::recv_data`], or answer at once and they are skipped.
    Command {
        /// Names the task until it is answered or retired.
        tag: Tag,
        /// The command.
        command: C,
        /// Bytes that the peer will send, immediate ones included.
        data_out: u32,
    },
    /// A buffer given by `recv_data` is full; it comes back.
    DataReceived {
        /// The task.
        tag: Tag,
        /// The offset of the buffer in the task's data.
        at: u32,
        /// The bytes.
        data: Sg,
    },
    /// The task must end without an answer: stop working for it, then [`TargetConnection::end_without_response`] it.
    Aborted {
        /// The task.
        tag: Tag,
    },
    /// The connection is gone; all tasks are retired.
    Closed,
}

/// A connection on the host's (initiator's) side.
pub trait HostConnection: Connection<Event = HostEvent<Self::Response>> {
    /// A command.
    type Command;
    /// Its answer.
    type Response;

    /// Starts a command; gives it back if the window is full.
    fn submit(
        &mut self,
        cx: &mut Cx<'_>,
        command: Self::Command,
        payload: Payload,
    ) -> Result<Tag, (Self::Command, Payload)>;
}

/// What a host's connection tells those above.
#[derive(Debug)]
pub enum HostEvent<R> {
    /// Commands may be submitted.
    Ready,
    /// A command has ended.
    Completed {
        /// The command's tag.
        tag: Tag,
        /// Its answer.
        response: R,
        /// Its memory.
        payload: Payload,
    },
    /// The connection is gone; all commands have been completed.
    Closed,
}
