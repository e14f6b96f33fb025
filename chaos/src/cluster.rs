//! A whole deployment: regions with their stores and nodes, and a proxy on every directed link between two regions.
//!
//! The link `(a, b)` carries what a's nodes ask of b, and b's answers to it. Cutting it leaves b free to ask a; to part
//! two regions, cut both links.

use crate::Error;
use crate::api::{Answer, Api, Attributes, Shares, Status, Usage};
use crate::node::{Node, NodeSpec, READY_LIMIT};
use crate::proxy::{Direction, Proxy};
use crate::redis::RedisServer;
use crate::time::wait_until;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub const REGIONS: [&str; 3] = ["us-east", "eu-west", "ap-south"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    /// Each node's own, so there is one node a region.
    Memory,
    /// One real server a region.
    Redis,
}

#[derive(Debug, Clone)]
pub struct ClusterSpec {
    pub regions: Vec<String>,
    pub nodes_per_region: usize,
    pub store: StoreKind,
    /// Added to the command line of each region's Redis.
    pub redis_args: Vec<String>,
    /// The `[[policy]]` tables; `regions` is written above them.
    pub policies: String,
    pub interval: String,
    pub loan_term: String,
    /// The attributes of a request that some policy matches, of a subject that no test uses: the regions have met once
    /// each of them would admit it.
    pub probe: Vec<(String, String)>,
}

#[derive(Debug)]
pub struct Cluster {
    /// First, so that no node outlives its store.
    regions: BTreeMap<String, RegionParts>,
    links: BTreeMap<(String, String), Proxy>,
    api: Api,
    probe: Vec<(String, String)>,
    dir: TempDir,
}

#[derive(Debug)]
struct RegionParts {
    nodes: Vec<Node>,
    redis: Option<RedisServer>,
}

// === impl ClusterSpec ===

impl ClusterSpec {
    /// Three regions of one node each.
    pub fn new(store: StoreKind, policies: &str) -> Self {
        Self {
            regions: REGIONS.map(str::to_owned).to_vec(),
            nodes_per_region: 1,
            store,
            redis_args: Vec::new(),
            policies: policies.to_owned(),
            interval: "2s".to_owned(),
            loan_term: "10s".to_owned(),
            probe: Vec::new(),
        }
    }

    #[must_use]
    pub fn probe(mut self, attributes: Attributes<'_>) -> Self {
        self.probe = attributes
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        self
    }

    #[must_use]
    pub fn redis_args(mut self, args: &[&str]) -> Self {
        self.redis_args = args.iter().map(ToString::to_string).collect();
        self
    }

    #[must_use]
    pub fn nodes_per_region(mut self, nodes: usize) -> Self {
        self.nodes_per_region = nodes;
        self
    }

    #[must_use]
    pub fn regions(mut self, regions: &[&str]) -> Self {
        self.regions = regions.iter().map(ToString::to_string).collect();
        self
    }

    pub fn policies_file(&self) -> String {
        policies_file(&self.regions, &self.policies)
    }
}

/// A whole policies file from its tables.
pub fn policies_file<S: AsRef<str>>(regions: &[S], tables: &str) -> String {
    let names: Vec<String> = regions
        .iter()
        .map(|region| format!("{:?}", region.as_ref()))
        .collect();
    format!("regions = [{}]\n{tables}", names.join(", "))
}

// === impl Cluster ===

impl Cluster {
    /// Starts everything and waits until each node is ready; see [`Cluster::wait_met`] for more.
    pub fn start(spec: &ClusterSpec) -> Result<Self, Error> {
        let mut cluster = Self::prepare(spec)?;
        cluster.launch()?;
        Ok(cluster)
    }

    /// Starts what was prepared, and waits until each node is ready. A Redis that runs already stays as it is.
    pub fn launch(&mut self) -> Result<(), Error> {
        for parts in self.regions.values_mut() {
            if let Some(redis) = &mut parts.redis
                && redis.process().is_none()
            {
                redis.restart()?;
            }
            for node in &mut parts.nodes {
                node.start()?;
            }
        }
        for node in self.nodes_mut() {
            node.wait_ready()?;
        }
        Ok(())
    }

