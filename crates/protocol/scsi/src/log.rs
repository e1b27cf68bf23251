//! LOG SENSE data (SPC-4 §7.3, SBC-3 §6.3): supported pages, logical block provisioning (0Ch), temperature (0Dh),
//! informational exceptions (2Fh).

use crate::cdb::LogSense;
use crate::sense::Sense;
use crate::wire::{Writer, be16, be32, flag_bit};

/// Supported log pages.
pub const SUPPORTED_PAGES: u8 = 0x00;
/// Logical block provisioning.
pub const PROVISIONING: u8 = 0x0c;
/// Temperature.
pub const TEMPERATURE: u8 = 0x0d;
/// Informational exceptions.
pub const INFORMATIONAL_EXCEPTIONS: u8 = 0x2f;
/// In place of a subpage: all subpages.
const ALL_SUBPAGES: u8 = 0xff;

/// Resources of a thin volume, in threshold sets of 2^THRESHOLD EXPONENT blocks (VPD B2h).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThinResources {
    /// Available LBA mapping resources.
    pub available: u32,
    /// Used LBA mapping resources.
    pub used: u32,
    /// The available resources are shared with other logical units.
    pub shared: bool,
}

/// What the pages say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogValues {
    /// Temperature in degrees Celsius, 0..=254; `None`: not known.
    pub temperature: Option<u8>,
    /// `None`: the volume is not thin, and the page does not exist.
    pub resources: Option<ThinResources>,
}

/// PARAMETER CONTROL: FORMAT AND LINKING 11b, a binary list that is not saved.
const BINARY_LIST: u8 = 0x03;
/// TEMPERATURE that is not known.
const TEMPERATURE_UNKNOWN: u8 = 0xff;

/// Writes LOG SENSE data. Refused: pages that do not exist, a parameter pointer beyond the last parameter.
pub fn encode_log_sense(request: &LogSense, values: &LogValues, w: &mut Writer<'_>) -> Result<(), Sense> {
    match (request.page, request.subpage) {
        (SUPPORTED_PAGES, 0) => encode_supported_pages(request, values, false, w),
        (SUPPORTED_PAGES, ALL_SUBPAGES) => encode_supported_pages(request, values, true, w),
        (PROVISIONING, 0) => match values.resources {
            Some(resources) => encode_provisioning(request, &resources, w),
            None => Err(Sense::invalid_cdb_field(2, Some(5))),
        },
        (TEMPERATURE, 0) => encode_temperature(request, values.temperature, w),
        (INFORMATIONAL_EXCEPTIONS, 0) => encode_informational_exceptions(request, values.temperature, w),
        (SUPPORTED_PAGES | PROVISIONING | TEMPERATURE | INFORMATIONAL_EXCEPTIONS, _) => {
            Err(Sense::invalid_cdb_field(3, Some(7)))
        }
        _ => Err(Sense::invalid_cdb_field(2, Some(5))),
    }
}

fn check_parameter_pointer(request: &LogSense, last: u16) -> Result<(), Sense> {
    if request.pointer > last { Err(Sense::invalid_cdb_field(5, None)) } else { Ok(()) }
}

fn encode_supported_pages(
    request: &LogSense,
    values: &LogValues,
    subpages: bool,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    check_parameter_pointer(request, 0)?;
    let thin = values.resources.is_some().then_some(PROVISIONING);
    let pages = [Some(SUPPORTED_PAGES), thin, Some(TEMPERATURE), Some(INFORMATIONAL_EXCEPTIONS)];
    let len_at = begin_page(SUPPORTED_PAGES, subpages, w);
    for page in pages.into_iter().flatten() {
        w.u8(page);
        if subpages {
            w.u8(0);
            if page == SUPPORTED_PAGES {
                w.put(&[SUPPORTED_PAGES, ALL_SUBPAGES]);
            }
        }
    }
    w.patch_length_u16(len_at);
    Ok(())
}

/// The page header (DS = 1: not saved); gives where its length is.
fn begin_page(page: u8, subpages: bool, w: &mut Writer<'_>) -> usize {
    w.u8(page | flag_bit(true, 7) | flag_bit(subpages, 6));
    w.u8(if subpages { ALL_SUBPAGES } else { 0 });
    let len_at = w.len();
    w.u16(0);
    len_at
}

/// Appends a parameter unless it lies before the parameter pointer.
fn put_parameter(request: &LogSense, code: u16, value: &[u8], w: &mut Writer<'_>) {
    if code >= request.pointer {
        w.u16(code);
        w.put(&[BINARY_LIST, value.len() as u8]);
        w.put(value);
    }
}

fn encode_provisioning(
    request: &LogSense,
    resources: &ThinResources,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    const AVAILABLE: u16 = 0x0001;
    const USED: u16 = 0x0002;
    // SCOPE: 01b dedicated to the logical unit, 10b shared.
    let scope = if resources.shared { 2 } else { 1 };
    check_parameter_pointer(request, USED)?;
    let len_at = begin_page(PROVISIONING, false, w);
    for (code, count, scope) in [(AVAILABLE, resources.available, scope), (USED, resources.used, 1)] {
        let [a, b, c, d] = count.to_be_bytes();
        put_parameter(request, code, &[a, b, c, d, scope, 0, 0, 0], w);
    }
    w.patch_length_u16(len_at);
    Ok(())
}

