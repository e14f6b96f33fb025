//! Policies that change, or differ between regions, never give a budget twice.

use apportion_tests::GENEROUS;
use chaos::node::{Node, NodeSpec};
use chaos::{RedisServer, wait_until};
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn policies(revision: u32, limit: u32) -> String {
    format!(
        "revision = {revision}\nregions = [\"us-east\"]\n\n[[policy]]\nname = \"day\"\nkey = [\"tenant\"]\n\
         algorithm = \"fixed-window\"\nlimit = {limit}\nper = \"24h\"\n"
    )
}

fn write(dir: &Path, text: &str) {
    fs::write(dir.join("policies.toml"), text).expect("the policies are written");
}

fn started() -> (Node, RedisServer, TempDir) {
    let redis = RedisServer::start().expect("a Redis");
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), &policies(1, 10));
    let spec = NodeSpec::new("us-east", &redis.url()).expect("free ports");
    let mut node = Node::new(spec, dir.path(), "us-east").expect("a node");
    node.start().expect("the node starts");
    node.wait_ready().expect("the node is ready");
    (node, redis, dir)
}

fn ends_by_itself(node: &mut Node, words: &[&str]) {
    node.start().expect("the process starts");
    wait_until(GENEROUS, "the node ends by itself", || !node.is_running()).expect("it ends");
    let log = node.log();
    assert!(
        words.iter().all(|word| log.contains(word)),
        "{words:?} in\n{log}"
    );
}

#[test]
fn a_policy_that_changed_without_a_new_version_is_refused_and_named() {
    let (mut node, _redis, dir) = started();
    node.terminate(GENEROUS).expect("it ends");
    write(dir.path(), &policies(2, 20));
    ends_by_itself(&mut node, &["day@1", "version"]);
}

#[test]
fn a_node_of_an_older_revision_is_turned_away() {
    let (mut node, _redis, dir) = started();
    node.terminate(GENEROUS).expect("it ends");
    write(dir.path(), &policies(7, 10));
    node.start().expect("the node starts");
    node.wait_ready()
        .expect("the same policies under a newer revision");
    node.terminate(GENEROUS).expect("it ends");
    write(dir.path(), &policies(6, 10));
    ends_by_itself(&mut node, &["revision 6", "revision 7"]);
}