    /// Everything in place, and nothing but the links running.
    pub fn prepare(spec: &ClusterSpec) -> Result<Self, Error> {
        let dir = tempfile::tempdir().map_err(Error::io("create a folder for the cluster"))?;
        let policies = dir.path().join("policies.toml");
        std::fs::write(&policies, spec.policies_file())
            .map_err(Error::io(format!("write {}", policies.display())))?;

        let mut stores = BTreeMap::new();
        let mut specs: BTreeMap<String, Vec<NodeSpec>> = BTreeMap::new();
        for region in &spec.regions {
            let mut redis = match spec.store {
                StoreKind::Memory => None,
                StoreKind::Redis => Some(RedisServer::reserve()?),
            };
            if let Some(redis) = &mut redis {
                redis.set_args(&spec.redis_args);
            }
            let url = redis
                .as_ref()
                .map_or_else(|| "memory:".to_owned(), RedisServer::url);
            for _ in 0..spec.nodes_per_region {
                let mut node = NodeSpec::new(region, &url)?;
                node.interval.clone_from(&spec.interval);
                node.loan_term.clone_from(&spec.loan_term);
                specs.entry(region.clone()).or_default().push(node);
            }
            stores.insert(region.clone(), redis);
        }

        let mut links = BTreeMap::new();
        for (from, to) in pairs(&spec.regions) {
            let upstreams = specs[&to].iter().map(|node| node.sync).collect();
            let proxy = Proxy::start_balanced(upstreams)?;
            for node in specs.get_mut(&from).into_iter().flatten() {
                node.peers
                    .insert(to.clone(), format!("http://{}", proxy.addr()));
            }
            links.insert((from, to), proxy);
        }

        let mut addresses = BTreeMap::new();
        let mut regions = BTreeMap::new();
        for (region, specs) in specs {
            let urls = specs.iter().map(NodeSpec::http_url).collect();
            addresses.insert(region.clone(), urls);
            let nodes = specs
                .into_iter()
                .enumerate()
                .map(|(i, spec)| Node::new(spec, dir.path(), &format!("{region}-{i}")))
                .collect::<Result<_, _>>()?;
            let redis = stores.remove(&region).flatten();
            regions.insert(region, RegionParts { nodes, redis });
        }
        Ok(Self {
            regions,
            links,
            api: Api::new(addresses),
            probe: spec.probe.clone(),
            dir,
        })
    }

    /// Until every region reaches its store and all its peers, and would admit the probe if there is one.
    pub fn wait_met(&mut self) -> Result<(), Error> {
        let api = self.api.clone();
        let mut seen = String::new();
        let waited = wait_until(READY_LIMIT, "the regions to meet", || {
            seen.clear();
            let all = api.regions();
            let met = all.iter().filter(|region| {
                let why_not = self.why_not_met(region, all.len() - 1);
                if let Some(why_not) = &why_not {
                    let _ = writeln!(seen, "{region}: {why_not}");
                }
                why_not.is_none()
            });
            met.count() == all.len()
        });
        waited.map_err(|error| match error {
            Error::TimedOut { what, limit, .. } => Error::TimedOut {
                what,
                limit,
                log: format!("{seen}{}", self.log_tails()),
            },
            error => error,
        })
    }

    fn why_not_met(&self, region: &str, peers: usize) -> Option<String> {
        let status = match self.api.status(region) {
            Ok(status) => status,
            Err(error) => return Some(error.to_string()),
        };
        let reached = status.peers.values().filter(|peer| peer.reachable).count();
        if !status.store.ok || reached < peers || status.life.is_none() {
            return Some(format!("{status:?}"));
        }
        if self.probe.is_empty() {
            return None;
        }
        let probe: Vec<_> = self
            .probe
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        match self.api.peek(region, &probe) {
            Ok(answer) if answer.allowed() => None,
            Ok(answer) => Some(format!("the probe was not allowed: {}", answer.body)),
            Err(error) => Some(error.to_string()),
        }
    }

    /// The end of every node's log.
    pub fn log_tails(&mut self) -> String {
        let mut tails = String::new();
        for node in self.nodes_mut() {
            let region = node.spec().region.clone();
            if let Some(process) = node.process() {
                let _ = writeln!(tails, "--- {region}\n{}", process.log_tail());
            }
        }
        tails
    }