fn encode_temperature(request: &LogSense, celsius: Option<u8>, w: &mut Writer<'_>) -> Result<(), Sense> {
    const CURRENT: u16 = 0x0000;
    const REFERENCE: u16 = 0x0001;
    check_parameter_pointer(request, REFERENCE)?;
    let len_at = begin_page(TEMPERATURE, false, w);
    put_parameter(request, CURRENT, &[0, celsius.unwrap_or(TEMPERATURE_UNKNOWN)], w);
    put_parameter(request, REFERENCE, &[0, TEMPERATURE_UNKNOWN], w);
    w.patch_length_u16(len_at);
    Ok(())
}

/// No exception is pending: additional sense code 0. The last byte is read as a threshold temperature by many.
fn encode_informational_exceptions(
    request: &LogSense,
    celsius: Option<u8>,
    w: &mut Writer<'_>,
) -> Result<(), Sense> {
    check_parameter_pointer(request, 0)?;
    let len_at = begin_page(INFORMATIONAL_EXCEPTIONS, false, w);
    put_parameter(request, 0, &[0, 0, celsius.unwrap_or(TEMPERATURE_UNKNOWN), TEMPERATURE_UNKNOWN], w);
    w.patch_length_u16(len_at);
    Ok(())
}

/// The parameters of a log page as received: code and value, as far as they are whole.
pub fn decode_parameters(data: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    let listed = data.first_chunk::<4>().map_or(0, |head| usize::from(be16(head, 2)));
    let body = data.get(4..).unwrap_or(&[]);
    let mut rest = body.get(..listed).unwrap_or(body);
    std::iter::from_fn(move || {
        let (head, tail) = rest.split_first_chunk::<4>()?;
        let (value, next) = tail.split_at_checked(usize::from(head[3]))?;
        rest = next;
        Some((be16(head, 0), value))
    })
}

/// The 32-bit count of a logical block provisioning parameter.
pub fn decode_count(value: &[u8]) -> Option<u32> {
    value.first_chunk::<4>().map(|bytes| be32(bytes, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THIN: LogValues = LogValues {
        temperature: Some(35),
        resources: Some(ThinResources { available: 0x102, used: 3, shared: true }),
    };
    const THICK: LogValues = LogValues { temperature: None, resources: None };

    fn request(page: u8, subpage: u8, pointer: u16) -> LogSense {
        LogSense { control: 1, page, subpage, pointer, allocation: 512 }
    }

    fn sensed(request: LogSense, values: &LogValues) -> Result<Vec<u8>, Sense> {
        let mut out = [0xee; 64];
        let mut w = Writer::new(&mut out);
        encode_log_sense(&request, values, &mut w)?;
        let len = w.written_len();
        Ok(out[..len].to_vec())
    }

    #[test]
    fn vectors() {
        #[rustfmt::skip]
        let cases: &[(LogSense, &LogValues, &[u8])] = &[
            (request(0, 0, 0), &THIN, &[0x80, 0, 0, 4, 0, 0x0c, 0x0d, 0x2f]),
            (request(0, 0, 0), &THICK, &[0x80, 0, 0, 3, 0, 0x0d, 0x2f]),
            (request(0, 0xff, 0), &THICK, &[0xc0, 0xff, 0, 8, 0, 0, 0, 0xff, 0x0d, 0, 0x2f, 0]),
            (request(0x0c, 0, 0), &THIN, &[0x8c, 0, 0, 24, 0, 1, 3, 8, 0, 0, 1, 2, 2, 0, 0, 0, 0, 2, 3, 8, 0, 0, 0, 3, 1, 0, 0, 0]),
            (request(0x0c, 0, 2), &THIN, &[0x8c, 0, 0, 12, 0, 2, 3, 8, 0, 0, 0, 3, 1, 0, 0, 0]),
            (request(0x0d, 0, 0), &THIN, &[0x8d, 0, 0, 12, 0, 0, 3, 2, 0, 35, 0, 1, 3, 2, 0, 0xff]),
            (request(0x0d, 0, 0), &THICK, &[0x8d, 0, 0, 12, 0, 0, 3, 2, 0, 0xff, 0, 1, 3, 2, 0, 0xff]),
            (request(0x2f, 0, 0), &THIN, &[0xaf, 0, 0, 8, 0, 0, 3, 4, 0, 0, 35, 0xff]),
        ];
        for (request, values, bytes) in cases {
            assert_eq!(sensed(*request, values).as_deref(), Ok(*bytes), "{request:?}");
        }
        let data = sensed(request(0x0c, 0, 0), &THIN).unwrap();
        let counts: Vec<_> =
            decode_parameters(&data).map(|(code, value)| (code, decode_count(value))).collect();
        assert_eq!(counts, [(1, Some(0x102)), (2, Some(3))]);
        assert_eq!(decode_parameters(&data[..20]).count(), 1);
        assert_eq!(decode_parameters(&[0x8c, 0, 0xff, 0xff, 0, 1, 3, 0xff]).count(), 0);
    }

    #[test]
    fn refused() {
        for (request, values, refusal) in [
            (request(0x0c, 0, 0), &THICK, Sense::invalid_cdb_field(2, Some(5))),
            (request(0x05, 0, 0), &THIN, Sense::invalid_cdb_field(2, Some(5))),
            (request(0x0d, 1, 0), &THIN, Sense::invalid_cdb_field(3, Some(7))),
            (request(0x0d, 0, 2), &THIN, Sense::invalid_cdb_field(5, None)),
            (request(0x00, 0, 1), &THIN, Sense::invalid_cdb_field(5, None)),
        ] {
            assert_eq!(sensed(request, values), Err(refusal), "{request:?}");
        }
    }
}
