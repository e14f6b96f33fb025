//! One region's file and the policies file that it names, checked against each other.
//!
//! A node that starts has understood both: what is wrong is said with its file and line, all of it at once.

mod peers;
mod secret;
mod store;
#[cfg(test)]
mod tests;

use self::peers::{compare_regions, read_peers};
pub use self::secret::Secret;
use self::secret::read_secret;
use self::store::read_store;
use apportion_core::key::SubjectHash;
use apportion_core::policy::source::{self, Problem, Problems, Table, quote};
use apportion_core::policy::{limits, region_name};
use apportion_core::{PolicySet, Region, StoreMs};
use axum::http::Uri;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Everything that is wrong with a region's file and its policies file.
pub type ConfigErrors = Problems;

/// One region's file. Every node of the region has the same.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionConfig {
    pub region: Region,
    /// The policies file, as found from here.
    pub policies: PathBuf,
    pub listen: Listen,
    pub store: StoreConfig,
    pub sync: SyncConfig,
    /// What sensitive values are hashed with: the same secret in every region. `None`: none is given, and no policy needs one.
    pub secret: Option<Secret>,
    /// The other regions of the policies file, each once.
    pub peers: Vec<Peer>,
    /// What is allowed but must be known; to be shown at start.
    pub warnings: Vec<String>,
}

/// Three addresses that don't collide.
#[derive(Debug, Clone, PartialEq)]
pub struct Listen {
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub sync: SocketAddr,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoreConfig {
    pub url: StoreUrl,
    /// How long a call to the store may take, 1ms to 10s.
    pub timeout: Duration,
    pub on_empty: OnEmpty,
    pub replicas: Replicas,
}

/// The replicas of a region's Redis, and what is stated of it where it doesn't say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replicas {
    /// As many as may take over from it, and as its `min-replicas-to-write`.
    pub count: u32,
    /// Writes stop within so long after a replica was last heard of: at least its `min-replicas-max-lag`.
    pub max_lag: Duration,
    pub stated: Stated,
}

/// What the operator says of a Redis that doesn't let itself be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stated {
    pub maxmemory_policy: Option<String>,
    pub min_replicas_to_write: Option<u32>,
    pub min_replicas_max_lag: Option<Duration>,
}

#[derive(Clone, PartialEq)]
pub enum StoreUrl {
    /// Embedded in the node, gone with it.
    Memory,
    /// A `redis://` URL. It may hold a password, so neither `Debug` nor `Display` shows that part.
    Redis(String),
}

/// What a store without a life is taken for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnEmpty {
    /// Peers know whether it is new.
    Ask,
    /// It held something once: full budgets only when nothing of the past can count any more.
    Lost,
    /// New until this moment of the store's clock; afterwards, peers are asked.
    NewUntil(StoreMs),
    /// Always new. Not said in a file: the default of a `memory:` store and of a region without peers.
    New,
}

#[derive(Debug, Clone, PartialEq)]
pub struct SyncConfig {
    /// Between two rounds with a peer, 100ms to 1h.
    pub interval: Duration,
    /// For how long a loan is given, at least twice the interval.
    pub loan_term: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    pub region: Region,
    /// `http://host:port`.
    pub sync: String,
}

const INTERVAL_MS: RangeInclusive<u64> = 100..=3_600_000;
const LOAN_TERM_MS: RangeInclusive<u64> = 200..=86_400_000;

impl StoreConfig {
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(5);
    pub const DEFAULT_REPLICA_MAX_LAG: Duration = Duration::from_secs(10);
}

impl SyncConfig {
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(2);
    pub const DEFAULT_LOAN_TERM: Duration = Duration::from_secs(10);
}

/// Reads a policies file by itself.
pub fn load_policies(path: &Path) -> Result<PolicySet, ConfigErrors> {
    let file = path.display().to_string();
    let bytes = read_bounded(path).map_err(|error| {
        Problem::of_file(
            &file,
            format!("can't be read: {error}"),
            Some("a policies file"),
        )
    })?;
    PolicySet::parse(source::utf8(&bytes, &file)?, &file)
}

// === impl RegionConfig ===

