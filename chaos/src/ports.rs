//! Free ports that stay ours.
//!
//! A node that is killed comes back on its old port, so a port must not be taken by somebody else meanwhile. Asking the
//! kernel for port 0 and letting go can't promise that: outgoing connections draw from the same range. So ports come
//! from below the usual ephemeral range, in blocks; a lock on a file per block, held until this process ends, keeps test
//! processes that run at the same time apart. A port is handed out once.

use crate::Error;
use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Mutex, PoisonError};

const FIRST: u16 = 12_000;
const END: u16 = 32_000;
const BLOCK: u16 = 40;

#[derive(Debug)]
struct Block {
    next: u16,
    end: u16,
    /// Locked while it is open.
    _lock: File,
}

/// Every block of this process: the last one is handed out from, the earlier ones are only kept locked.
static BLOCKS: Mutex<Vec<Block>> = Mutex::new(Vec::new());

/// A loopback address that nobody listens on, for this process alone.
pub fn free_addr() -> Result<SocketAddr, Error> {
    let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(block) = blocks.last_mut() {
            while block.next < block.end {
                let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, block.next));
                block.next += 1;
                if TcpListener::bind(addr).is_ok() {
                    return Ok(addr);
                }
            }
        }
        blocks.push(take_block()?);
    }
}

fn take_block() -> Result<Block, Error> {
    let dir = std::env::temp_dir().join("apportion-test-ports");
    fs::create_dir_all(&dir).map_err(Error::io(format!("create {}", dir.display())))?;
    let count = (END - FIRST) / BLOCK;
    let offset = rand::random_range(0..count);
    for i in 0..count {
        let first = FIRST + (offset + i) % count * BLOCK;
        let path = dir.join(format!("{first}.lock"));
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io(format!("open {}", path.display())))?;
        if lock.try_lock().is_ok() {
            return Ok(Block {
                next: first,
                end: first + BLOCK,
                _lock: lock,
            });
        }
    }
    Err(Error::NoPorts {
        from: FIRST,
        to: END,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_port_is_handed_out_once() {
        let count = usize::from(BLOCK) + 5;
        let addrs: BTreeSet<_> = (0..count)
            .map(|_| free_addr().expect("a free port"))
            .collect();
        assert_eq!(addrs.len(), count);
    }
}