    pub fn api(&self) -> &Api {
        &self.api
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    // --- links

    /// Parts two regions.
    pub fn cut(&self, a: &str, b: &str) {
        self.cut_link(a, b, Direction::Both);
        self.cut_link(b, a, Direction::Both);
    }

    /// Cuts what `from` asks of `to`, in one direction or both.
    pub fn cut_link(&self, from: &str, to: &str, direction: Direction) {
        if let Some(link) = self.link(from, to) {
            link.cut(direction);
        }
    }

    pub fn heal(&self, a: &str, b: &str) {
        for link in [self.link(a, b), self.link(b, a)].into_iter().flatten() {
            link.heal();
        }
    }

    pub fn cut_all(&self) {
        for link in self.links.values() {
            link.cut(Direction::Both);
        }
    }

    pub fn heal_all(&self) {
        for link in self.links.values() {
            link.heal();
        }
    }

    /// One way, on every link.
    pub fn delay_all(&self, delay: Duration) {
        for link in self.links.values() {
            link.set_delay(delay);
        }
    }

    pub fn link(&self, from: &str, to: &str) -> Option<&Proxy> {
        self.links.get(&(from.to_owned(), to.to_owned()))
    }

    /// In the order of their names.
    pub fn links(&self) -> impl Iterator<Item = (&(String, String), &Proxy)> {
        self.links.iter()
    }

    // --- processes

    pub fn node(&mut self, region: &str, i: usize) -> Result<&mut Node, Error> {
        self.regions
            .get_mut(region)
            .and_then(|parts| parts.nodes.get_mut(i))
            .ok_or_else(|| Error::NoRegion(format!("{region}-{i}")))
    }

    pub fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.regions.values_mut().flat_map(|parts| &mut parts.nodes)
    }

    pub fn redis(&mut self, region: &str) -> Result<&mut RedisServer, Error> {
        self.regions
            .get_mut(region)
            .and_then(|parts| parts.redis.as_mut())
            .ok_or_else(|| Error::NoRegion(format!("the Redis of {region}")))
    }

    /// An error if a node has ended by itself, or has panicked.
    pub fn check_healthy(&mut self) -> Result<(), Error> {
        for node in self.nodes_mut() {
            node.check_alive()?;
            if node.log().contains("panicked at") {
                return Err(Error::Scenario(format!(
                    "{} panicked:\n{}",
                    node.spec().region,
                    node.log()
                )));
            }
        }
        Ok(())
    }

    // --- the face

    pub fn check(
        &self,
        region: &str,
        attributes: Attributes<'_>,
        cost: u64,
    ) -> Result<Answer, Error> {
        self.api.check(region, attributes, cost)
    }

    pub fn usage(&self, region: &str, policy: &str, key: Attributes<'_>) -> Result<Usage, Error> {
        self.api.usage(region, policy, key)
    }

    pub fn shares(&self, region: &str, policy: &str, key: Attributes<'_>) -> Result<Shares, Error> {
        self.api.shares(region, policy, key)
    }

    pub fn status(&self, region: &str) -> Result<Status, Error> {
        self.api.status(region)
    }
}

fn pairs(regions: &[String]) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for from in regions {
        for to in regions.iter().filter(|to| *to != from) {
            pairs.push((from.clone(), to.clone()));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_region_reaches_its_peers_through_a_link_of_its_own() {
        let spec = ClusterSpec::new(StoreKind::Memory, "").nodes_per_region(2);
        let mut cluster = Cluster::prepare(&spec).unwrap();
        assert_eq!(cluster.links().count(), 6);
        let to_eu = cluster.link("us-east", "eu-west").unwrap().addr();
        for i in 0..2 {
            let node = cluster.node("us-east", i).unwrap();
            assert_eq!(node.spec().peers["eu-west"], format!("http://{to_eu}"));
            assert_eq!(node.spec().peers.len(), 2);
        }
        cluster.cut("us-east", "eu-west");
        let cut: Vec<_> = cluster
            .links()
            .filter(|(_, proxy)| proxy.is_cut())
            .map(|((from, to), _)| format!("{from} {to}"))
            .collect();
        assert_eq!(cut, ["eu-west us-east", "us-east eu-west"]);
        cluster.heal_all();
        assert!(cluster.links().all(|(_, proxy)| !proxy.is_cut()));
    }

    #[test]
    fn the_policies_file_lists_the_regions() {
        assert_eq!(
            policies_file(&["a", "b"], "[[policy]]\n"),
            "regions = [\"a\", \"b\"]\n[[policy]]\n"
        );
    }
}
