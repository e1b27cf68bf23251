//! Hostile requests: the fuzzer's code on stable Rust, with every stored seed and with damaged ones.

mod body;

#[test]
fn stored_seeds() {
    testkit::corpus::run_seeds(&[("http", body::http)]);
}

#[test]
fn damaged_requests() {
    let request = b"\x01GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/plain;q=0.5\r\n\r\n";
    for at in 0..request.len() {
        for byte in [0, b'\n', b' ', b':', 0x7f, 0xff] {
            let mut damaged = *request;
            damaged[at] = byte;
            body::http(&damaged);
        }
        body::http(&request[..at]);
    }
}
