//! A TCP proxy that stands for a network link, and breaks like one.
//!
//! A **delay** is a latency: bytes keep their order and their rate, and arrive that much later; a new connection pays a
//! round trip first. A **cut** is a partition: what was sent and has not arrived stays under way, nothing is reset, no
//! end of a connection is seen, new connections hang; after healing all of it arrives, however late, as from a TCP
//! stack that goes on retransmitting. Bytes under way are bounded, as in a socket's buffers; a sender then waits.
//!
//! The proxies of a process share a small runtime of their own, so that they can be used from threads and from tests of
//! any kind.

use crate::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Bytes read at once.
const PIECE: usize = 16 * 1024;
/// Bytes under way in one direction of one connection.
const UNDER_WAY: usize = 1024 * 1024;
/// More wait in the listener's backlog.
const MAX_CONNECTIONS: usize = 1024;
const STOP_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Both,
    ToUpstream,
    FromUpstream,
}

#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    link: watch::Sender<Link>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What the link is like now.
#[derive(Debug, Clone, Copy, Default)]
struct Link {
    cut_to_upstream: bool,
    cut_from_upstream: bool,
    delay: Duration,
    /// Connections that began under a smaller number are to be reset.
    resets: u64,
}

#[derive(Debug, Clone, Copy)]
enum Way {
    ToUpstream,
    FromUpstream,
}

/// A piece of a stream, under way.
struct UnderWay {
    due: Instant,
    what: Piece,
    /// Given back on arrival.
    _room: Option<OwnedSemaphorePermit>,
}

enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// The other side broke the connection, and the news has arrived.
struct WasReset;

// === impl Proxy ===

impl Proxy {
    /// Listens on a free loopback port, until dropped.
    pub fn start(upstream: SocketAddr) -> Result<Self, Error> {
        Self::start_balanced(vec![upstream])
    }

    /// Spreads connections over several upstreams, passing over those that refuse.
    pub fn start_balanced(upstreams: Vec<SocketAddr>) -> Result<Self, Error> {
        let runtime = runtime()?;
        let bound = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                let _context = runtime.enter();
                TcpListener::from_std(listener)
            })
            .and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (addr, listener) = bound.map_err(Error::io("start a proxy"))?;
        let proxy = Self {
            addr,
            link: watch::Sender::new(Link::default()),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let accept = accept(
            listener,
            Upstreams::new(upstreams),
            proxy.link.subscribe(),
            proxy.stop.clone(),
            proxy.tasks.clone(),
        );
        proxy.tasks.spawn_on(accept, runtime.handle());
        Ok(proxy)
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// One way, in each direction. Holds for what is sent from now on.
    pub fn set_delay(&self, delay: Duration) {
        self.link.send_modify(|link| link.delay = delay);
    }

    /// Adds to what is cut already.
    pub fn cut(&self, direction: Direction) {
        self.link.send_modify(|link| {
            link.cut_to_upstream |= direction != Direction::FromUpstream;
            link.cut_from_upstream |= direction != Direction::ToUpstream;
        });
    }

    /// Resets every present connection, on both sides, as a firewall that lost its state does. New ones are served.
    pub fn reset_connections(&self) {
        self.link.send_modify(|link| link.resets += 1);
    }

    /// Joins what was cut. The delay stays.
    pub fn heal(&self) {
        self.link.send_modify(|link| {
            link.cut_to_upstream = false;
            link.cut_from_upstream = false;
        });
    }

    pub fn is_cut(&self) -> bool {
        let link = self.link.borrow();
        link.cut_to_upstream || link.cut_from_upstream
    }

    /// Ends every connection and waits until that is done. Dropping does the same without waiting.
    pub fn stop(self) {
        self.stop.cancel();
        let deadline = std::time::Instant::now() + STOP_LIMIT;
        while !self.tasks.is_empty() && std::time::Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Link ===

impl Link {
    fn is_open(&self, way: Way) -> bool {
        match way {
            Way::ToUpstream => !self.cut_to_upstream,
            Way::FromUpstream => !self.cut_from_upstream,
        }
    }

    /// A handshake needs both.
    fn is_whole(&self) -> bool {
        self.is_open(Way::ToUpstream) && self.is_open(Way::FromUpstream)
    }
}

// === the parts that run ===

#[derive(Debug)]
struct Upstreams {
    addrs: Vec<SocketAddr>,
    next: AtomicUsize,
}

impl Upstreams {
    fn new(addrs: Vec<SocketAddr>) -> Arc<Self> {
        Arc::new(Self {
            addrs,
            next: AtomicUsize::new(0),
        })
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let mut refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for i in 0..self.addrs.len() {
            match TcpStream::connect(self.addrs[(first + i) % self.addrs.len()]).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

fn runtime() -> Result<&'static Runtime, Error> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("proxy")
        .enable_all()
        .build()
        .map_err(Error::io("start the runtime of the proxies"))?;
    Ok(RUNTIME.get_or_init(|| runtime))
}

async fn accept(
    listener: TcpListener,
    upstreams: Arc<Upstreams>,
    link: watch::Receiver<Link>,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await.ok()?;
            Some((place, listener.accept().await))
        };
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = accepted => accepted,
        };
        let Some((place, accepted)) = accepted else {
            return;
        };
        let Ok((client, _)) = accepted else {
            // Out of file handles, most likely.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let (upstreams, link, stop) = (Arc::clone(&upstreams), link.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = carry(client, &upstreams, link) => {}
            }
            drop(place);
        });
    }
}

