//! Steps of both worlds before and after a receive.

use buf::BufMut;
use stream::{Received, RecvOp, Tag};

use crate::disk::IOV_MAX;
use crate::endpoint_event::EndpointEvent;
use crate::event_loop::link_from_tag;
use crate::world_state::WorldState;

/// Lists the memory of a receive, attaching a stage if one is wanted; gives the bytes of room. Of a long payload it may
/// list a part only, if other links are active.
pub(crate) fn fill_iovecs<M>(base: &WorldState<M>, iov: &mut Vec<libc::iovec>, op: &mut RecvOp) -> usize {
    iov.clear();
    let mut room = 0;
    if let Some(direct) = &mut op.direct {
        let most = base.active.transfer_max(base.now);
        let part = direct.want.start..direct.want.start + direct.want.len().min(most);
        for slice in direct.data.slices_mut(part).take(IOV_MAX - 1) {
            room += slice.len();
            iov.push(libc::iovec { iov_base: slice.as_mut_ptr().cast(), iov_len: slice.len() });
        }
        // A list that was cut short must not be followed by the stage.
        if room < direct.want.len() {
            return room;
        }
    }
    if op.stage_len > 0 {
        op.stage = base.staging_buffer(op.stage_len);
        if let Some(stage) = &mut op.stage {
            let len = stage.len();
            room += len;
            iov.push(libc::iovec { iov_base: stage.as_mut_ptr().cast(), iov_len: len });
        }
    }
    room
}

/// Says what a receive of `got` bytes brought.
pub(crate) fn finish_recv<M>(base: &mut WorldState<M>, tag: Tag, mut op: RecvOp, got: usize) {
    let direct = op.direct.as_ref().map_or(0, |direct| direct.want.len());
    let staged = got.saturating_sub(direct);
    op.stage = op.stage.filter(|_| staged > 0).map(|mut stage: BufMut| {
        stage.set_len(staged);
        stage
    });
    let came = if got == 0 { Received::End } else { Received::Bytes(got) };
    if got > 0 {
        base.counters.recvs.add(1);
        base.counters.recv_bytes.add(got as u64);
        base.active.note_received(tag, base.now);
    }
    base.events.push_back(EndpointEvent::Recv(link_from_tag(tag), op, came));
}
