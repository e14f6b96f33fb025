//! One region's file and the policies file that it names, checked against each other.
//!
//! A node that starts has understood both: what is wrong is said with its file and line, all of it at once.

use apportion_core::policy::source::{self, Field, Problem, Problems, Table, any_of, quote};
use apportion_core::policy::{limits, region_name};
use apportion_core::{PolicySet, Region, StoreMs};
use axum::http::Uri;
use std::collections::HashMap;
use std::fmt;
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

const TIMEOUT_MS: RangeInclusive<u64> = 1..=10_000;
const INTERVAL_MS: RangeInclusive<u64> = 100..=3_600_000;
const LOAN_TERM_MS: RangeInclusive<u64> = 200..=86_400_000;

impl StoreConfig {
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_millis(5);
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
    root.only(&["region", "policies", "listen", "store", "sync", "peers"]);
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
    let (path, set) = policies?;
    let config = RegionConfig {
        region: region?,
        policies: path,
        listen: listen?,
        store: store?,
        sync: sync?,
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

// === store ===

fn read_store(root: &Table<'_>, alone: bool, warnings: &mut Vec<String>) -> Option<StoreConfig> {
    let store = root
        .required("store", "a [store] table with url")?
        .table("a table with url")?;
    store.only(&["url", "timeout", "on_empty"]);
    let url = read_store_url(&store);
    let timeout = read_duration(&store, "timeout", TIMEOUT_MS, StoreConfig::DEFAULT_TIMEOUT);
    let on_empty = match (store.get("on_empty"), &url) {
        (Some(field), _) => read_on_empty(&field),
        (None, Some(StoreUrl::Memory)) => {
            warnings.push(
                "store.on_empty is left out and the store is memory: every start of this node counts as the first, \
                 and what was spent before it is forgotten"
                    .to_owned(),
            );
            Some(OnEmpty::New)
        }
        (None, _) if alone => {
            warnings.push(
                "store.on_empty is left out and this region has no peer to ask: an empty store counts as new, so if \
                 it lost its data, spent budgets are full again"
                    .to_owned(),
            );
            Some(OnEmpty::New)
        }
        (None, _) => Some(OnEmpty::Ask),
    };
    Some(StoreConfig {
        url: url?,
        timeout: timeout?,
        on_empty: on_empty?,
    })
}

fn read_store_url(store: &Table<'_>) -> Option<StoreUrl> {
    const EXPECTED: &str = "\"memory:\" or \"redis://host:port\"";
    const LATER: [&str; 3] = ["rediss", "redis+cluster", "redis+sentinel"];
    let field = store.required("url", EXPECTED)?;
    let text = field.text(EXPECTED)?;
    if text == "memory:" {
        return Some(StoreUrl::Memory);
    }
    let Some((scheme, _)) = text.split_once("://") else {
        // What follows could be a password: it isn't repeated.
        field.wrong("no such kind of store", EXPECTED);
        return None;
    };
    if LATER.contains(&scheme) {
        field.wrong(format!("{scheme}:// is not supported yet"), EXPECTED);
        return None;
    }
    if scheme != "redis" {
        let hint = source::nearest(scheme, ["redis"]).map_or("", |_| ", did you mean redis://?");
        field.wrong(
            format!("{} is no kind of store{hint}", quote(scheme)),
            EXPECTED,
        );
        return None;
    }
    if !is_redis_url(text) {
        const FORM: &str = "redis://[user:password@]host[:port][/database]";
        field.wrong("not a URL of the form that is understood", FORM);
        return None;
    }
    Some(StoreUrl::Redis(text.to_owned()))
}

fn is_redis_url(text: &str) -> bool {
    let Ok(uri) = text.parse::<Uri>() else {
        return false;
    };
    let database = uri.path().trim_start_matches('/');
    has_host_and_port(&uri)
        && uri.query().is_none()
        && (database.is_empty() || database.parse::<u16>().is_ok())
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

fn read_on_empty(field: &Field<'_>) -> Option<OnEmpty> {
    const EXPECTED: &str = "\"ask\", \"lost\" or { new_until = \"2026-12-31T00:00:00Z\" }";
    if !field.is_table() {
        return field.choice(&[("ask", OnEmpty::Ask), ("lost", OnEmpty::Lost)], EXPECTED);
    }
    const TIME: &str = "a time with its offset, such as \"2026-12-31T00:00:00Z\"";
    let table = field.table(EXPECTED)?;
    table.only(&["new_until"]);
    let field = table.required("new_until", TIME)?;
    let text = field.text_of_time(TIME)?;
    let time = text.parse::<jiff::Timestamp>().ok();
    let ms = time.and_then(|time| u64::try_from(time.as_millisecond()).ok());
    if ms.is_none() {
        field.wrong(format!("{} is no such time", quote(&text)), TIME);
    }
    ms.map(|ms| OnEmpty::NewUntil(StoreMs(ms)))
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

// === peers ===

/// Each with the field that names it.
fn read_peers<'r>(
    root: &Table<'r>,
    own: Option<&Region>,
    listen: Option<&Listen>,
) -> Option<Vec<(Field<'r>, Peer)>> {
    const EXPECTED: &str = "[[peers]] tables with region and sync";
    let Some(field) = root.get("peers") else {
        return Some(Vec::new());
    };
    let items = field.items(EXPECTED)?;
    let mut lines_of_regions = HashMap::new();
    let mut lines_of_urls = HashMap::new();
    let peers: Vec<_> = items
        .iter()
        .map(|item| {
            let table = item.table(EXPECTED)?;
            table.only(&["region", "sync"]);
            let sync = read_peer_url(&table, listen);
            if let Some((field, url)) = &sync
                && let Some(line) = lines_of_urls.insert(url.clone(), field.line())
            {
                field.wrong(
                    format!("{url} is listed on line {line} as well"),
                    "each peer's own address",
                );
            }
            let field = table.required("region", "the name of the peer's region")?;
            let region = region_name(&field)?;
            let name = region.as_str();
            if Some(&region) == own {
                field.wrong(
                    format!("{name:?} is this region itself"),
                    "a peer in another region",
                );
            }
            if let Some(line) = lines_of_regions.insert(region.clone(), field.line()) {
                field.wrong(
                    format!("{name:?} is listed on line {line} as well"),
                    "each peer once",
                );
            }
            let (_, sync) = sync?;
            Some((field, Peer { region, sync }))
        })
        .collect();
    peers.into_iter().collect()
}

/// A peer's address and the field that gives it.
fn read_peer_url<'r>(peer: &Table<'r>, listen: Option<&Listen>) -> Option<(Field<'r>, String)> {
    const EXPECTED: &str = "the peer's sync address, such as \"http://127.0.0.1:7302\"";
    let field = peer.required("sync", EXPECTED)?;
    let text = field.text(EXPECTED)?;
    let uri = text.parse::<Uri>().ok();
    if uri.as_ref().and_then(Uri::scheme_str) == Some("https") {
        field.wrong("https:// is not supported yet", EXPECTED);
        return None;
    }
    let is_plain = |uri: &Uri| {
        uri.scheme_str() == Some("http")
            && uri.port().is_some()
            && has_host_and_port(uri)
            && uri.authority().is_some_and(|a| !a.as_str().contains('@'))
            && uri.path() == "/"
            && uri.query().is_none()
    };
    let Some(authority) = uri
        .filter(is_plain)
        .and_then(|uri| uri.authority().cloned())
    else {
        field.wrong(
            format!("{} is not of the form http://host:port", quote(text)),
            EXPECTED,
        );
        return None;
    };
    let own = listen.map(|listen| listen.sync);
    if own.is_some() && authority.as_str().parse().ok() == own {
        field.wrong(
            format!("{} is where this region itself listens", quote(text)),
            EXPECTED,
        );
    }
    Some((field, format!("http://{authority}")))
}

/// This region and its peers are exactly those that the policies deal shares to.
fn compare_regions(
    root: &Table<'_>,
    own: &Field<'_>,
    region: &Region,
    peers: &[(Field<'_>, Peer)],
    set: &PolicySet,
) {
    let listed = || any_of(set.regions.iter().map(Region::as_str));
    let refuse_a_stranger = |field: &Field<'_>, region: &Region| {
        if !set.regions.contains(region) {
            let name = region.as_str();
            let hint = source::nearest(name, set.regions.iter().map(Region::as_str))
                .map(|near| format!(", did you mean {near:?}?"))
                .unwrap_or_default();
            field.wrong(
                format!("{name:?} is not one of the policies' regions{hint}"),
                listed(),
            );
        }
    };
    refuse_a_stranger(own, region);
    for (field, peer) in peers {
        refuse_a_stranger(field, &peer.region);
    }
    let missing: Vec<_> = set
        .regions
        .iter()
        .filter(|listed| *listed != region && !peers.iter().any(|(_, p)| p.region == **listed))
        .map(Region::as_str)
        .collect();
    if !missing.is_empty() {
        let what = format!("no peer for {}", missing.join(", "));
        const EXPECTED: &str = "a [[peers]] table for every other one of the policies' regions";
        match root.get("peers") {
            Some(field) => field.wrong(what, EXPECTED),
            None => root.wrong(format!("peers: {what}"), EXPECTED),
        }
    }
}

// === impl StoreUrl ===

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("memory:"),
            Self::Redis(url) => match url.rsplit_once('@') {
                Some((_, rest)) => write!(f, "redis://***@{rest}"),
                None => f.write_str(url),
            },
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