/// One connection, from beginning to end.
async fn carry(mut client: TcpStream, upstreams: &Upstreams, link: watch::Receiver<Link>) {
    let born = link.borrow().resets;
    let mut resets = link.clone();
    let mut was_reset = std::pin::pin!(resets.wait_for(|link| link.resets > born));

    let connected = tokio::select! {
        _ = &mut was_reset => Err(WasReset),
        upstream = connect(upstreams, link.clone()) => upstream.map_err(|_| WasReset),
    };
    let Ok(mut upstream) = connected else {
        // Fails only where the connection has ended already.
        let _ = client.set_zero_linger();
        return;
    };
    let _ = client.set_nodelay(true);
    let _ = upstream.set_nodelay(true);

    let (from_client, to_client) = client.split();
    let (from_upstream, to_upstream) = upstream.split();
    let carried = async {
        tokio::try_join!(
            pipe(from_client, to_upstream, Way::ToUpstream, link.clone()),
            pipe(from_upstream, to_client, Way::FromUpstream, link.clone()),
        )
    };
    let carried = tokio::select! {
        _ = &mut was_reset => Err(WasReset),
        carried = carried => carried,
    };
    if let Err(WasReset) = carried {
        let _ = client.set_zero_linger();
        let _ = upstream.set_zero_linger();
    }
}

/// The handshake.
async fn connect(upstreams: &Upstreams, mut link: watch::Receiver<Link>) -> io::Result<TcpStream> {
    wait_for(&mut link, Link::is_whole).await;
    let round_trip = link.borrow().delay * 2;
    sleep(round_trip).await;
    wait_for(&mut link, Link::is_whole).await;
    upstreams.connect().await
}

/// One direction of one connection. Ends when its last byte has arrived, or can't arrive any more.
async fn pipe(
    from: ReadHalf<'_>,
    to: WriteHalf<'_>,
    way: Way,
    link: watch::Receiver<Link>,
) -> Result<(), WasReset> {
    // Bounded by the bytes in it, each piece having at least one.
    let (departures, arrivals) = mpsc::unbounded_channel();
    let depart = async {
        depart(from, departures, link.clone()).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = depart => Ok(()),
        arrived = arrive(arrivals, to, way, link.clone()) => arrived,
    }
}

async fn depart(
    mut from: ReadHalf<'_>,
    departures: mpsc::UnboundedSender<UnderWay>,
    link: watch::Receiver<Link>,
) {
    let room = Arc::new(Semaphore::new(UNDER_WAY));
    let mut buffer = vec![0; PIECE];
    loop {
        let read = from.read(&mut buffer).await;
        let due = Instant::now() + link.borrow().delay;
        let (what, size) = match read {
            Ok(0) => (Piece::End, 0),
            Ok(n) => (
                Piece::Bytes(buffer[..n].to_vec()),
                u32::try_from(n).unwrap_or(u32::MAX),
            ),
            Err(_) => (Piece::Reset, 0),
        };
        let _room = if size == 0 {
            None
        } else {
            Arc::clone(&room).acquire_many_owned(size).await.ok()
        };
        if departures.send(UnderWay { due, what, _room }).is_err() || size == 0 {
            return;
        }
    }
}

async fn arrive(
    mut arrivals: mpsc::UnboundedReceiver<UnderWay>,
    mut to: WriteHalf<'_>,
    way: Way,
    mut link: watch::Receiver<Link>,
) -> Result<(), WasReset> {
    while let Some(piece) = arrivals.recv().await {
        sleep_until(piece.due).await;
        wait_for(&mut link, |link| link.is_open(way)).await;
        match piece.what {
            Piece::Bytes(bytes) => {
                if to.write_all(&bytes).await.is_err() {
                    // The other direction reads the same socket, and brings the news at its own pace.
                    return Ok(());
                }
            }
            Piece::End => {
                let _ = to.shutdown().await;
                return Ok(());
            }
            Piece::Reset => return Err(WasReset),
        }
    }
    Ok(())
}

async fn wait_for(link: &mut watch::Receiver<Link>, condition: impl Fn(&Link) -> bool) {
    // Fails only once the proxy is gone; then this connection is about to be ended.
    let _ = link.wait_for(|link| condition(link)).await;
}

#[cfg(test)]
mod tests;
