//! Layouts against hand-written bytes, and the length rules.

use super::*;
use zerocopy::IntoBytes;

/// Bytes 00h..2Fh: every field's value tells its offset.
fn ramp() -> Bhs {
    let mut bytes = [0; BHS_LEN];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = i as u8;
    }
    *Bhs::from_prefix(&bytes).unwrap()
}

fn be32(first: u8) -> u32 {
    u32::from_be_bytes([first, first + 1, first + 2, first + 3])
}

#[test]
fn request_fields_stand_at_their_offsets() {
    let bhs = ramp();
    assert_eq!((bhs.ahs_len(), bhs.data_len()), (16, 0x05_0607));
    assert_eq!((bhs.lun, bhs.itt.value()), (Lun([8, 9, 10, 11, 12, 13, 14, 15]), be32(16)));

    let p = ScsiCommand::from_bhs(&bhs);
    assert_eq!(
        (p.expected_data_len.get(), p.cmd_sn.value(), p.exp_stat_sn.value()),
        (be32(20), be32(24), be32(28))
    );
    assert_eq!((p.cdb[0], p.cdb[15], p.flags.attribute()), (32, 47, TaskAttribute::SIMPLE));
    let p = TmfRequest::from_bhs(&bhs);
    assert_eq!(
        (p.referenced_tag.value(), p.ref_cmd_sn.value(), p.exp_data_sn.value()),
        (be32(20), be32(32), be32(36))
    );
    let p = DataOut::from_bhs(&bhs);
    assert_eq!((p.ttt.value(), p.exp_stat_sn.value()), (be32(20), be32(28)));
    assert_eq!((p.data_sn.value(), p.buffer_offset.get()), (be32(36), be32(40)));
    let p = LoginRequest::from_bhs(&bhs);
    assert_eq!((p.version_max, p.version_min, p.isid), (2, 3, Isid([8, 9, 10, 11, 12, 13])));
    assert_eq!((p.tsih.value(), p.cid.value(), p.cmd_sn.value()), (0x0e0f, 0x1415, be32(24)));
    let p = LogoutRequest::from_bhs(&bhs);
    assert_eq!(
        (p.reason(), p.cid.value(), p.cmd_sn.value()),
        (LogoutReason::CLOSE_CONNECTION, 0x1415, be32(24))
    );
    let p = TextRequest::from_bhs(&bhs);
    assert_eq!((p.ttt.value(), p.cmd_sn.value(), p.exp_stat_sn.value()), (be32(20), be32(24), be32(28)));
    let p = NopOut::from_bhs(&bhs);
    assert_eq!((p.ttt.value(), p.cmd_sn.value(), p.exp_stat_sn.value()), (be32(20), be32(24), be32(28)));
}

