//! A node's faces, from bound listeners to a clean end.

use crate::accept::{Wire, accept};
use crate::face::{Face, Limiter};
use crate::metrics::Protocol;
use crate::{grpc, http, metrics};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Between saying "not ready" and accepting no more: whoever watches readiness looks elsewhere meanwhile.
const LAME_DUCK: Duration = Duration::from_millis(300);
/// How often the gauges follow the node's status.
const OBSERVE: Duration = Duration::from_secs(1);

/// Serves HTTP and gRPC until `shutdown`, and returns within 3 seconds of it, whatever clients hold open.
///
/// On shutdown readiness goes first, then no connection is accepted, then what is under way may end, then what has
/// not ended is dropped: a dropped request's question to the limiter is dropped with it.
pub async fn run_faces<L: Limiter>(
    limiter: L,
    http_listener: TcpListener,
    grpc_listener: TcpListener,
    shutdown: CancellationToken,
) {
    let face = Face::new(limiter);
    let stop = CancellationToken::new();
    let http_open = face.metrics().connections(Protocol::Http);
    let grpc_open = face.metrics().connections(Protocol::Grpc);
    let http_router = http::router(face.clone());
    let (grpc_router, reporter) = grpc::services(face.clone());

    let ending = async {
        shutdown.cancelled().await;
        face.drain();
        sleep(LAME_DUCK).await;
        stop.cancel();
    };
    tokio::join!(
        ending,
        metrics::upkeep(stop.clone()),
        observe(face.clone(), stop.clone()),
        grpc::report_health(face.clone(), reporter, shutdown.clone()),
        accept(
            http_listener,
            http_router,
            Wire::Http,
            http_open,
            stop.clone()
        ),
        accept(
            grpc_listener,
            grpc_router,
            Wire::Grpc,
            grpc_open,
            stop.clone()
        ),
    );
}

async fn observe<L: Limiter>(face: Face<L>, stop: CancellationToken) {
    let mut tick = tokio::time::interval(OBSERVE);
    while stop.run_until_cancelled(tick.tick()).await.is_some() {
        face.metrics().observe(face.ready(), &face.limiter.status());
    }
    face.metrics().observe(false, &face.limiter.status());
}
