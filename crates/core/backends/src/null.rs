//! A null volume: reads return zeroes, writes are discarded. For measuring the layers above it.

use std::collections::VecDeque;

use buf::{Cx, Payload};
use volume::{Backend, Extent, Fault, Geometry, Io, IoCompletion, IoId, Op, Outcome};

use crate::file_facts::IO_MAX;

/// Reads zeroes, forgets writes.
#[derive(Debug)]
pub struct NullBackend {
    geometry: Geometry,
    done: VecDeque<IoCompletion>,
}

impl NullBackend {
    /// A volume of `blocks` blocks of `logical` bytes.
    pub fn new(blocks: u64, logical: u32) -> Self {
        let geometry = Geometry {
            blocks,
            logical,
            physical: logical,
            dio_align: logical,
            max_io: IO_MAX,
            thin: true,
            write_cache: false,
            atomic: IO_MAX / logical,
            atomic_powerfail: IO_MAX / logical,
            caw_max: 255.min(IO_MAX / logical),
            dealloc_reads_zero: true,
            lends: false,
        };
        NullBackend { geometry, done: VecDeque::new() }
    }
}

impl Backend for NullBackend {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, _cx: &mut Cx<'_>, io: Io) {
        let mut payload = io.payload;
        let result = match io.op {
            Op::Read(_) => match &mut payload {
                Payload::In(into) => {
                    into.zero(0..into.len());
                    Ok(Outcome::Complete)
                }
                Payload::None | Payload::Out(_) => Err(Fault::Internal.into()),
            },
            Op::Extents(span) => Ok(Outcome::Extents(vec![Extent { span, mapped: false }])),
            Op::Write(..) | Op::Flush | Op::WriteZeroes { .. } | Op::Unmap(_) | Op::Prefetch(_) => {
                Ok(Outcome::Complete)
            }
            Op::WriteAtomic(_) | Op::Compare(_) | Op::CompareAndWrite(_) | Op::WriteSame(_) | Op::Or(_) => {
                Err(Fault::Internal.into())
            }
            Op::Verify(_) | Op::MarkBad(_) | Op::Sanitize(_) => Err(Fault::Internal.into()),
        };
        self.done.push_back(IoCompletion { id: io.id, result, payload });
    }

    fn cancel(&mut self, _id: IoId) {
        // Everything has ended already.
    }

    fn poll_done(&mut self) -> Option<IoCompletion> {
        self.done.pop_front()
    }
}
