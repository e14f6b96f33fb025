//! Policies that change, or differ between regions, never give a budget twice; and regions that join and go.

use apportion_tests::{GENEROUS, PAUSE};
use chaos::node::{Node, NodeSpec};
use chaos::{RedisServer, cli, wait_until};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A loan and what it takes until it is surely over: what waits for that takes half a minute.
const LOAN_TERM: &str = "2s";
const AFTER_LOANS: Duration = Duration::from_secs(120);
/// Several rounds.
const A_LITTLE_LONGER: Duration = Duration::from_secs(5);

/// Regions with a Redis each and one node, each with a policies file of its own.
struct Regions {
    dir: TempDir,
    specs: BTreeMap<String, NodeSpec>,
    nodes: BTreeMap<String, Node>,
    _redis: Vec<RedisServer>,
}

impl Regions {
    /// All of `names`, none of them started.
    fn new(names: &[&str]) -> Self {
        let redis: Vec<RedisServer> = names
            .iter()
            .map(|_| RedisServer::start().expect("a Redis"))
            .collect();
        let spec = |(name, redis): (&&str, &RedisServer)| {
            let spec = NodeSpec::new(name, &redis.url()).expect("free ports");
            let spec = NodeSpec {
                interval: "1s".into(),
                loan_term: LOAN_TERM.into(),
                policies: format!("policies-{name}.toml"),
                ..spec
            };
            ((*name).to_owned(), spec)
        };
        Self {
            dir: tempfile::tempdir().expect("a folder"),
            specs: names.iter().zip(&redis).map(spec).collect(),
            nodes: BTreeMap::new(),
            _redis: redis,
        }
    }

    /// (Re)starts a region's node with this file, and with those regions of it as peers.
    fn start(&mut self, name: &str, file: &File<'_>) {
        if let Some(node) = self.nodes.get_mut(name) {
            node.terminate(GENEROUS).expect("it ends");
        }
        self.write(name, file);
        let node = self.nodes.get_mut(name).expect("it was just made");
        node.start().expect("the node starts");
        node.wait_ready().expect("the node is ready");
    }

    fn write(&mut self, name: &str, file: &File<'_>) {
        let spec = &self.specs[name];
        let path = self.dir.path().join(&spec.policies);
        fs::write(path, file.text()).expect("the policies are written");
        let peers = file.regions().into_iter().filter(|peer| *peer != name);
        let peers =
            peers.map(|peer| (peer.to_owned(), format!("http://{}", self.specs[peer].sync)));
        let spec = NodeSpec {
            peers: peers.collect(),
            ..spec.clone()
        };
        let node = Node::new(spec, self.dir.path(), name).expect("a node");
        self.nodes.insert(name.to_owned(), node);
    }

    fn start_all(&mut self, file: &File<'_>) {
        for name in file.regions() {
            self.start(name, file);
        }
        for name in file.regions() {
            self.wait(name, "every region has base", |regions| {
                regions.base(name, "window", "first") > 0.0
                    && regions.base(name, "rate", "first") > 0.0
            });
        }
    }

    fn status(&self, name: &str) -> Value {
        let url = format!("{}/v1/status", self.specs[name].http_url());
        let reply = self.nodes[name].api().get(&url).expect("it answers");
        serde_json::from_str(&reply.body).expect("it is JSON")
    }

    fn base(&self, name: &str, policy: &str, tenant: &str) -> f64 {
        let api = self.nodes[name].api();
        let shares = api.shares(name, policy, &[("tenant", tenant)]);
        shares.map_or(0.0, |shares| shares.regions[name].base)
    }

    /// Asks a region for one unit after the other until it has admitted so many, and a little longer.
    fn uses(&self, name: &str, route: &str, tenant: &str, expected: u64) {
        let began = Instant::now();
        let (mut admitted, mut enough) = (0, None::<Instant>);
        let api = self.nodes[name].api();
        while enough.map_or(began.elapsed() < GENEROUS, |at| {
            at.elapsed() < A_LITTLE_LONGER
        }) {
            let answer = api.check(name, &[("route", route), ("tenant", tenant)], 1);
            if answer.expect("the region is known").allowed() {
                admitted += 1;
            } else {
                std::thread::sleep(PAUSE);
            }
            if admitted >= expected {
                enough = enough.or(Some(Instant::now()));
            }
        }
        assert_eq!(
            admitted,
            expected,
            "{route} of {tenant} in {name}: {:#}",
            self.status(name)
        );
    }

    fn wait(&self, name: &str, what: &str, mut done: impl FnMut(&Self) -> bool) {
        if wait_until(AFTER_LOANS, what, || done(self)).is_err() {
            panic!(
                "{what}: {name} says {:#}\n{}",
                self.status(name),
                self.nodes[name].log()
            );
        }
    }

