//! Exchanges by fixed bytes.

use super::*;
use crate::discovery::TargetList;
use crate::name::TargetAddress;
use crate::negotiate::SessionType;
use proptest::prelude::*;

const F: u8 = 0x80;
const C: u8 = 0x40;

/// An exchange whose tags count up from 0.
struct Counted(TextExchange, u32);

impl Counted {
    fn fresh(&mut self) -> Ttt {
        self.1 += 1;
        Ttt::new(self.1 - 1)
    }

    fn handle(
        &mut self,
        request: &TextRequest,
        data: &[u8],
        params: &Params,
    ) -> Result<TextStep, RejectReason> {
        let fresh = self.fresh();
        self.0.handle_request(request, data, params, fresh)
    }

    fn answer_targets(&mut self, targets: Box<[u8]>, params: &Params) -> Box<TextAnswer> {
        let fresh = self.fresh();
        self.0.answer_send_targets(targets, params, fresh).unwrap()
    }
}

fn exchange() -> Counted {
    Counted(TextExchange::new(NegotiationLimits::default()), 0)
}

fn discovery() -> Params {
    Params { initiator_mrdsl: 512, ..Params::defaults(SessionType::Discovery) }
}

fn request(flags: u8, itt: u32, ttt: Ttt) -> TextRequest {
    let mut request = TextRequest::new();
    (request.flags, request.itt, request.ttt) = (TextFlags(flags), Itt::new(itt), ttt);
    request
}

fn sent(step: Result<TextStep, RejectReason>) -> TextAnswer {
    match step {
        Ok(TextStep::Send(answer)) => *answer,
        other => panic!("{other:?}"),
    }
}

fn targets(count: usize) -> Box<[u8]> {
    let address = TargetAddress::of_portal("10.0.0.1:3260".parse().unwrap(), 1);
    let mut list = TargetList::default();
    for i in 0..count {
        list.push_target(&format!("iqn.2026-11.io.example:t{i:05}"));
        list.push_address(&address);
    }
    list.into_text()
}

#[test]
fn a_short_list_is_one_response() {
    let mut x = exchange();
    let step = x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &discovery());
    assert!(matches!(step, Ok(TextStep::AskTargets(SendTargets::All))));
    let answer = x.answer_targets(targets(2), &discovery());
    assert_eq!(
        (answer.response.flags.0, answer.response.ttt, answer.response.itt),
        (F, Ttt::NONE, Itt::new(1))
    );
    assert_eq!(answer.text[..], targets(2)[..]);
    assert_eq!(answer.response.as_bhs().data_len(), answer.text.len());
}

#[test]
fn attack_22_five_thousand_targets_for_an_initiator_that_takes_512_bytes() {
    let mut x = exchange();
    let step = x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &discovery());
    assert!(matches!(step, Ok(TextStep::AskTargets(SendTargets::All))));
    let mut answer = *x.answer_targets(targets(5000), &discovery());
    let mut whole = Vec::new();
    loop {
        assert!(answer.text.len() <= 512 && answer.text.ends_with(&[0]), "whole pairs, within the limit");
        whole.extend_from_slice(&answer.text);
        if answer.response.flags.contains(TextFlags::FINAL) {
            break;
        }
        assert!(answer.response.flags.0 == C && !answer.response.ttt.is_none());
        answer = sent(x.handle(&request(F, 1, answer.response.ttt), b"", &discovery()));
    }
    assert!(answer.response.ttt.is_none());
    assert_eq!(whole[..], targets(5000)[..]);
}

#[test]
fn attack_23_stale_and_foreign_tags() {
    let field = Some(RejectReason::INVALID_PDU_FIELD);
    let open = |x: &mut Counted| {
        x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &discovery()).unwrap();
        x.answer_targets(targets(100), &discovery()).response.ttt
    };
    let mut x = exchange();
    assert_eq!(x.handle(&request(F, 1, Ttt::new(0)), b"", &discovery()).err(), field, "nothing is open");
    let mut x = exchange();
    let ttt = open(&mut x);
    sent(x.handle(&request(F, 1, ttt), b"", &discovery()));
    assert_eq!(x.handle(&request(F, 1, ttt), b"", &discovery()).err(), field, "stale");
    assert_eq!(x.0.open_task(), Some(Itt::new(1)), "it stays open for the right one");
    let mut x = exchange();
    let ttt = open(&mut x);
    assert_eq!(x.handle(&request(F, 2, ttt), b"", &discovery()).err(), field, "of another task");
    let mut x = exchange();
    open(&mut x);
    assert_eq!(x.handle(&request(F, 1, Ttt::new(77)), b"", &discovery()).err(), field, "made up");
    assert_eq!(x.handle(&request(F, u32::MAX, Ttt::NONE), b"", &discovery()).err(), field, "no task tag");
}

