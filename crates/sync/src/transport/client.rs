//! Calls to other regions.

use super::*;
use crate::message::Message;
use crate::parcel;
use crate::wire::{self, WireError};
use apportion_core::Region;
use apportion_proto::sync::v1 as proto;
use apportion_proto::sync::v1::sync_client::SyncClient;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Waited before each request leaves and after each answer arrives: a distance between regions, for trying things
    /// out on one machine. A latency, not a limit of throughput.
    pub one_way_delay: Duration,
}

/// A channel to each peer. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Peers {
    channels: Arc<BTreeMap<Region, Channel>>,
    options: Options,
}

#[derive(Debug, thiserror::Error)]
#[error("{address:?}, the address of region {region}, can't be used: {reason}")]
pub struct PeerAddressError {
    pub region: Region,
    pub address: String,
    pub reason: String,
}

/// Why a message has no answer. Nothing is to be done but to go on: all of it comes again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExchangeError {
    #[error("no address is known")]
    NoAddress,
    #[error("no answer within {} seconds", EXCHANGE_TIMEOUT.as_secs())]
    Timeout,
    #[error("{code:?}: {message}")]
    Refused { code: Code, message: String },
    #[error("the answer can't be read: {0}")]
    Malformed(#[from] WireError),
    #[error("it was region {0} that answered")]
    WrongRegion(Region),
}

/// What came of a message.
#[derive(Debug)]
pub(crate) struct Sent {
    pub(crate) answers: Vec<Message>,
    pub(crate) error: Option<ExchangeError>,
}

// === impl Peers ===

impl Peers {
    /// Connects nowhere yet: each channel connects when it is first used, and again whenever it is broken.
    ///
    /// # Errors
    /// Where an address isn't `http://host:port`.
    pub fn new(
        addresses: impl IntoIterator<Item = (Region, String)>,
        options: Options,
    ) -> Result<Self, PeerAddressError> {
        let channel = |(region, address): (Region, String)| {
            let endpoint =
                Endpoint::from_shared(address.clone()).map_err(|error| PeerAddressError {
                    region: region.clone(),
                    address,
                    reason: error.to_string(),
                })?;
            Ok((region, configured(endpoint).connect_lazy()))
        };
        let channels = addresses.into_iter().map(channel);
        Ok(Self {
            channels: Arc::new(channels.collect::<Result<_, _>>()?),
            options,
        })
    }

    fn client(&self, to: &Region) -> Option<SyncClient<Channel>> {
        let channel = self.channels.get(to)?.clone();
        let client = SyncClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Some(client)
    }

    /// Sends a message and waits for its answer. One that is too large goes in parts, each after the answer to the one
    /// before.
    pub(crate) async fn send(&self, to: &Region, message: Message) -> Sent {
        let mut sent = Sent {
            answers: Vec::new(),
            error: None,
        };
        for part in parcel::cut(message) {
            match self.exchange(to, &part).await {
                Ok(answer) => sent.answers.push(answer),
                Err(error) => {
                    sent.error = Some(error);
                    break;
                }
            }
        }
        sent
    }

    /// # Errors
    /// Where no answer came, or none that can be used.
    pub async fn exchange(&self, to: &Region, message: &Message) -> Result<Message, ExchangeError> {
        let mut client = self.client(to).ok_or(ExchangeError::NoAddress)?;
        sleep(self.options.one_way_delay).await;
        let request = wire::to_wire(message);
        let answer = timeout(EXCHANGE_TIMEOUT, client.exchange(request))
            .await
            .map_err(|_| ExchangeError::Timeout)??
            .into_inner();
        sleep(self.options.one_way_delay).await;
        let answer = wire::from_wire(answer)?;
        if answer.from() != to {
            return Err(ExchangeError::WrongRegion(answer.from().clone()));
        }
        Ok(answer)
    }

    /// Asks `of` for its part of a key's budget, for as long as `within`, the delays of a distance not counted.
    ///
    /// # Errors
    /// Where it can't be reached or can't say.
    pub async fn shares(
        &self,
        of: &Region,
        query: &ShareQuery,
        within: Duration,
    ) -> Result<Share, ShareError> {
        let unreachable = |why: &str| ShareError::Unreachable(why.to_owned());
        let mut client = self
            .client(of)
            .ok_or_else(|| unreachable("no address is known"))?;
        sleep(self.options.one_way_delay).await;
        let request = proto::SharesRequest {
            policy: query.key.policy_id().to_owned(),
            key: query.key.to_string(),
            label: query.label,
        };
        let reply = timeout(within, client.shares(request))
            .await
            .map_err(|_| unreachable("no answer in time"))?
            .map_err(|status| match status.code() {
                Code::NotFound => ShareError::UnknownPolicy(query.key.policy_id().to_owned()),
                _ => unreachable(status.message()),
            })?
            .into_inner();
        sleep(self.options.one_way_delay).await;
        if reply.region != of.as_str() {
            return Err(unreachable("another region answered"));
        }
        let parts = [
            reply.base,
            reply.lent,
            reply.borrowed,
            reply.in_force,
            reply.used,
        ];
        if !parts.iter().all(|units| units.is_finite()) {
            return Err(unreachable("the answer can't be read"));
        }
        Ok(Share {
            base: reply.base,
            lent: reply.lent,
            borrowed: reply.borrowed,
            given: reply.given,
            received: reply.received,
            in_force: reply.in_force,
            used: reply.used,
            as_of: StoreMs(reply.as_of_ms),
        })
    }
}

fn configured(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
}

// === impl ExchangeError ===

impl ExchangeError {
    /// It won't pass by itself: versions or configurations that don't go together.
    pub(crate) fn needs_people(&self) -> bool {
        match self {
            Self::NoAddress | Self::Malformed(_) | Self::WrongRegion(_) => true,
            Self::Refused { code, .. } => matches!(
                code,
                Code::InvalidArgument
                    | Code::PermissionDenied
                    | Code::OutOfRange
                    | Code::Unimplemented
                    | Code::Internal
            ),
            Self::Timeout => false,
        }
    }

    pub(crate) fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Refused { code, .. }, Self::Refused { code: theirs, .. }) => code == theirs,
            _ => mem::discriminant(self) == mem::discriminant(other),
        }
    }
}

impl From<Status> for ExchangeError {
    fn from(status: Status) -> Self {
        Self::Refused {
            code: status.code(),
            message: status.message().to_owned(),
        }
    }
}
