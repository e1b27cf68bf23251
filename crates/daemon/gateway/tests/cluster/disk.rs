//! A locked image as the disk of a volume, on a reactor of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backends::{FileBackend, FileDisk, FileFacts};
use buf::{Cx, Errno, MemoryClass, Payload, Time};
use endpoint::{Endpoint, LinkArrival, LinkDeparture, LinkId, ShardId};
use rbd::Image;
use reactor::{Config, DiskSource, InlineReactor, IoChoice};
use stream::{Received, RecvOp, SendOp};
use volume::{
    DiskId, DiskOp, Epoch, Failure, Gate, Identity, Io, IoCompletion, IoId, Op, PortId, Requester,
    SharedGateState, Span, View,
};

struct Volume {
    gate: Gate,
    done: Vec<IoCompletion>,
}

impl Endpoint for Volume {
    type Message = ();

    fn handle_arrival(&mut self, _: &mut Cx<'_>, _: LinkId, _: LinkArrival<()>) {}
    fn handle_message(&mut self, _: &mut Cx<'_>, (): ()) {}
    fn handle_recv(&mut self, _: &mut Cx<'_>, _: LinkId, _: RecvOp, _: Received) {}
    fn handle_written(&mut self, _: &mut Cx<'_>, _: LinkId, _: Result<(), Errno>) {}
    fn handle_send_released(&mut self, _: &mut Cx<'_>, _: LinkId, _: SendOp) {}
    fn handle_disk(&mut self, cx: &mut Cx<'_>, op: DiskOp, came: Result<usize, Errno>) {
        self.gate.handle_disk(cx, op, came);
    }
    fn handle_timeout(&mut self, _: &mut Cx<'_>) {}
    fn turn(&mut self, cx: &mut Cx<'_>) -> bool {
        let more = self.gate.resume(cx);
        self.done.extend(std::iter::from_fn(|| self.gate.poll_done()));
        more
    }
    fn poll_ready(&mut self) -> Option<LinkId> {
        None
    }
    fn poll_recv(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<RecvOp> {
        None
    }
    fn poll_send(&mut self, _: &mut Cx<'_>, _: LinkId) -> Option<SendOp> {
        None
    }
    fn poll_disk(&mut self) -> Option<DiskOp> {
        self.gate.poll_disk()
    }
    fn poll_departure(&mut self) -> Option<(LinkId, LinkDeparture<()>)> {
        None
    }
    fn poll_message(&mut self) -> Option<(ShardId, ())> {
        None
    }
    fn poll_timeout(&self) -> Option<Time> {
        self.gate.poll_timeout()
    }
}

pub struct Disk(InlineReactor<Volume>);

impl Disk {
    pub fn new(image: Image) -> Disk {
        let facts = FileFacts {
            direct: false,
            memory_align: 1,
            offset_align: 512,
            write_cache: false,
            write_through: true,
            ..FileFacts::new(image.bytes())
        };
        let disk = Arc::new(FileDisk::new(DiskId(0), &facts, 1).unwrap());
        let disks = vec![DiskSource::Library(Arc::new(image))];
        let config = Config { io: IoChoice::Epoll, disks, pool_bytes: 16 << 20, ..Config::default() };
        let inline = InlineReactor::new(config, |_| {
            let view = View::without_reservations(disk.geometry());
            let backend = Box::new(FileBackend::new(disk, 0));
            let gate = Gate::new(volume::ShardId(0), SharedGateState::new(1), view, backend);
            Volume { gate, done: Vec::new() }
        });
        Disk(inline.unwrap())
    }

    /// Reads 4 KiB.
    pub fn read(&mut self, offset: u64) -> Result<Vec<u8>, Failure> {
        let memory = self.0.with_endpoint(|_, cx| cx.pool.take_sg(MemoryClass::Wire, 4096));
        let span = Span { lba: offset / 512, blocks: 8 };
        let payload = self.run(Op::Read(span), Payload::In(memory.unwrap()))?;
        let memory = payload.into_sg();
        let mut bytes = vec![0; memory.len()];
        memory.copy_to(0, &mut bytes);
        Ok(bytes)
    }

    /// Frees 4 MiB.
    pub fn free(&mut self, offset: u64) -> Result<(), Failure> {
        let span = Span { lba: offset / 512, blocks: 8192 };
        self.run(Op::WriteZeroes { span, unmap: true }, Payload::None).map(drop)
    }

    fn run(&mut self, op: Op, payload: Payload) -> Result<Payload, Failure> {
        let who =
            Requester { identity: Arc::new(Identity::Host([1; 16])), port: PortId(1), read_only: false };
        let io = Io { id: IoId(1), epoch: Epoch::default(), op, payload };
        self.0.with_endpoint(|volume, cx| volume.gate.submit(cx, &who, io));
        let begun = Instant::now();
        loop {
            if let Some(done) = self.0.take_from_endpoint(|volume| volume.done.pop()) {
                return done.result.map(|_| done.payload);
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "an operation does not end");
            self.0.turn(Some(Duration::from_millis(100)));
        }
    }
}