#[test]
fn attack_23_two_at_once_and_impossible_flags() {
    let protocol = Some(RejectReason::PROTOCOL_ERROR);
    let mut x = exchange();
    x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &discovery()).unwrap();
    for (itt, ttt) in [(2, Ttt::NONE), (1, Ttt::NONE), (1, Ttt::new(0))] {
        assert_eq!(x.handle(&request(F, itt, ttt), b"SendTargets=All\0", &discovery()).err(), protocol);
    }
    let answer = x.answer_targets(targets(1), &discovery());
    assert_eq!(answer.response.itt, Itt::new(1), "the first is still answered");
    assert_eq!(x.handle(&request(F | C, 1, Ttt::NONE), b"", &discovery()).err(), protocol);
    x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &discovery()).unwrap();
    let ttt = x.answer_targets(targets(100), &discovery()).response.ttt;
    assert_eq!(
        x.handle(&request(F, 1, ttt), b"X=1\0", &discovery()).err(),
        protocol,
        "text instead of a fetch"
    );
}

#[test]
fn an_abandoned_exchange_is_forgotten() {
    let mut x = exchange();
    x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &discovery()).unwrap();
    x.answer_targets(targets(100), &discovery());
    let answer = sent(x.handle(&request(F, 9, Ttt::NONE), b"X-a=1\0", &discovery()));
    assert_eq!((answer.response.itt, &answer.text[..]), (Itt::new(9), &b"X-a=NotUnderstood\0"[..]));
}

#[test]
fn values_change_with_the_final_response_only() {
    let normal = Params::defaults(SessionType::Normal);
    let mut x = exchange();
    let declared = b"MaxRecvDataSegmentLength=65536\0";
    let answer = sent(x.handle(&request(0, 1, Ttt::NONE), declared, &normal));
    assert_eq!((answer.response.flags.0, answer.initiator_mrdsl), (0, None));
    let answer = sent(x.handle(&request(F, 1, answer.response.ttt), b"", &normal));
    assert_eq!((answer.response.flags.0, answer.initiator_mrdsl), (F, Some(65_536)));
    assert!(answer.response.ttt.is_none());
    // Keys of the login, a key twice, or a bad value end the exchange; nothing has changed.
    for text in [
        &b"MaxBurstLength=512\0"[..],
        b"InitiatorName=iqn.2026-11.io.example:x\0",
        b"MaxRecvDataSegmentLength=511\0",
        b"MaxRecvDataSegmentLength=512\0MaxRecvDataSegmentLength=512\0",
        b"TargetAlias=x\0",
        b"junk\0",
    ] {
        assert_eq!(
            x.handle(&request(F, 1, Ttt::NONE), text, &normal).err(),
            Some(RejectReason::PROTOCOL_ERROR)
        );
    }
    let answer = sent(x.handle(&request(F, 1, Ttt::NONE), b"", &normal));
    assert_eq!((answer.initiator_mrdsl, answer.text.len()), (None, 0));
}

#[test]
fn text_over_several_requests() {
    let mut x = exchange();
    let part = sent(x.handle(&request(C, 1, Ttt::NONE), b"SendTar", &discovery()));
    assert_eq!((part.response.flags.0, part.text.len()), (0, 0));
    let step = x.handle(&request(F, 1, part.response.ttt), b"gets=All\0X=1\0", &discovery());
    assert!(matches!(step, Ok(TextStep::AskTargets(SendTargets::All))));
    let answer = x.answer_targets(targets(1), &discovery());
    assert!(answer.text.starts_with(b"X=NotUnderstood\0TargetName=iqn"));
    // The bound of the reassembly closes the exchange.
    let mut x = exchange();
    let mut ttt = Ttt::NONE;
    let refused = (0..100).find_map(|_| match x.handle(&request(C, 1, ttt), &[b'K'; 1024], &discovery()) {
        Ok(TextStep::Send(answer)) => {
            ttt = answer.response.ttt;
            None
        }
        other => Some(other.err()),
    });
    assert_eq!(refused, Some(Some(RejectReason::PROTOCOL_ERROR)));
}

#[test]
fn a_normal_session_sees_its_own_target_only() {
    let normal = Params::defaults(SessionType::Normal);
    let mut x = exchange();
    let answer = sent(x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=All\0", &normal));
    assert_eq!(answer.text, b"SendTargets=Reject\0");
    let step = x.handle(&request(F, 1, Ttt::NONE), b"SendTargets=\0", &normal);
    assert!(matches!(step, Ok(TextStep::AskTargets(SendTargets::Own))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]
    #[test]
    fn any_requests_are_answered_or_rejected(
        requests in proptest::collection::vec((any::<u8>(), 0u32..3, prop_oneof![Just(u32::MAX), 0u32..4], "(SendTargets=All|X=1|[A-Z]=?|)\0?"), 1..12),
    ) {
        let mut x = exchange();
        for (flags, itt, ttt, text) in requests {
            let step = x.handle(&request(flags, itt, Ttt::new(ttt)), text.as_bytes(), &discovery());
            let answer = match step {
                Ok(TextStep::Send(answer)) => *answer,
                Ok(TextStep::AskTargets(_)) => *x.answer_targets(targets(30), &discovery()),
                Err(_) => continue,
            };
            prop_assert!(answer.text.len() <= 512);
            let is_final = answer.response.flags.contains(TextFlags::FINAL);
            prop_assert_eq!(is_final, answer.response.ttt.is_none());
            prop_assert!(!is_final || flags & F != 0, "final answers final only");
        }
    }
}
