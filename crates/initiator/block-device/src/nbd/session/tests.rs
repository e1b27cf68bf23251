use proptest::prelude::*;

use super::*;

fn export() -> Export {
    Export {
        name: "disk".into(),
        description: String::new(),
        size: 1 << 20,
        read_only: false,
        minimum: 512,
        preferred: 4096,
        fast_zero: true,
        unmapped_is_zero: true,
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// All that a client sends, in pieces that end at `cuts`; what the server said and made of it.
fn converse(bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Vec<SessionEvent>) {
    let (mut out, mut steps) = (Vec::new(), Vec::new());
    let mut session = Session::new(&mut out);
    let (mut stage, mut fed, mut payload) = (Vec::new(), 0, 0_usize);
    for &cut in cuts.iter().chain([&bytes.len()]) {
        let cut = cut.clamp(fed, bytes.len());
        stage.extend_from_slice(&bytes[fed..cut]);
        fed = cut;
        loop {
            let skipped = payload.min(stage.len());
            stage.drain(..skipped);
            payload -= skipped;
            if payload > 0 {
                break;
            }
            let (used, step) = session.handle_input(&stage, &export(), &mut out);
            assert!(used <= stage.len());
            stage.drain(..used);
            match step {
                SessionEvent::More => break,
                SessionEvent::Request(request) => {
                    payload = request.payload as usize;
                    steps.push(step);
                }
                SessionEvent::Close => {
                    steps.push(step);
                    return (out, steps);
                }
            }
        }
    }
    (out, steps)
}

fn message() -> impl Strategy<Value = Vec<u8>> {
    let options =
        (0..14_u32, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(n, data)| option(n, &data));
    let known = prop::sample::select(vec![
        option(3, &[]),
        option(8, &[]),
        option(7, b"\0\0\0\x04disk\0\x02\0\x01\0\x03"),
        option(6, b"\0\0\0\0\0\0"),
        option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"),
        option(9, b"\0\0\0\0\0\0\0\0"),
        option(1, b"disk"),
    ]);
    let requests = (any::<u16>(), 0..9_u16, any::<u64>(), any::<u64>(), 0..5000_u32).prop_map(
        |(flags, command, cookie, at, len)| {
            let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
            bytes.extend((flags & 31).to_be_bytes());
            bytes.extend(command.to_be_bytes());
            bytes.extend(cookie.to_be_bytes());
            bytes.extend(at.to_be_bytes());
            bytes.extend(len.to_be_bytes());
            bytes.extend(vec![0; if command == 1 { len as usize } else { 0 }]);
            bytes
        },
    );
    prop_oneof![2 => options, 3 => known, 3 => requests, 1 => prop::collection::vec(any::<u8>(), 0..60)]
}

proptest! {
    #[test]
    fn where_the_stream_is_cut_makes_no_difference(
        messages in prop::collection::vec(message(), 0..12),
        cuts in prop::collection::vec(0..3000_usize, 0..20),
    ) {
        let mut bytes = vec![0, 0, 0, 3];
        messages.iter().for_each(|message| bytes.extend(message));
        let mut cuts = cuts;
        cuts.sort_unstable();
        let whole = converse(&bytes, &[]);
        prop_assert_eq!(&converse(&bytes, &cuts), &whole);
        // What is said is bounded by what was asked.
        prop_assert!(whole.0.len() <= 400 + 40 * bytes.len());
    }
}

/// Option, kind, data.
type Answer = (u32, u32, Vec<u8>);

/// The answers to options.
fn answers(mut said: &[u8]) -> Vec<Answer> {
    let mut found = Vec::new();
    while let Ok((head, rest)) = wire::OptionReply::ref_from_prefix(said) {
        assert_eq!(head.magic.get(), wire::OPTION_REPLY_MAGIC);
        let (data, rest) = rest.split_at(head.len.get() as usize);
        found.push((head.option.get(), head.kind.get(), data.to_vec()));
        said = rest;
    }
    found
}

fn negotiate(options: &[Vec<u8>]) -> (Vec<Answer>, Vec<SessionEvent>) {
    let bytes = [vec![0, 0, 0, 3], options.concat()].concat();
    let (said, steps) = converse(&bytes, &[]);
    (answers(&said[18..]), steps)
}

#[test]
fn contexts_come_after_structured_replies() {
    let set = option(10, b"\0\0\0\0\0\0\0\x02\0\0\0\x03x:y\0\0\0\x0fbase:allocation");
    let (said, _) = negotiate(&[set.clone(), option(8, &[]), set]);
    let kinds: Vec<_> = said.iter().map(|(option, kind, _)| (*option, *kind)).collect();
    assert_eq!(kinds, [(10, reply::ERR_INVALID), (8, 1), (10, reply::META_CONTEXT), (10, 1)]);
    assert_eq!(said[2].2, b"\0\0\0\x01base:allocation");
}

#[test]
fn block_status_needs_the_context() {
    let status = |negotiation: &[Vec<u8>]| {
        let mut bytes = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(b"\0\x08\0\x07cookie!!\0\0\0\0\0\0\0\0\0\0\x10\0");
        let (_, steps) = negotiate(&[negotiation, &[option(7, b"\0\0\0\0\0\0"), bytes]].concat());
        match steps[..] {
            [SessionEvent::Request(request)] => request.kind,
            _ => panic!("{steps:?}"),
        }
    };
    let set = option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation");
    let unset = option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x03x:y");
    assert_eq!(status(&[option(8, &[]), set.clone()]), Ok(CommandKind::BlockStatus { one: true }));
    assert_eq!(status(&[option(8, &[])]), Err(error::INVAL));
    assert_eq!(status(&[option(8, &[]), set, unset]), Err(error::INVAL));
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    for data in [
        &b""[..],
        b"\0\0\0",
        b"\0\0\0\x05disk",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x04disk\0\x01",
        b"\0\0\0\x04disk\0\x01\0\x03\0",
        b"\0\0\0\x04disk\xff\xff\0\x03",
    ] {
        let (said, _) = negotiate(&[option(7, data)]);
        assert_eq!(said[0].1, reply::ERR_INVALID, "{data:?}");
    }
    for data in [
        &b"\0\0\0\0"[..],
        b"\0\0\0\0\0\0\0\x01",
        b"\0\0\0\0\0\0\0\x01\0\0\0\x02a",
        b"\0\0\0\0\xff\xff\xff\xff\0\0\0\x01a",
    ] {
        let (said, _) = negotiate(&[option(8, &[]), option(10, data)]);
        assert_eq!(said[1].1, reply::ERR_INVALID, "{data:?}");
    }
}

#[test]
fn an_unknown_name_is_no_export() {
    let (said, steps) = negotiate(&[option(7, b"\0\0\0\x05disks\0\0"), option(1, b"disks")]);
    assert_eq!(said[0].1, reply::ERR_UNKNOWN);
    assert_eq!(steps, [SessionEvent::Close]);
}