    fn wait_until_base_is(&self, name: &str, policy: &str, units: f64) {
        let what = format!("the base of {policy} in {name} is {units}");
        self.wait(name, &what, |regions| regions.has_base(name, policy, units));
    }

    /// Shares are parts per billion: a third isn't a round number of units.
    fn has_base(&self, name: &str, policy: &str, units: f64) -> bool {
        (self.base(name, policy, "any") - units).abs() < 0.001
    }
}

/// A window and a bucket that nothing flows into within a test, of the same limit and weights.
struct File<'a> {
    revision: u32,
    limit: u32,
    weights: &'a [(&'a str, u32)],
}

impl File<'_> {
    fn regions(&self) -> Vec<&str> {
        self.weights.iter().map(|(name, _)| *name).collect()
    }

    fn text(&self) -> String {
        let weights: Vec<String> = self
            .weights
            .iter()
            .map(|(n, w)| format!("{n} = {w}"))
            .collect();
        let policy = |name: &str, algorithm: &str| {
            format!(
                "\n[[policy]]\nname = \"{name}\"\nmatch = {{ route = \"/{name}\" }}\nkey = [\"tenant\"]\n\
                 algorithm = \"{algorithm}\"\nlimit = {}\nper = \"365d\"\nweights = {{ {} }}\n",
                self.limit,
                weights.join(", ")
            )
        };
        format!(
            "revision = {}\nregions = {:?}\n{}{}",
            self.revision,
            self.regions(),
            policy("window", "fixed-window"),
            policy("rate", "token-bucket")
        )
    }
}

const EVEN: [(&str, u32); 3] = [("ap-south", 1), ("eu-west", 1), ("us-east", 1)];

#[test]
fn a_limit_is_lower_at_once_and_higher_where_it_is_known_and_never_used_twice() {
    let file = |revision, limit| File {
        revision,
        limit,
        weights: &EVEN,
    };
    let mut regions = Regions::new(&["ap-south", "eu-west", "us-east"]);
    regions.start_all(&file(1, 90));
    regions.uses("us-east", "/window", "spent", 90);

    regions.start("us-east", &file(2, 30));
    // Regions of two revisions don't trade: each has its own base.
    regions.uses("us-east", "/window", "one", 10);
    regions.uses("us-east", "/rate", "one", 10);
    regions.uses("eu-west", "/window", "two", 60);
    regions.uses("us-east", "/window", "two", 10);
    let status = regions.status("us-east");
    assert_eq!(status["peers"]["eu-west"]["revision"], 1, "{status:#}");
    assert_eq!(status["peers"]["eu-west"]["policies_differ"], true);
    regions.start("eu-west", &file(2, 30));
    regions.start("ap-south", &file(2, 30));
    regions.uses("ap-south", "/window", "three", 30);
    regions.uses("us-east", "/window", "spent", 0);

    regions.start("us-east", &file(3, 60));
    regions.uses("us-east", "/window", "four", 20);
    regions.start("eu-west", &file(3, 60));
    regions.start("ap-south", &file(3, 60));
    regions.uses("eu-west", "/window", "four", 40);
}

#[test]
fn a_raise_waits_for_a_region_that_is_down_until_it_is_retired() {
    let mut regions = Regions::new(&["ap-south", "eu-west", "us-east"]);
    let first = File {
        revision: 1,
        limit: 60,
        weights: &EVEN,
    };
    let next = File {
        revision: 2,
        limit: 60,
        weights: &[("ap-south", 1), ("eu-west", 1), ("us-east", 4)],
    };
    regions.start_all(&first);
    regions
        .nodes
        .get_mut("ap-south")
        .expect("it is there")
        .kill();
    for name in ["eu-west", "us-east"] {
        regions.start(name, &next);
    }
    assert!(regions.has_base("eu-west", "rate", 10.0), "lower at once");
    regions.wait("us-east", "ap-south is waited for", |regions| {
        let status = regions.status("us-east");
        let waits_for = status["rollout"]["waits_for"].to_string();
        status["peers"]["ap-south"]["reachable"] == false && waits_for.contains("ap-south")
    });
    assert!(regions.has_base("us-east", "rate", 20.0));

    let address = regions.specs["us-east"].http_url();
    let retire = |region: &str| {
        let args = ["region", "retire", region, "-a", &address];
        cli::run(&args, GENEROUS).expect("it runs")
    };
    retire("us-east").expect(2, &["us-east"]);
    retire("mars").expect(2, &["mars"]);
    retire("eu-west").expect(2, &["within reach"]);
    regions.wait("us-east", "it has listened for long enough", |_| {
        retire("ap-south").code == Some(0)
    });
    assert_eq!(retire("ap-south").stdout, "ap-south: retired\n");
    regions.wait("eu-west", "the word gets round", |regions| {
        regions.status("eu-west")["rollout"]["retired"][0] == "ap-south"
    });
    regions.wait_until_base_is("us-east", "rate", 40.0);
    assert!(
        regions.has_base("us-east", "window", 20.0),
        "not in an open window"
    );

    // It was only its node that was down: it begins anew, with nothing.
    regions.start("ap-south", &first);
    regions.wait("ap-south", "it knows that it was retired", |regions| {
        regions.status("ap-south")["rollout"]["retired"][0] == "ap-south"
    });
    assert!(regions.has_base("ap-south", "rate", 0.0));
    regions.uses("ap-south", "/window", "back", 0);
}

