//! A link to Redis that a test can stall and cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Answers are held back on the connections that `stalled` is true of; all are cut when `cuts` grows.
#[derive(Clone, Copy, Default)]
struct State {
    stalled: Option<Stalled>,
    cuts: usize,
}

#[derive(Clone, Copy)]
enum Stalled {
    All,
    Connection(usize),
}

pub(crate) struct Proxy {
    port: u16,
    state: watch::Sender<State>,
    accepted: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Self {
            port: listener.local_addr().unwrap().port(),
            state: watch::Sender::new(State::default()),
            accepted: Arc::default(),
        };
        let (state, accepted) = (proxy.state.clone(), Arc::clone(&proxy.accepted));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = accepted.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                    continue;
                };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                tokio::spawn(serve(client, server, number, state.subscribe()));
            }
        });
        proxy
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(crate) fn stall(&self) {
        self.state.send_modify(|s| s.stalled = Some(Stalled::All));
    }

    /// Stalls the connection that was accepted as number `n`, from 0.
    pub(crate) fn stall_connection(&self, n: usize) {
        self.state
            .send_modify(|s| s.stalled = Some(Stalled::Connection(n)));
    }

    pub(crate) fn go_on(&self) {
        self.state.send_modify(|s| s.stalled = None);
    }

    pub(crate) fn cut(&self) {
        self.state.send_modify(|s| s.cuts += 1);
    }
}

async fn serve(client: TcpStream, server: TcpStream, n: usize, state: watch::Receiver<State>) {
    let mut cut = state.clone();
    let cuts = cut.borrow_and_update().cuts;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let asked = copy(from_client, to_server, None, n);
    let answered = copy(from_server, to_client, Some(state), n);
    tokio::select! {
        () = asked => {}
        () = answered => {}
        _ = cut.wait_for(|s| s.cuts != cuts) => {}
    }
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut stall: Option<watch::Receiver<State>>,
    n: usize,
) {
    let mut buffer = vec![0; 65_536];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if let Some(state) = &mut stall {
            let flows = |s: &State| match s.stalled {
                None => true,
                Some(Stalled::All) => false,
                Some(Stalled::Connection(which)) => which != n,
            };
            if state.wait_for(flows).await.is_err() {
                return;
            }
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
