use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use super::*;
use crate::families::tests::example;
use control::RefusalCode;

/// Counts how often it is asked.
#[derive(Default)]
struct Source {
    asked: AtomicUsize,
    fails: bool,
    /// How long the shards need.
    takes: Duration,
}

impl ObservationSource for Source {
    fn observe(&self) -> Result<ObservationReport, RequestRefusal> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        thread::sleep(self.takes);
        match self.fails {
            true => Err(RequestRefusal::new(RefusalCode::TimedOut, "the shards did not answer in time")),
            false => Ok(example()),
        }
    }
}

fn start(source: &Arc<Source>) -> MetricsListener {
    let listener = MetricsListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let source: Arc<dyn ObservationSource> = source.clone();
    listener.serve(&source).unwrap();
    listener
}

/// Sends bytes and takes the whole answer.
fn ask(listener: &MetricsListener, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(listener.bound_address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).unwrap()
}

fn status(answer: &str) -> &str {
    answer.lines().next().unwrap_or_default()
}

#[test]
fn metrics_are_served_in_both_formats() {
    let begun = Instant::now();
    let source = Arc::default();
    let listener = start(&source);
    let plain = ask(&listener, b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
    assert_eq!(status(&plain), "HTTP/1.1 200 OK");
    assert!(plain.contains("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{plain}");
    let (fields, body) = plain.split_once("\r\n\r\n").unwrap();
    assert!(fields.contains(&format!("Content-Length: {}\r\n", body.len())), "{fields}");
    assert!(body.contains("\nblockwire_volume_read_bytes_total{volume=\"data\"} 4096\n"), "{body}");
    let accept = "Accept: application/openmetrics-text; version=1.0.0\r\n";
    let open = ask(&listener, format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\n{accept}\r\n").as_bytes());
    assert!(open.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(open.ends_with("# EOF\n"));
    let head = ask(&listener, b"HEAD /metrics HTTP/1.1\r\n\r\n");
    assert_eq!(status(&head), "HTTP/1.1 200 OK");
    assert!(head.ends_with("\r\n\r\n"), "{head}");
    // On a busy machine it takes longer than an observation is fresh.
    let most = 1 + usize::try_from(begun.elapsed().as_millis() / OBSERVATION_AGE_MAX.as_millis()).unwrap();
    let asked = source.asked.load(Ordering::Relaxed);
    assert!((1..=most).contains(&asked), "asked {asked} times, {most} at most");
}

#[test]
fn hostile_requests_are_refused_and_harm_nobody() {
    let source = Arc::default();
    let listener = start(&source);
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'a'; 64 << 10]].concat();
    for (bytes, expected) in [
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello".as_slice(), "HTTP/1.1 405"),
        (b"DELETE / HTTP/1.1\r\n\r\n", "HTTP/1.1 405"),
        (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", "HTTP/1.1 404"),
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "HTTP/1.1 421"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "HTTP/1.1 400"),
        (b"\0\0\0\0\r\n\r\n", "HTTP/1.1 400"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", "HTTP/1.1 400"),
        (&long, "HTTP/1.1 400"),
    ] {
        let answer = ask(&listener, bytes);
        // A client that sends on when it is refused may see a reset instead of the answer.
        let is_reset = bytes.len() > 8 << 10 && answer.is_empty();
        assert!(answer.starts_with(expected) || is_reset, "{}: {answer}", String::from_utf8_lossy(bytes));
    }
    // Clients that hang up: without a word, within their request, before the answer.
    for bytes in [b"".as_slice(), b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"] {
        let mut stream = TcpStream::connect(listener.bound_address()).unwrap();
        stream.write_all(bytes).unwrap();
    }
    assert_eq!(status(&ask(&listener, b"GET /metrics HTTP/1.1\r\n\r\n")), "HTTP/1.1 200 OK");
}

#[test]
fn clients_that_say_nothing_take_no_more_than_their_places_and_time() {
    let source = Arc::default();
    let listener = start(&source);
    let silent: Vec<TcpStream> =
        (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(listener.bound_address()).unwrap()).collect();
    thread::sleep(Duration::from_millis(200));
    let refused = ask(&listener, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(refused.starts_with("HTTP/1.1 503") || refused.is_empty(), "{refused}");
    let begun = Instant::now();
    // One that trickles is given no more time than one that is silent.
    let mut trickle = silent.first().unwrap().try_clone().unwrap();
    while trickle.write_all(b"G").is_ok() && begun.elapsed() < 4 * READ_TIMEOUT {
        thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() < 2 * READ_TIMEOUT, "{:?}", begun.elapsed());
    assert_eq!(status(&ask(&listener, b"GET /metrics HTTP/1.1\r\n\r\n")), "HTTP/1.1 200 OK");
}

#[test]
fn shards_that_do_not_answer_are_told_of_and_the_end_of_the_daemon_too() {
    let source = Arc::new(Source { fails: true, ..Source::default() });
    let listener = start(&source);
    let answer = ask(&listener, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("did not answer"), "{answer}");
    drop(source);
    let answer = ask(&listener, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("stopping"), "{answer}");
    let address = listener.bound_address();
    drop(listener);
    let until = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(address).is_ok() && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(TcpStream::connect(address).is_err(), "nobody listens any more");
}

/// Else each of those that wait asks once more, one after the other, and the last waits so many times as long.
#[test]
fn who_waits_for_shards_that_do_not_answer_hears_of_it_once_for_all() {
    let takes = Duration::from_secs(1);
    let source = Arc::new(Source { fails: true, takes, ..Source::default() });
    let listener = start(&source);
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS_MAX / 2 {
            scope.spawn(|| {
                let answer = ask(&listener, b"GET /metrics HTTP/1.1\r\n\r\n");
                assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("did not answer"), "{answer}");
            });
        }
    });
    let (asked, took) = (source.asked.load(Ordering::Relaxed), begun.elapsed());
    assert!(asked <= 2 && took < 4 * takes, "asked {asked} times in {took:?}");
}

#[test]
fn a_text_is_made_once_of_a_sample() {
    let source: Arc<dyn ObservationSource> = Arc::new(Source::default());
    let state = ServerState {
        source: Arc::downgrade(&source),
        is_loopback: true,
        connections: AtomicUsize::new(0),
        samples: Mutex::default(),
    };
    for text in [SampleText::Metrics(ExpositionFormat::Prometheus), SampleText::Live] {
        let (begun, first) = (Instant::now(), state.render(text).unwrap());
        let second = state.render(text).unwrap();
        assert!(Arc::ptr_eq(&first, &second) || begun.elapsed() >= OBSERVATION_AGE_MAX, "{text:?}");
        thread::sleep(OBSERVATION_AGE_MAX);
        assert!(!Arc::ptr_eq(&first, &state.render(text).unwrap()), "{text:?}: it is old");
    }
}

#[test]
fn the_page_has_its_policy_and_its_numbers() {
    let source = Arc::default();
    let listener = start(&source);
    let page = ask(&listener, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (fields, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(fields.contains("Content-Type: text/html; charset=utf-8\r\n"), "{fields}");
    assert!(fields.contains("Content-Security-Policy: default-src 'none'; connect-src 'self'; "), "{fields}");
    assert!(fields.contains("X-Content-Type-Options: nosniff"), "{fields}");
    assert_eq!(body, PAGE);
    let numbers = |answer: String| -> serde_json::Value {
        let (fields, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(fields.contains("Content-Type: application/json\r\n"), "{fields}");
        serde_json::from_str(body).unwrap()
    };
    let first = numbers(ask(&listener, b"GET /live.json HTTP/1.1\r\n\r\n"));
    assert!(first["interval_seconds"].is_null());
    thread::sleep(OBSERVATION_AGE_MAX);
    let second = numbers(ask(&listener, b"GET /live.json HTTP/1.1\r\n\r\n"));
    assert!(second["interval_seconds"].as_f64().unwrap() >= 0.5, "{second}");
    assert_eq!(second["volumes"]["rows"][0]["name"], "data");
}
