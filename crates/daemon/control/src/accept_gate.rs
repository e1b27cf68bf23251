//! Clients are let in by one process: while another takes over, those that come wait in the socket's queue.

use std::{
    io,
    os::{
        fd::AsFd,
        unix::net::{UnixListener, UnixStream},
    },
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use rustix::event::{PollFd, PollFlags, poll};

#[derive(Debug, Default)]
struct GateState {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

/// Lets clients in, or leaves them to wait. Clones are the same gate.
#[derive(Clone, Debug, Default)]
pub struct AcceptGate(Arc<GateState>);

impl AcceptGate {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.is_shut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets nobody in as long as the result lives.
    #[must_use]
    pub fn shut(&self) -> ShutGate {
        *self.lock() = true;
        ShutGate(self.clone())
    }

    /// The next client, which is let in by nobody else. `listener` does not block.
    pub(crate) fn accept(&self, listener: &UnixListener) -> io::Result<UnixStream> {
        loop {
            match poll(&mut [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)], None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(why) => return Err(why.into()),
            }
            let mut is_shut = self.lock();
            if *is_shut {
                while *is_shut {
                    is_shut = self.0.opened.wait(is_shut).unwrap_or_else(PoisonError::into_inner);
                }
                continue;
            }
            match listener.accept() {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                accepted => return accepted.map(|(stream, _)| stream),
            }
        }
    }
}

/// A gate that is shut; dropping it opens it.
#[derive(Debug)]
pub struct ShutGate(AcceptGate);

impl ShutGate {
    /// Another process lets clients in from now on.
    pub fn leave_shut(self) {
        std::mem::forget(self);
    }
}

impl Drop for ShutGate {
    fn drop(&mut self) {
        *self.0.lock() = false;
        self.0.0.opened.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc, thread, time::Duration};

    #[test]
    fn clients_wait_while_the_gate_is_shut() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (gate, (told, heard)) = (AcceptGate::default(), mpsc::channel());
        let shut = gate.shut();
        let accepting = thread::spawn(move || {
            for _ in 0..2 {
                told.send(gate.accept(&listener).unwrap()).unwrap();
            }
        });
        let _one = UnixStream::connect(&path).unwrap();
        assert!(heard.recv_timeout(Duration::from_millis(50)).is_err(), "the gate is shut");
        drop(shut);
        assert!(heard.recv_timeout(Duration::from_secs(10)).is_ok());
        let _two = UnixStream::connect(&path).unwrap();
        assert!(heard.recv_timeout(Duration::from_secs(10)).is_ok());
        accepting.join().unwrap();
    }
}
