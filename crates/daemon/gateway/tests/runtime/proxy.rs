//! A way to a gateway that can be cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub struct Proxy {
    pub address: SocketAddr,
    sockets: Arc<Mutex<Vec<TcpStream>>>,
}

impl Proxy {
    pub fn to(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sockets: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let kept = sockets.clone();
        // It ends with the process.
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(target) else { continue };
                let pair = [client, server];
                kept.lock().unwrap().extend(pair.iter().map(|one| one.try_clone().unwrap()));
                for from in [0, 1] {
                    let (source, sink) =
                        (pair[from].try_clone().unwrap(), pair[1 - from].try_clone().unwrap());
                    thread::spawn(move || copy(source, sink));
                }
            }
        });
        Proxy { address, sockets }
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for socket in self.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

fn copy(mut source: TcpStream, mut sink: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = source.read(&mut buffer)
        && count > 0
        && sink.write_all(&buffer[..count]).is_ok()
    {}
    let _ = source.shutdown(Shutdown::Both);
    let _ = sink.shutdown(Shutdown::Both);
}