impl RegionConfig {
    /// Reads a region's file and the policies file that it names.
    pub fn load(path: &Path) -> Result<(Self, PolicySet), ConfigErrors> {
        let file = path.display().to_string();
        let bytes = read_bounded(path).map_err(|error| {
            Problem::of_file(
                &file,
                format!("can't be read: {error}"),
                Some("a region's file"),
            )
        })?;
        let text = source::utf8(&bytes, &file)?;
        let directory = path.parent().unwrap_or(Path::new(""));
        source::read(text, &file, |root| read_region_file(root, directory))
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = limits::MAX_FILE_BYTES as u64;
    File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    Ok(bytes)
}

fn read_region_file(root: &Table<'_>, directory: &Path) -> Option<(RegionConfig, PolicySet)> {
    root.only(&[
        "region", "policies", "listen", "store", "sync", "keys", "peers",
    ]);
    let own = root.required("region", "the name of this region");
    let region = own.as_ref().and_then(region_name);
    let policies = read_policies(root, directory);
    let listen = read_listen(root);
    let peers = read_peers(root, region.as_ref(), listen.as_ref());
    if let (Some(own), Some(region), Some((_, set)), Some(peers)) =
        (&own, &region, &policies, &peers)
    {
        compare_regions(root, own, region, peers, set);
    }
    let mut warnings = Vec::new();
    let alone = peers.as_ref().is_some_and(Vec::is_empty);
    let store = read_store(root, alone, &mut warnings);
    let sync = read_sync(root);
    let secret = read_secret(root, directory, policies.as_ref().map(|(_, set)| set));
    let (path, set) = policies?;
    let secret = secret?;
    let set = match &secret {
        Some(secret) => set.with_subject_hash(SubjectHash::new(secret.bytes())),
        None => set,
    };
    let config = RegionConfig {
        region: region?,
        policies: path,
        listen: listen?,
        store: store?,
        sync: sync?,
        secret,
        peers: peers?.into_iter().map(|(_, peer)| peer).collect(),
        warnings,
    };
    Some((config, set))
}

fn read_policies(root: &Table<'_>, directory: &Path) -> Option<(PathBuf, PolicySet)> {
    const EXPECTED: &str = "the path of the policies file, relative to this file";
    let field = root.required("policies", EXPECTED)?;
    let path = directory.join(field.text(EXPECTED)?);
    let file = path.display().to_string();
    let bytes = match read_bounded(&path) {
        Ok(bytes) => bytes,
        Err(error) => {
            field.wrong(format!("{file} can't be read: {error}"), EXPECTED);
            return None;
        }
    };
    let set = source::utf8(&bytes, &file).and_then(|text| PolicySet::parse(text, &file));
    match set {
        Ok(set) => Some((path, set)),
        Err(problems) => {
            field.wrong_inside(problems);
            None
        }
    }
}

// === listen ===

fn read_listen(root: &Table<'_>) -> Option<Listen> {
    const NAMES: [&str; 3] = ["grpc", "http", "sync"];
    let table = root
        .required("listen", "a [listen] table with grpc, http and sync")?
        .table("a table with grpc, http and sync")?;
    table.only(&NAMES);
    let addresses = NAMES.map(|name| read_address(&table, name));
    for (i, later) in addresses.iter().enumerate() {
        for (earlier, name) in addresses[..i].iter().zip(NAMES) {
            if let (Some(later), Some(earlier)) = (later, earlier)
                && collide(*later, *earlier)
                && let Some(field) = table.get(NAMES[i])
            {
                field.wrong(
                    format!("{later} collides with {name}, {earlier}"),
                    "a port of its own",
                );
            }
        }
    }
    let [grpc, http, sync] = addresses;
    Some(Listen {
        grpc: grpc?,
        http: http?,
        sync: sync?,
    })
}

fn read_address(table: &Table<'_>, name: &str) -> Option<SocketAddr> {
    const EXPECTED: &str = "an IP address and a port, such as \"127.0.0.1:7101\"";
    let field = table.required(name, EXPECTED)?;
    let text = field.text(EXPECTED)?;
    let address = text.parse().ok();
    if address.is_none() {
        field.wrong(format!("{} is no such address", quote(text)), EXPECTED);
    }
    address
}

/// Port 0 is any free port.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let one_is_all = a.ip().is_unspecified() || b.ip().is_unspecified();
    a.port() != 0 && a.port() == b.port() && (a.ip() == b.ip() || one_is_all)
}

// === sync ===

fn read_sync(root: &Table<'_>) -> Option<SyncConfig> {
    let defaults = SyncConfig {
        interval: SyncConfig::DEFAULT_INTERVAL,
        loan_term: SyncConfig::DEFAULT_LOAN_TERM,
    };
    let Some(field) = root.get("sync") else {
        return Some(defaults);
    };
    let table = field.table("a table with interval and loan_term")?;
    table.only(&["interval", "loan_term"]);
    let interval = read_duration(&table, "interval", INTERVAL_MS, defaults.interval);
    let loan_term = read_duration(&table, "loan_term", LOAN_TERM_MS, defaults.loan_term);
    let (interval, loan_term) = (interval?, loan_term?);
    if loan_term < 2 * interval {
        let (shown, field) = match table.get("loan_term") {
            Some(field) => ("", field),
            None => (" (left out)", table.get("interval")?),
        };
        let [term, least] = [loan_term, 2 * interval].map(humantime::format_duration);
        field.wrong(
            format!("a loan_term of {term}{shown} is less than two intervals"),
            format!("a loan_term of at least {least}"),
        );
    }
    Some(SyncConfig {
        interval,
        loan_term,
    })
}

fn read_duration(
    table: &Table<'_>,
    name: &str,
    range_ms: RangeInclusive<u64>,
    default: Duration,
) -> Option<Duration> {
    let Some(field) = table.get(name) else {
        return Some(default);
    };
    let example = humantime::format_duration(default).to_string();
    field
        .duration_ms(range_ms, &example)
        .map(Duration::from_millis)
}

/// A name or an address, and a port that a socket can have or none: URIs allow more.
fn has_host_and_port(uri: &Uri) -> bool {
    let Some(authority) = uri.authority() else {
        return false;
    };
    let host = authority.host();
    let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
    let has_port = host_and_port.len() > host.len();
    !host.is_empty()
        && host
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-:[]".contains(&b))
        && (!has_port || authority.port_u16().is_some_and(|port| port > 0))
}