#[test]
fn a_region_joins_and_another_goes_while_all_restart_one_by_one() {
    let mut regions = Regions::new(&["ap-south", "eu-west", "sa-east", "us-east"]);
    let first = File {
        revision: 1,
        limit: 60,
        weights: &EVEN,
    };
    let four = File {
        revision: 2,
        limit: 60,
        weights: &[
            ("ap-south", 1),
            ("eu-west", 1),
            ("sa-east", 1),
            ("us-east", 1),
        ],
    };
    let left = File {
        revision: 3,
        limit: 60,
        weights: &[("eu-west", 1), ("sa-east", 1), ("us-east", 1)],
    };
    regions.start_all(&first);
    regions.start("sa-east", &four);
    regions.uses("sa-east", "/rate", "new", 0);
    for name in first.regions() {
        regions.start(name, &four);
        assert!(regions.has_base(name, "rate", 15.0));
    }
    regions.wait_until_base_is("sa-east", "rate", 15.0);
    regions
        .nodes
        .get_mut("ap-south")
        .expect("it is there")
        .kill();
    let address = regions.specs["eu-west"].http_url();
    let args = ["region", "retire", "ap-south", "--force", "-a", &address];
    cli::run(&args, GENEROUS).expect("it runs").expect(0, &[]);
    for name in left.regions() {
        regions.start(name, &left);
    }
    for name in left.regions() {
        regions.wait_until_base_is(name, "rate", 20.0);
    }
    // Of an open window nothing is dealt again: what the region that joined would have is missing, and what the one that
    // went had.
    regions.uses("us-east", "/window", "after", 30);
}

// --- one region ---

fn alone(revision: u32, rest: &str) -> String {
    format!(
        "revision = {revision}\nregions = [\"us-east\"]\n\n[[policy]]\nname = \"day\"\nkey = [\"tenant\"]\n{rest}"
    )
}

fn day(limit: u32) -> String {
    format!("algorithm = \"fixed-window\"\nlimit = {limit}\nper = \"24h\"\n")
}

struct Alone {
    node: Node,
    dir: TempDir,
    _redis: RedisServer,
}

impl Alone {
    fn with(text: &str) -> Self {
        let redis = RedisServer::start().expect("a Redis");
        let dir = tempfile::tempdir().expect("a folder");
        fs::write(dir.path().join("policies.toml"), text).expect("the policies are written");
        let spec = NodeSpec::new("us-east", &redis.url()).expect("free ports");
        let mut node = Node::new(spec, dir.path(), "us-east").expect("a node");
        node.start().expect("the node starts");
        node.wait_ready().expect("the node is ready");
        Self {
            node,
            dir,
            _redis: redis,
        }
    }

    fn rewrite(&mut self, text: &str) {
        if self.node.is_running() {
            self.node.terminate(GENEROUS).expect("it ends");
        }
        fs::write(self.dir.path().join("policies.toml"), text).expect("the policies are written");
    }

    fn ends_by_itself(&mut self, words: &[&str]) {
        let node = &mut self.node;
        node.start().expect("the process starts");
        wait_until(GENEROUS, "the node ends by itself", || !node.is_running()).expect("it ends");
        let log = node.log();
        assert!(
            words.iter().all(|word| log.contains(word)),
            "{words:?} in\n{log}"
        );
    }
}

#[test]
fn what_a_version_stands_for_cannot_change_and_is_named() {
    let mut alone_here = Alone::with(&alone(1, &day(10)));
    alone_here.rewrite(&alone(2, &day(10).replace("24h", "48h")));
    alone_here.ends_by_itself(&["day@1", "version"]);
    alone_here.rewrite(&alone(3, &day(20)));
    alone_here.node.start().expect("the node starts");
    alone_here.node.wait_ready().expect("a limit can change");
}

#[test]
fn the_same_revision_with_another_content_is_refused() {
    let mut alone_here = Alone::with(&alone(1, &day(10)));
    alone_here.rewrite(&alone(1, &day(20)));
    alone_here.ends_by_itself(&["revision 1", "higher revision"]);
}

#[test]
fn a_node_of_an_older_revision_is_turned_away() {
    let mut alone_here = Alone::with(&alone(7, &day(10)));
    alone_here.rewrite(&alone(6, &day(10)));
    alone_here.ends_by_itself(&["revision 6", "revision 7"]);
}
