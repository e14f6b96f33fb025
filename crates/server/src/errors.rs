//! Why a question was not answered, and how HTTP and gRPC say so. The only such mapping.
//!
//! A [`Failure`] holds what the caller may see. What only the log may see (addresses, replies of a store) is logged
//! where it is turned into one.

use crate::node::ReadError;
use crate::retire::RetireError;
use apportion_core::{KeyError, Region};
use apportion_engine::CheckError;
use apportion_sync::{CloseError, OpenError};
use axum::http::StatusCode;
use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The caller's mistake; `field` names what is wrong.
    #[error("{field}: {message}")]
    Invalid {
        field: Cow<'static, str>,
        message: String,
    },
    #[error("{0}")]
    NotFound(String),
    #[error("{path} does not take {method}")]
    MethodNotAllowed { method: String, path: String },
    #[error("the body has more than {max_bytes} bytes")]
    TooLarge { max_bytes: usize },
    #[error("the body did not arrive within {seconds} seconds")]
    TooSlow { seconds: u64 },
    #[error("{0}")]
    RequestIdReused(String),
    #[error("{0}")]
    RegionReachable(String),
    /// What was asked for isn't known to be written.
    #[error("{0}")]
    NotWritten(String),
    /// `outcome_unknown`: the call may have been executed.
    #[error("the store of region {region} is out of reach{}", if *.outcome_unknown { "; the request may have been charged" } else { "" })]
    StoreUnavailable {
        region: Region,
        outcome_unknown: bool,
    },
    /// It decides nothing until its store was restarted, and `waits_for` have struck off its nonce.
    #[error("region {region} is closed for a restart of its store{}", waiting(.waits_for))]
    RegionClosed {
        region: Region,
        waits_for: Vec<Region>,
    },
    /// Closing a region was refused: it goes on as before.
    #[error("region {region} isn't closed: {why}")]
    NotClosed { region: Region, why: CloseError },
    /// A region couldn't be opened yet: it is still closed.
    #[error("region {region} is still closed: {why}")]
    NotOpen { region: Region, why: OpenError },
}

fn waiting(regions: &[Region]) -> String {
    let names: Vec<&str> = regions.iter().map(Region::as_str).collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(", and waits for {} to confirm it", names.join(", ")),
    }
}

/// How one kind of failure is said on each face.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    pub status: StatusCode,
    /// Stable; people script against it.
    pub code: &'static str,
    pub title: &'static str,
    pub grpc: tonic::Code,
}

// === impl Failure ===

impl Failure {
    pub fn invalid(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self::Invalid {
            field: field.into(),
            message: message.into(),
        }
    }

    pub fn kind(&self) -> Kind {
        let (status, code, title, grpc) = match self {
            Self::Invalid { .. } => (
                StatusCode::BAD_REQUEST,
                "INVALID_REQUEST",
                "The request is not well formed",
                tonic::Code::InvalidArgument,
            ),
            Self::NotFound(_) => (
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "There is no such thing",
                tonic::Code::NotFound,
            ),
            Self::MethodNotAllowed { .. } => (
                StatusCode::METHOD_NOT_ALLOWED,
                "METHOD_NOT_ALLOWED",
                "The method is not allowed here",
                tonic::Code::Unimplemented,
            ),
            Self::TooLarge { .. } => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "TOO_LARGE",
                "The body is too large",
                tonic::Code::InvalidArgument,
            ),
            Self::TooSlow { .. } => (
                StatusCode::REQUEST_TIMEOUT,
                "TOO_SLOW",
                "The body did not arrive in time",
                tonic::Code::DeadlineExceeded,
            ),
            Self::RequestIdReused(_) => (
                StatusCode::CONFLICT,
                "REQUEST_ID_REUSED",
                "The request id was used for another request",
                tonic::Code::AlreadyExists,
            ),
            Self::NotClosed { why, .. } if *why != CloseError::StoreUnavailable => (
                StatusCode::CONFLICT,
                "NOT_CLOSED",
                "The region is not closed",
                tonic::Code::FailedPrecondition,
            ),
            Self::RegionReachable(_) => (
                StatusCode::CONFLICT,
                "REGION_REACHABLE",
                "The region may be within reach",
                tonic::Code::FailedPrecondition,
            ),
            Self::NotWritten(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "STORE_UNAVAILABLE",
                "It could not be written down",
                tonic::Code::Unavailable,
            ),
            Self::StoreUnavailable { .. }
            | Self::RegionClosed { .. }
            | Self::NotClosed { .. }
            | Self::NotOpen { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "STORE_UNAVAILABLE",
                "The request could not be decided",
                tonic::Code::Unavailable,
            ),
        };
        Kind {
            status,
            code,
            title,
            grpc,
        }
    }

    /// For a read that failed, in the words of `region`.
    pub fn of_read(error: &ReadError, region: &Region) -> Self {
        match error {
            ReadError::StoreUnavailable(reason) => {
                tracing::debug!(%region, reason, "could not read: the store is out of reach");
                Self::StoreUnavailable {
                    region: region.clone(),
                    outcome_unknown: false,
                }
            }
        }
    }
}

impl From<CheckError> for Failure {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Invalid { field, message } => Self::invalid(field, message),
            error @ CheckError::RequestIdReused => Self::RequestIdReused(error.to_string()),
            CheckError::StoreUnavailable {
                region,
                reason,
                outcome_unknown,
            } => {
                // One line a request would flood the log for as long as the store is away; the node logs that it is.
                tracing::debug!(%region, reason, outcome_unknown, "could not decide: the store is out of reach");
                Self::StoreUnavailable {
                    region,
                    outcome_unknown,
                }
            }
        }
    }
}

impl From<RetireError> for Failure {
    fn from(error: RetireError) -> Self {
        let message = error.to_string();
        match error {
            RetireError::Itself(_) => Self::invalid("region", message),
            RetireError::Unknown { .. } => Self::NotFound(message),
            RetireError::Reachable(_) | RetireError::TooEarly(_) => Self::RegionReachable(message),
            RetireError::NotWritten => Self::NotWritten(message),
        }
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        Self::invalid("attributes", error.to_string())
    }
}

impl From<Failure> for tonic::Status {
    fn from(failure: Failure) -> Self {
        Self::new(failure.kind().grpc, failure.to_string())
    }
}
