//! A proxy that stays connected to its clients while the server behind it becomes another one, as some balancers and
//! managed stores do at a fail-over: a client isn't told.
//!
//! It switches between two answers, so that no client gets an answer to another question.

use crate::Error;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a side is listened to before the other one has its turn.
const TURN: Duration = Duration::from_millis(1);
/// A server that said nothing for so long has answered all.
const QUIET: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub struct Switch {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: Mutex<SocketAddr>,
    /// Counts the changes of `upstream`.
    changes: AtomicU64,
    stop: AtomicBool,
}

// === impl Switch ===

impl Switch {
    /// Listens on a free loopback port, until dropped.
    pub fn start(upstream: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("bind"))?;
        let addr = listener.local_addr().map_err(Error::io("bind"))?;
        let shared = Arc::new(Shared {
            upstream: Mutex::new(upstream),
            changes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let shared = Arc::clone(&accepting);
                if shared.stop.load(Ordering::Relaxed) {
                    return;
                }
                if let Ok(client) = client {
                    // Ends with either side, or with the switch.
                    thread::spawn(move || drop(shared.carry(client)));
                }
            }
        });
        Ok(Self { addr, shared })
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// From now on all clients speak to this server, those that are connected too.
    pub fn switch_to(&self, upstream: SocketAddr) {
        *self.shared.lock() = upstream;
        self.shared.changes.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // The thread that accepts looks at it once more.
        let _woken = TcpStream::connect(self.addr);
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, SocketAddr> {
        self.upstream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn carry(&self, mut client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        client.set_read_timeout(Some(TURN))?;
        while !self.stop.load(Ordering::Relaxed) {
            let changes = self.changes.load(Ordering::SeqCst);
            let mut server = TcpStream::connect(*self.lock())?;
            server.set_nodelay(true)?;
            server.set_read_timeout(Some(TURN))?;
            while self.changes.load(Ordering::SeqCst) == changes {
                if self.stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                pass(&mut client, &mut server)?;
                pass(&mut server, &mut client)?;
            }
            let mut heard = Instant::now();
            while heard.elapsed() < QUIET {
                if pass(&mut server, &mut client).unwrap_or(false) {
                    heard = Instant::now();
                }
            }
        }
        Ok(())
    }
}

/// Whether there was anything to pass on.
fn pass(from: &mut TcpStream, to: &mut TcpStream) -> io::Result<bool> {
    let mut buffer = [0; 64 * 1024];
    match from.read(&mut buffer) {
        Ok(0) => Err(io::ErrorKind::ConnectionAborted.into()),
        Ok(n) => to.write_all(&buffer[..n]).map(|()| true),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ) =>
        {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says its name to whatever it is told.
    fn server(name: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read(&mut byte).is_ok_and(|n| n == 1) {
                        stream.write_all(name).unwrap();
                    }
                });
            }
        });
        addr
    }

    #[test]
    fn a_client_stays_connected_while_the_server_becomes_another_one() {
        let (first, second) = (server(b"1"), server(b"2"));
        let switch = Switch::start(first).unwrap();
        let mut client = TcpStream::connect(switch.addr()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let mut ask = || {
            let mut answer = [0];
            client.write_all(b"?").unwrap();
            client.read_exact(&mut answer).unwrap();
            answer
        };
        assert_eq!(ask(), *b"1");
        switch.switch_to(second);
        // One question may still reach the first.
        ask();
        assert_eq!(ask(), *b"2");
    }
}
