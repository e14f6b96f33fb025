//! Wire types, generated from `proto/` at the root of the workspace.
//!
//! Conversions to and from the project's own types live with the faces and the sync transport, which know what to
//! refuse. Nothing here decides anything.

#[allow(
    clippy::all,
    clippy::unwrap_used,
    missing_debug_implementations,
    unreachable_pub,
    rustdoc::all
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/generated.rs"));
}

pub use generated::apportion::*;

/// The public packages as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/public.bin"));
