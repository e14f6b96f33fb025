//! Connections: accepted within bounds, served, and ended in time. The same for every port.
//!
//! tonic's and axum's own servers don't end a connection that a client holds open; this one does, whatever the client
//! does.

use axum::Router;
use axum::extract::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use metrics::Gauge;
use rand::Rng;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tower_service::Service;

/// Connections of one port; further ones wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 10_000;
/// For a request's head to arrive. It also ends connections that are kept alive and idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// A connection that has asked nothing by then is ended: whoever only holds one open must not keep others out.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(75);
/// A connection as old as this is ended between two requests, so that clients spread over new nodes. Up to a tenth
/// is added at random.
const MAX_AGE: Duration = Duration::from_secs(30 * 60);
/// For the requests that are under way when a connection is ended by age.
const AGE_GRACE: Duration = Duration::from_secs(10);
/// The same when the process ends.
const DRAIN: Duration = Duration::from_millis(2500);
/// After `accept` fails for want of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const MAX_HEAD_BYTES: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
const MAX_STREAMS: u32 = 1024;
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// What is spoken on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// HTTP/1.1, or HTTP/2 where the client begins with it.
    Http,
    /// HTTP/2 alone.
    Grpc,
}

/// Serves `router` on `listener` until `stop`; then accepts nothing, lets what is under way end, and drops what
/// hasn't ended within 2.5 seconds. `open` counts the connections.
pub async fn accept(
    listener: TcpListener,
    router: Router,
    wire: Wire,
    open: Gauge,
    stop: CancellationToken,
) {
    let builder = Arc::new(builder(wire));
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            let place = Arc::clone(&places)
                .acquire_owned()
                .await
                .expect("the semaphore is never closed");
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if !is_the_connections(&error) {
                    tracing::warn!(%error, "could not accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        let (builder, router) = (Arc::clone(&builder), router.clone());
        let (open, stop) = (open.clone(), stop.clone());
        connections.spawn(async move {
            open.increment(1.0);
            let _closed = OnDrop(|| open.decrement(1.0));
            serve(&builder, stream, router, stop).await;
            drop(place);
        });
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::info!(
            connections = connections.len(),
            "dropping connections that did not end in time"
        );
    }
}

async fn serve(
    builder: &auto::Builder<TokioExecutor>,
    stream: TcpStream,
    router: Router,
    stop: CancellationToken,
) {
    if stream.set_nodelay(true).is_err() {
        // Gone already.
        return;
    }
    let asked = Arc::new(AtomicBool::new(false));
    let service = {
        let asked = Arc::clone(&asked);
        service_fn(move |request: Request<Incoming>| {
            asked.store(true, Ordering::Relaxed);
            router.clone().call(request)
        })
    };
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);

    let idle = async {
        sleep(FIRST_REQUEST_TIMEOUT).await;
        if asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    };
    let old = sleep(MAX_AGE.mul_f64(rand::rng().random_range(1.0..1.1)));
    // What goes wrong on a connection is the client's to notice, and nothing to log.
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = idle => {}
        () = old => {}
    }
    connection.as_mut().graceful_shutdown();
    // When the process ends, `accept` drops this task sooner.
    let _ = timeout_at(Instant::now() + AGE_GRACE, connection).await;
}

fn builder(wire: Wire) -> auto::Builder<TokioExecutor> {
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32);
    match wire {
        Wire::Http => builder,
        Wire::Grpc => builder.http2_only(),
    }
}

/// The error is of the connection that was to be accepted, not of the listener.
fn is_the_connections(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
    )
}

/// Also runs when the task is aborted.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
