//! A driver of thousands of volumes looks only at those with completed operations.

use backends::NullBackend;
use blockwire_multipath::{AnyPath, Client};
use buf::{Cx, Entropy, Payload, Pool, Time};
use endpoint::Endpoint;
use volume::{Epoch, Io, IoId, Op};

#[test]
fn a_volume_that_ended_something_is_named_once() {
    let (pool, mut entropy) = (Pool::new(1 << 20), Entropy::new([0; 32]));
    let mut cx = Cx { now: Time::default(), pool: &pool, entropy: &mut entropy };
    let mut client = Client::<AnyPath>::new();
    let mut add = || client.add_backend(Box::new(NullBackend::new(8, 512)), Vec::new(), false).unwrap();
    let volumes = [add(), add(), add()];
    assert_eq!(volumes.map(|volume| volume.slot_index()), [0, 1, 2]);
    client.turn(&mut cx);
    while client.poll_ended_volume().is_some() {}
    let flush = |id| Io { id: IoId(id), epoch: Epoch(0), op: Op::Flush, payload: Payload::None };
    for id in 0..2 {
        client.submit(&mut cx, volumes[1], flush(id)).unwrap();
        client.turn(&mut cx);
    }
    assert_eq!(client.poll_ended_volume(), Some(volumes[1]));
    assert_eq!(client.poll_ended_volume(), None, "it is named once for both");
    let ended = [(); 3].map(|()| client.poll_done(volumes[1]).map(|done| done.id.0));
    assert_eq!(ended, [Some(0), Some(1), None]);
    client.submit(&mut cx, volumes[1], flush(2)).unwrap();
    client.submit(&mut cx, volumes[2], flush(3)).unwrap();
    client.turn(&mut cx);
    client.drop_volume(volumes[1]);
    assert_eq!(client.poll_ended_volume(), Some(volumes[2]), "what is forgotten is not named");
    assert_eq!(client.poll_ended_volume(), None);
}
