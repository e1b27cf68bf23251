use super::*;
use crate::cdb::ModeSelect;
use proptest::prelude::*;

const PARAMETERS: ModeParameters = ModeParameters {
    write_cache: true,
    descriptor_sense: false,
    write_protect: false,
    task_aborted_status: false,
    implicit_access: false,
    provisioning: None,
};
const DEVICE: ModeHeader = ModeHeader { blocks: 0x2_0000, block_len: 512, write_protected: false };
const SIX: ModeSense = ModeSense {
    form: ModeForm::Six,
    disable_block_descriptors: false,
    long_lba: false,
    control: PageControl::Current,
    page: ALL_PAGES,
    subpage: 0,
    allocation: 255,
};

fn sensed(request: &ModeSense, device: &ModeHeader) -> Result<Vec<u8>, Sense> {
    let mut out = [0xee; 512];
    let mut w = Writer::new(&mut out);
    encode_mode_sense(request, device, &PARAMETERS, &PARAMETERS, &mut w)?;
    let len = w.written_len();
    Ok(out[..len].to_vec())
}

#[test]
fn header_and_one_page() {
    let caching = sensed(&ModeSense { page: CACHING, ..SIX }, &DEVICE).unwrap();
    assert_eq!(caching[..12], [31, 0, 0x10, 8, 0, 2, 0, 0, 0, 0, 2, 0]);
    assert_eq!(caching[12..15], [0x08, 0x12, 0x04]);
    assert_eq!(caching.len(), 32);

    let large = ModeHeader { blocks: 1 << 33, block_len: 4096, write_protected: true };
    let ten = ModeSense { form: ModeForm::Ten, long_lba: true, page: CONTROL, ..SIX };
    let control = sensed(&ten, &large).unwrap();
    assert_eq!(control[..8], [0, 34, 0, 0x90, 1, 0, 0, 16]);
    assert_eq!(control[8..24], [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
    assert_eq!(control[24..], [0x0a, 0x0a, 0x02, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    let decoded = decode_mode_sense(ModeForm::Ten, &control).unwrap();
    assert_eq!(decoded.blocks, Some((1 << 33, 4096)));
    assert!(decoded.write_protected && decoded.dpo_fua);

    let short = sensed(&ModeSense { page: CONTROL, ..SIX }, &large).unwrap();
    assert_eq!(short[4..8], [0xff; 4]);
}

#[test]
fn all_pages_and_subpages() {
    for (subpage, len) in [(0, 4 + 12 + 20 + 12 + 12), (ALL_SUBPAGES, 4 + 12 + 20 + 12 + 32 + 12)] {
        let request = ModeSense { subpage, disable_block_descriptors: true, ..SIX };
        let all = sensed(&request, &DEVICE).unwrap();
        assert_eq!(all.len(), len);
        assert_eq!(usize::from(all[0]), len - 1);
        let pages = decode_mode_sense(ModeForm::Six, &all).unwrap().pages;
        for page in [ERROR_RECOVERY, CACHING, CONTROL, INFORMATIONAL_EXCEPTIONS] {
            let alone = sensed(&ModeSense { page, ..request }, &DEVICE).unwrap();
            assert_eq!(find_page(pages, page, 0), find_page(&alone[4..], page, 0));
        }
        assert_eq!(find_page(pages, CONTROL, 1).is_some(), subpage == ALL_SUBPAGES);
    }
}

#[test]
fn page_control() {
    let changeable = ModeSense { control: PageControl::Changeable, disable_block_descriptors: true, ..SIX };
    let control = sensed(&ModeSense { page: CONTROL, ..changeable }, &DEVICE).unwrap();
    assert_eq!(control[4..], [0x0a, 0x0a, 0x04, 0, 0x08, 0x40, 0, 0, 0, 0, 0, 0]);
    let caching = sensed(&ModeSense { page: CACHING, ..changeable }, &DEVICE).unwrap();
    assert_eq!(caching[6..], [0; 18]);
    let saved = sensed(&ModeSense { control: PageControl::Saved, ..SIX }, &DEVICE);
    assert_eq!(saved, Err(Sense::SAVING_PARAMETERS_NOT_SUPPORTED));
}

#[test]
fn pages_that_do_not_exist() {
    for (page, subpage, refusal) in [
        (0x02, 0, Sense::invalid_cdb_field(2, Some(5))),
        (0x02, 0xff, Sense::invalid_cdb_field(2, Some(5))),
        (CACHING, 1, Sense::invalid_cdb_field(3, Some(7))),
        (CONTROL, 2, Sense::invalid_cdb_field(3, Some(7))),
        (ALL_PAGES, 2, Sense::invalid_cdb_field(3, Some(7))),
    ] {
        assert_eq!(sensed(&ModeSense { page, subpage, ..SIX }, &DEVICE), Err(refusal));
    }
}

fn selected(form: ModeForm, list: &[u8]) -> Result<ModeParameters, Sense> {
    let command = ModeSelect { form, page_format: true, save: false, list_len: list.len() as u16 };
    parse_mode_select(&command, list, &DEVICE, &PARAMETERS)
}

#[test]
fn select_changes_d_sense_swp_and_tas() {
    let mut list = vec![0, 0, 0, 0];
    list.extend([0x0a, 0x0a, 0x06, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0]);
    let d_sense = ModeParameters { descriptor_sense: true, ..PARAMETERS };
    assert_eq!(selected(ModeForm::Six, &list), Ok(d_sense));
    list[4] |= 0x80;
    list[8] = 0x08;
    assert_eq!(selected(ModeForm::Six, &list), Ok(ModeParameters { write_protect: true, ..d_sense }));
    let both = list.clone();
    list[9] = 0x40;
    let all = ModeParameters { write_protect: true, task_aborted_status: true, ..d_sense };
    assert_eq!(selected(ModeForm::Six, &list), Ok(all));
    let list = both;
    let mut ten = vec![0; 8];
    ten.extend(&list[4..]);
    assert_eq!(selected(ModeForm::Ten, &ten), Ok(ModeParameters { write_protect: true, ..d_sense }));
}

#[test]
fn select_takes_back_what_sense_gave() {
    for (form, long_lba) in [(ModeForm::Six, false), (ModeForm::Ten, false), (ModeForm::Ten, true)] {
        let request = ModeSense { form, long_lba, subpage: ALL_SUBPAGES, ..SIX };
        let list = sensed(&request, &DEVICE).unwrap();
        assert_eq!(selected(form, &list), Ok(PARAMETERS));
        for cut in 1..list.len() {
            match selected(form, &list[..cut]) {
                Ok(parameters) => assert_eq!(parameters, PARAMETERS, "cut between pages"),
                Err(refusal) => assert_eq!(refusal, Sense::PARAMETER_LIST_LENGTH_ERROR, "cut at {cut}"),
            }
        }
    }
}

#[test]
fn select_refuses() {
    #[rustfmt::skip]
    let cases: &[(&[u8], Sense)] = &[
        (&[0, 0, 0], Sense::PARAMETER_LIST_LENGTH_ERROR),
        (&[0, 1, 0, 0], Sense::invalid_list_field(1, None)),
        (&[0, 0, 0, 8, 0, 0], Sense::PARAMETER_LIST_LENGTH_ERROR),
        (&[0, 0, 0, 4, 0, 0, 0, 0], Sense::invalid_list_field(3, None)),
        (&[0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 2, 0], Sense::invalid_list_field(4, None)),
        (&[0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 4, 0], Sense::invalid_list_field(9, None)),
        (&[0, 0, 0, 0, 0x0a], Sense::PARAMETER_LIST_LENGTH_ERROR),
        (&[0, 0, 0, 0, 0x0a, 0x0a, 0], Sense::PARAMETER_LIST_LENGTH_ERROR),
        (&[0, 0, 0, 0, 0x0a, 0x0b, 0], Sense::invalid_list_field(5, None)),
        (&[0, 0, 0, 0, 0x02, 0x00], Sense::invalid_list_field(4, Some(5))),
        (&[0, 0, 0, 0, 0x4a, 0x01, 0xff, 0xff], Sense::invalid_list_field(6, None)),
        // WCE is not changeable; nor is TST.
        (&[0, 0, 0, 0, 0x08, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], Sense::invalid_list_field(6, Some(2))),
        (&[0, 0, 0, 0, 0x0a, 0x0a, 0x22, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0], Sense::invalid_list_field(6, Some(5))),
    ];
    for (list, refusal) in cases {
        assert_eq!(selected(ModeForm::Six, list), Err(*refusal), "{list:02x?}");
    }
    let command = ModeSelect { form: ModeForm::Six, page_format: true, save: false, list_len: 0 };
    let select = |command: ModeSelect| parse_mode_select(&command, &[], &DEVICE, &PARAMETERS);
    assert_eq!(select(command), Ok(PARAMETERS));
    assert_eq!(select(ModeSelect { save: true, ..command }), Err(Sense::invalid_cdb_field(1, Some(0))));
    assert_eq!(
        select(ModeSelect { page_format: false, list_len: 4, ..command }),
        Err(Sense::invalid_cdb_field(1, Some(4)))
    );
    assert_eq!(select(ModeSelect { list_len: 4, ..command }), Err(Sense::PARAMETER_LIST_LENGTH_ERROR));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_list_has_an_answer(list in proptest::collection::vec(any::<u8>(), 0..80), ten: bool) {
        let form = if ten { ModeForm::Ten } else { ModeForm::Six };
        let _ = selected(form, &list);
        if let Some(decoded) = decode_mode_sense(form, &list) {
            let _ = find_page(decoded.pages, CONTROL, 1);
        }
    }

    #[test]
    fn never_beyond_the_allocation(allocation in 0usize..80) {
        let mut out = [0xee; 80];
        let mut w = Writer::with_allocation_length(&mut out, allocation);
        encode_mode_sense(&SIX, &DEVICE, &PARAMETERS, &PARAMETERS, &mut w).unwrap();
        let (len, written) = (w.len(), w.written_len());
        prop_assert_eq!(written, len.min(allocation));
        prop_assert!(out[written..].iter().all(|b| *b == 0xee));
        prop_assert!(allocation == 0 || usize::from(out[0]) == len - 1);
    }
}

// SBC-3 §6.4.7: table of the logical block provisioning mode page, and of its threshold descriptors.
#[test]
fn a_thin_volume_has_a_page_with_its_threshold() {
    let request =
        ModeSense { page: INFORMATIONAL_EXCEPTIONS, subpage: 2, disable_block_descriptors: true, ..SIX };
    assert_eq!(sensed(&request, &DEVICE), Err(Sense::invalid_cdb_field(3, Some(7))), "it is not thin");
    let page = |used_max, control| {
        let thin = ModeParameters { provisioning: Some(ProvisioningThreshold { used_max }), ..PARAMETERS };
        let mut out = [0xee; 64];
        let mut w = Writer::new(&mut out);
        encode_mode_sense(&ModeSense { control, ..request }, &DEVICE, &thin, &thin, &mut w).unwrap();
        let len = w.written_len();
        out[4..len].to_vec()
    };
    let mut expected = vec![0x5c, 0x02, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(expected.len() as u64, THRESHOLD_DESCRIPTOR_AT);
    expected.extend([0x81, 0x02, 0, 0, 0, 0x12, 0x34, 0x56]);
    assert_eq!(page(Some(0x12_3456), PageControl::Current), expected);
    assert_eq!(page(None, PageControl::Default)[16..], [0x01, 0x02, 0, 0, 0, 0, 0, 0]);
    assert_eq!(page(Some(1), PageControl::Changeable)[4..], [0; 20], "nothing can be changed");
}
