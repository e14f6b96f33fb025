//! Calls from other regions.

use super::*;
use crate::message::Message;
use crate::parcel;
use crate::wire;
use apportion_core::Region;
use apportion_proto::sync::v1 as proto;
use apportion_proto::sync::v1::sync_server::{Sync, SyncServer};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

/// Calls of one connection that are worked on at a time; the driver has a limit over all of them.
const STREAMS_MAX: u32 = 64;
/// What is still open so long after shutdown began is cut off.
const DRAIN: Duration = Duration::from_millis(500);

/// A message from a peer, and where its answer goes. Dropping `answer` says that there is none.
#[derive(Debug)]
pub struct Incoming {
    pub message: Box<Message>,
    pub answer: oneshot::Sender<Box<Message>>,
}

/// The service that other regions call.
#[derive(Clone)]
pub struct SyncService {
    region: Region,
    peers: Arc<BTreeSet<Region>>,
    incoming: mpsc::Sender<Incoming>,
    shares: Arc<dyn ShareSource>,
}

// === impl SyncService ===

impl SyncService {
    pub(crate) fn new(
        region: Region,
        peers: BTreeSet<Region>,
        incoming: mpsc::Sender<Incoming>,
        shares: Arc<dyn ShareSource>,
    ) -> Self {
        Self {
            region,
            peers: Arc::new(peers),
            incoming,
            shares,
        }
    }

    /// As a part of a tonic server.
    pub fn into_server(self) -> SyncServer<Self> {
        SyncServer::new(self)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

impl fmt::Debug for SyncService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncService")
            .field("region", &self.region)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

#[tonic::async_trait]
impl Sync for SyncService {
    async fn exchange(
        &self,
        request: Request<proto::Message>,
    ) -> Result<Response<proto::Message>, Status> {
        let message = wire::from_wire(request.into_inner())
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let from = message.from();
        if !self.peers.contains(from) {
            let what = format!("region {from} is no peer of {}", self.region);
            return Err(Status::permission_denied(what));
        }
        let (answer, answered) = oneshot::channel();
        let incoming = Incoming {
            message: Box::new(message),
            answer,
        };
        self.incoming
            .try_send(incoming)
            .map_err(|error| match error {
                TrySendError::Full(_) => Status::resource_exhausted("too many messages in hand"),
                TrySendError::Closed(_) => Status::unavailable("shutting down"),
            })?;
        let answer = timeout(ANSWER_TIMEOUT, answered)
            .await
            .map_err(|_| Status::unavailable("no answer in time"))?
            .map_err(|_| Status::unavailable("no answer now"))?;
        // Whatever an answer has no room for comes again when it is asked for again.
        let part = parcel::cut(*answer).into_iter().next();
        let part = part.ok_or_else(|| Status::internal("an answer without a part"))?;
        Ok(Response::new(wire::to_wire(&part)))
    }

    async fn shares(
        &self,
        request: Request<proto::SharesRequest>,
    ) -> Result<Response<proto::SharesReply>, Status> {
        let request = request.into_inner();
        let key = wire::key("key", &request.key)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        if key.policy_id() != request.policy {
            return Err(Status::invalid_argument(
                "policy: the key is of another one",
            ));
        }
        let label = wire::label("label", request.label)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        let query = ShareQuery { key, label };
        let share = timeout(ANSWER_TIMEOUT, self.shares.shares(query))
            .await
            .map_err(|_| Status::unavailable("no answer in time"))?
            .map_err(|error| match error {
                ShareError::UnknownPolicy(_) => Status::not_found(error.to_string()),
                ShareError::StoreUnavailable(_) | ShareError::Unreachable(_) => {
                    Status::unavailable(error.to_string())
                }
            })?;
        Ok(Response::new(proto::SharesReply {
            region: self.region.to_string(),
            base: share.base,
            lent: share.lent,
            borrowed: share.borrowed,
            given: share.given,
            received: share.received,
            in_force: share.in_force,
            used: share.used,
            as_of_ms: share.as_of.0,
        }))
    }
}

/// Serves peers on `listener` until `shutdown`, and half a second longer for what is in hand.
///
/// # Errors
/// Where the listener fails.
pub async fn serve(
    listener: TcpListener,
    service: SyncService,
    shutdown: CancellationToken,
) -> Result<(), tonic::transport::Error> {
    let serving = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_concurrent_streams(STREAMS_MAX)
        .add_service(service.into_server())
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            shutdown.cancelled(),
        );
    let late = async {
        shutdown.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        served = serving => served,
        () = late => Ok(()),
    }
}
