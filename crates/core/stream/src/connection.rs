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
    /// Ask the peer to log out, answer what is in flight, and close at this time at the latest.
    AfterLogout(Time),
    /// At once.
    Now,
}

/// An iSCSI *session* or an NVMe *queue*, without I/O.
/// `examples/session.rs` drives both ends of one without a socket.
pub trait Connection {
    /// Its events for the layer above.
    type Event;
    /// A violation of the protocol by the peer.
    type LinkFault;

    /// What to receive next on `link`. `None` if a receive is in progress, if the next payload has no
    /// destination yet, or if nothing more is wanted. Ask again after any other call.
    #[must_use]
    fn poll_recv(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<RecvOp>;
    /// Takes a receive back with its result. After a violation the connection still sends its last PDU,
    /// discards input, and ends by itself.
    fn handle_recv(
        &mut self,
        cx: &mut Cx<'_>,
        link: LinkNumber,
        op: RecvOp,
        came: Received,
    ) -> Result<(), Self::LinkFault>;
    /// Continues parsing, if it had stopped until an event was drained or a payload got a destination.
    fn resume_parsing(&mut self, cx: &mut Cx<'_>) -> Result<(), Self::LinkFault>;
    /// Everything that is ready to be sent on `link`, as one batch. `None` if nothing is, or if
    /// the batch before is not written yet.
    #[must_use]
    fn poll_send(&mut self, cx: &mut Cx<'_>, link: LinkNumber) -> Option<SendOp>;
    /// The socket has taken all of the batch (or failed): the next one may go.
    fn handle_written(&mut self, cx: &mut Cx<'_>, link: LinkNumber, how: Result<(), Errno>);
    /// The kernel has released the memory of the batch: with a zero-copy send, much later.
    fn handle_send_released(&mut self, cx: &mut Cx<'_>, link: LinkNumber, op: SendOp);
    /// The next event, oldest first.
    #[must_use]
    fn poll_event(&mut self) -> Option<Self::Event>;
    /// When [`Connection::handle_timeout`] wants to be called, if at all.
    #[must_use]
    fn poll_timeout(&self) -> Option<Time>;
    /// The time that `poll_timeout` named has come.
    fn handle_timeout(&mut self, cx: &mut Cx<'_>);
    /// A link whose socket is to be closed now: its last PDU is written, or never will be. Each link is
    /// returned once. The world gives back every operation in progress: a receive by `handle_recv`, a
    /// batch by `handle_written` and `handle_send_released`. Then the index may be used for another link.
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
    /// A command that needs a response from the layer above.
    type Command;
    /// The response.
    type Response;

    /// Receives the payload of a task from offset `at` on into `into`: first unsolicited data, then
    /// data requested by R2T. [`TargetEvent::DataReceived`] follows when `into` is full. May be
    /// called again for further parts.
    fn recv_data(&mut self, cx: &mut Cx<'_>, tag: Tag, at: u32, into: SgMut);
    /// The whole payload of a task, if it is contiguous and intact in the receive buffer and has no
    /// destination yet. A caller that uses it there answers the command at once, and the data is skipped.
    #[must_use]
    fn contiguous_payload(&self, tag: Tag) -> Option<&[u8]> {
        let _ = tag;
        None
    }
    /// Sends `data`, which belongs at `offset` of the task's data, cut into PDUs as negotiated.
    fn send_data(&mut self, cx: &mut Cx<'_>, tag: Tag, offset: u32, data: Sg);
    /// Requests permission to read `len` bytes for the task, before memory is taken for them. The bytes
    /// that were permitted and not sent yet are limited per link, so that a peer that does not read uses
    /// up no memory; one I/O is always permitted. If false, ask again when a batch of this connection was
    /// sent, or a task of it ended.
    #[must_use]
    fn reserve_send_window(&mut self, tag: Tag, len: u32) -> bool {
        let _ = (tag, len);
        true
    }
    /// Requests permission to let the peer send `len` bytes of the task's payload, before memory is taken
    /// for them. The bytes that were permitted and have not arrived are limited per link, so that a peer
    /// that does not send uses up no memory; one I/O is always permitted. If false, ask again when a
    /// buffer of this connection was full, or a task of it ended.
    #[must_use]
    fn reserve_receive_window(&mut self, tag: Tag, len: u32) -> bool {
        let _ = (tag, len);
        true
    }
    /// The label under which the time of the next response is counted, until the socket has taken it; 0 (the
    /// default): it is not counted. See [`TargetConnection::poll_written_responses`].
    fn label_next_response(&mut self, label: u64) {
        let _ = label;
    }
    /// Labelled responses that the socket has taken, oldest first. Ask when a batch of the link was written, before
    /// the next one is handed out.
    #[must_use]
    fn poll_written_responses(&mut self, link: LinkNumber) -> Option<LabelledResponses> {
        let _ = link;
        None
    }
    /// Responds to the task and ends it; the response may be part of the last data PDU.
    fn respond(&mut self, cx: &mut Cx<'_>, tag: Tag, response: Self::Response);
    /// Ends the task without an answer; also acknowledges [`TargetEvent::Aborted`].
    fn end_without_response(&mut self, cx: &mut Cx<'_>, tag: Tag);
}

/// Events of a target's connection.
#[derive(Debug)]
pub enum TargetEvent<C> {
    /// A command arrived. The peer will send `data_out` bytes of payload: give their destination with
    /// [`TargetConnection::recv_data`], or respond at once; then they are skipped.
    Command {
        /// Names the task until it is answered or retired.
        tag: Tag,
        /// The command.
        command: C,
        /// Bytes that the peer will send, immediate ones included.
        data_out: u32,
    },
    /// A buffer of `recv_data` is full; it is returned.
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
    /// Its response.
    type Response;

    /// Starts a command; gives it back if the window is full.
    fn submit(
        &mut self,
        cx: &mut Cx<'_>,
        command: Self::Command,
        payload: Payload,
    ) -> Result<Tag, (Self::Command, Payload)>;
}

/// Events of a host's connection.
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
