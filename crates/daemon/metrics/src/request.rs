//! What a client asked for, from the bytes of its request (RFC 9112 §2), and which format it wants
//! (RFC 9110 §12.5.1).

use std::net::IpAddr;

use crate::exposition::ExpositionFormat;

/// Header fields of a request at most.
const HEADERS_MAX: usize = 64;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The metrics in this format; without the text itself (HEAD).
    Metrics(ExpositionFormat, bool),
    /// The live page; without the text itself.
    Page(bool),
    /// The numbers that it shows, as JSON; without the text itself.
    Live(bool),
}

/// Why a request is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadRequest {
    /// It is no HTTP request.
    Malformed,
    /// Only GET and HEAD are allowed.
    Method,
    /// There is nothing of that name.
    NotFound,
    /// It is for a host of another name: a web page may have been led here by its name (DNS rebinding).
    Host,
}

impl BadRequest {
    /// Status line and text.
    pub fn status_and_text(self) -> (&'static str, &'static str) {
        match self {
            BadRequest::Malformed => ("400 Bad Request", "this is not an HTTP request\n"),
            BadRequest::Method => ("405 Method Not Allowed", "only GET and HEAD are allowed\n"),
            BadRequest::NotFound => ("404 Not Found", "see / and /metrics\n"),
            BadRequest::Host => {
                ("421 Misdirected Request", "ask for this address by its number, or by the name localhost\n")
            }
        }
    }
}

/// Reads a request; `None`: it is not complete yet. `is_loopback`: it came by an address of this machine alone.
pub fn parse(bytes: &[u8], is_loopback: bool) -> Result<Option<Resource>, BadRequest> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(BadRequest::Malformed),
    }
    let head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(BadRequest::Method),
    };
    let field = |name: &str| {
        let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| String::from_utf8_lossy(header.value))
    };
    if is_loopback && field("host").is_some_and(|host| !is_local(&host)) {
        return Err(BadRequest::Host);
    }
    let target = request.path.unwrap_or_default();
    match target.split('?').next() {
        Some("/metrics") => {
            let accept = field("accept").unwrap_or_default();
            Ok(Some(Resource::Metrics(preferred_format(&accept), head)))
        }
        Some("/") => Ok(Some(Resource::Page(head))),
        Some("/live.json") => Ok(Some(Resource::Live(head))),
        _ => Err(BadRequest::NotFound),
    }
}

/// Whether a Host field names this machine by its number or as `localhost`.
fn is_local(host: &str) -> bool {
    let host = host.trim();
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => host.split(':').next().unwrap_or(host),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

/// OpenMetrics, if it is liked at least as much as plain text.
fn preferred_format(accept: &str) -> ExpositionFormat {
    let (mut open, mut plain) = (0.0_f32, 0.0_f32);
    for one in accept.split(',') {
        let mut parts = one.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok());
        let Some(quality) = quality.filter(|q: &f32| (0.0..=1.0).contains(q)) else { continue };
        let to = match media {
            "application/openmetrics-text" => &mut open,
            "text/plain" | "text/*" | "*/*" => &mut plain,
            _ => continue,
        };
        *to = to.max(quality);
    }
    if open > 0.0 && open >= plain { ExpositionFormat::OpenMetrics } else { ExpositionFormat::Prometheus }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(text: &str) -> Result<Option<Resource>, BadRequest> {
        parse(text.as_bytes(), true)
    }

    #[test]
    fn what_is_asked_for() {
        let plain = Resource::Metrics(ExpositionFormat::Prometheus, false);
        assert_eq!(asked("GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:9810\r\n\r\n"), Ok(Some(plain)));
        assert_eq!(asked("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Ok(Some(plain)));
        assert_eq!(
            asked("HEAD /metrics HTTP/1.1\r\nhost: [::1]:1\r\n\r\n"),
            Ok(Some(Resource::Metrics(ExpositionFormat::Prometheus, true)))
        );
        assert_eq!(asked("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), Ok(Some(Resource::Page(false))));
        assert_eq!(asked("GET /live.json HTTP/1.1\r\n\r\n"), Ok(Some(Resource::Live(false))));
        assert_eq!(asked("GET /metrics HTTP/1.1\r\nHost: loc"), Ok(None));
        assert_eq!(asked("POST /metrics HTTP/1.1\r\n\r\n"), Err(BadRequest::Method));
        assert_eq!(asked("GET /../etc/passwd HTTP/1.1\r\n\r\n"), Err(BadRequest::NotFound));
        assert_eq!(asked("\x16\x03\x01\x02\x00"), Err(BadRequest::Malformed));
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1));
        assert_eq!(asked(&many), Err(BadRequest::Malformed));
    }

    #[test]
    fn a_web_page_is_not_led_here_by_a_name_of_its_own() {
        let foreign = "GET /metrics HTTP/1.1\r\nHost: evil.example:9810\r\n\r\n";
        assert_eq!(asked(foreign), Err(BadRequest::Host));
        // Of an address that others reach, names are the operator's affair.
        assert!(parse(foreign.as_bytes(), false).is_ok());
    }

    #[test]
    fn the_format_that_is_liked_most() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        assert_eq!(preferred_format(prometheus), ExpositionFormat::OpenMetrics);
        assert_eq!(
            preferred_format("text/plain, application/openmetrics-text;q=0.9"),
            ExpositionFormat::Prometheus
        );
        assert_eq!(preferred_format("application/openmetrics-text;q=0"), ExpositionFormat::Prometheus);
        assert_eq!(preferred_format("application/openmetrics-text;q=nan, */*"), ExpositionFormat::Prometheus);
        assert_eq!(preferred_format("*/*"), ExpositionFormat::Prometheus);
        assert_eq!(preferred_format(""), ExpositionFormat::Prometheus);
    }
}
