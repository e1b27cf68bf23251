//! TCP options of `[[portal]]`.

use super::super::reader::TableReader;

/// Names of congestion control algorithms are those of kernel modules (TCP_CA_NAME_MAX is 16 with its NUL).
pub(super) fn parse_congestion_control(text: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    if text.is_empty() || text.len() > 15 || !text.bytes().all(plain) {
        return Err(format!(
            "\"{text}\" is not the name of a congestion control algorithm, such as cubic, bbr or dctcp"
        ));
    }
    Ok(text.to_owned())
}

/// Code points by number or by the names of RFC 2474, 2597, 3246 and 8622.
pub(super) fn read_dscp(table: &TableReader<'_>) -> Option<u8> {
    let written = table.as_spec_value("dscp")?;
    let text = written.value.to_ascii_lowercase();
    let digit = |at: usize, range: std::ops::RangeInclusive<u8>| {
        let digit = text.as_bytes().get(at)?.wrapping_sub(b'0');
        range.contains(&digit).then_some(digit)
    };
    let point = match text.as_str() {
        "ef" => Some(46),
        "le" => Some(1),
        "be" | "default" => Some(0),
        _ if text.len() == 3 && text.starts_with("cs") => digit(2, 0..=7).map(|class| class * 8),
        _ if text.len() == 4 && text.starts_with("af") => {
            digit(2, 1..=4).zip(digit(3, 1..=3)).map(|(class, drop)| class * 8 + drop * 2)
        }
        _ => text.parse().ok().filter(|point| *point <= 63),
    };
    if point.is_none() {
        table.file.sink.note_error(
            &written.at,
            format!(
                "dscp in [[portal]]: \"{}\" is not 0 to 63 or a name such as \"cs1\", \"af41\" or \"ef\"",
                written.value
            ),
        );
    }
    point
}