#[test]
fn response_fields_stand_at_their_offsets() {
    let bhs = ramp();
    macro_rules! counters {
        ($($pdu:ty),*) => {$({
            let p = <$pdu>::from_bhs(&bhs);
            let got = (p.stat_sn.value(), p.exp_cmd_sn.value(), p.max_cmd_sn.value());
            assert_eq!(got, (be32(24), be32(28), be32(32)), stringify!($pdu));
        })*};
    }
    counters!(
        ScsiResponse,
        TmfResponse,
        DataIn,
        R2t,
        AsyncMessage,
        TextResponse,
        LoginResponse,
        LogoutResponse,
        Reject,
        NopIn
    );
    let p = ScsiResponse::from_bhs(&bhs);
    assert_eq!(
        (p.response.0, p.status.0, p.status_qualifier.get(), p.snack_tag.get()),
        (2, 3, 0x0809, be32(20))
    );
    assert_eq!(
        (p.exp_data_sn.value(), p.bidi_residual.get(), p.residual.get()),
        (be32(36), be32(40), be32(44))
    );
    let p = TmfResponse::from_bhs(&bhs);
    assert_eq!((p.response.0, p.additional), (2, [8, 9, 10]));
    let p = DataIn::from_bhs(&bhs);
    assert_eq!((p.status.0, p.ttt.value(), p.data_sn.value()), (3, be32(20), be32(36)));
    assert_eq!((p.buffer_offset.get(), p.residual.get()), (be32(40), be32(44)));
    let p = R2t::from_bhs(&bhs);
    assert_eq!((p.ttt.value(), p.r2t_sn.value()), (be32(20), be32(36)));
    assert_eq!((p.buffer_offset.get(), p.desired_len.get()), (be32(40), be32(44)));
    let p = AsyncMessage::from_bhs(&bhs);
    assert_eq!((p.event.0, p.vendor_code, p.parameter1.get()), (36, 37, 0x2627));
    assert_eq!((p.parameter2.get(), p.parameter3.get()), (0x2829, 0x2a2b));
    let p = LoginResponse::from_bhs(&bhs);
    assert_eq!((p.version_max, p.version_active, p.tsih.value()), (2, 3, 0x0e0f));
    assert_eq!(p.status, LoginStatus { class: 36, detail: 37 });
    let p = LogoutResponse::from_bhs(&bhs);
    assert_eq!((p.response.0, p.time2wait.get(), p.time2retain.get()), (2, 0x2829, 0x2a2b));
    let p = Reject::from_bhs(&bhs);
    assert_eq!((p.reason.0, p.data_sn.value()), (2, be32(36)));
    assert_eq!(
        (NopIn::from_bhs(&bhs).ttt.value(), TextResponse::from_bhs(&bhs).ttt.value()),
        (be32(20), be32(20))
    );
}

#[test]
fn new_headers_carry_their_fixed_bits() {
    let login = LoginRequest::new();
    assert_eq!(login.as_bhs().bytes()[0], 0x43);
    let nop = NopIn::new();
    assert_eq!((nop.as_bhs().bytes()[0], nop.as_bhs().bytes()[1]), (0x20, 0x80));
    assert!(nop.itt.is_none() && nop.ttt.is_none());
    assert_eq!(Reject::new().as_bhs().bytes()[16..20], [0xff; 4]);
    assert_eq!(DataIn::new().to_bhs().flags, 0);
    assert_eq!(R2t::new().to_bhs().flags, 0x80);
    assert!(LoginRequest::from_bhs(login.as_bhs()).op.is_immediate());
    assert_eq!(login.as_bhs().as_bytes().len(), BHS_LEN);
}

#[test]
fn lengths_pad_to_words() {
    for (len, pad) in [(0, 0), (1, 3), (2, 2), (3, 1), (4, 0), (8191, 1), (0xff_ffff, 1)] {
        assert_eq!(pad_len(len), pad);
        assert_eq!(padded_len(len), Some(len + pad));
    }
    assert_eq!(padded_len(usize::MAX), None);
    let mut text = TextResponse::new();
    text.set_data_len(0xff_ffff);
    assert_eq!((text.to_bhs().data_len(), text.to_bhs().padded_data_len()), (0xff_ffff, 1 << 24));
    assert_eq!(Len24::new(1 << 24), None);
}

#[test]
fn login_flags_hold_two_stages() {
    let flags = LoginFlags::TRANSIT.with_stages(Stage::OPERATIONAL, Stage::FULL_FEATURE);
    assert_eq!(flags.0, 0x87);
    assert_eq!((flags.current(), flags.next()), (Stage::OPERATIONAL, Stage::FULL_FEATURE));
    assert!(flags.contains(LoginFlags::TRANSIT) && !flags.contains(LoginFlags::CONTINUE));
    assert_eq!(flags.without(LoginFlags::TRANSIT).0, 0x07);
    assert_eq!(format!("{:?} {:?}", Stage(2), Stage::SECURITY), "Stage(0x02) SECURITY");
    assert_eq!(format!("{:?}", LoginStatus { class: 2, detail: 10 }), "SESSION_DOES_NOT_EXIST");
    assert_eq!(format!("{:?}", LoginStatus { class: 9, detail: 10 }), "LoginStatus(090a)");
}
